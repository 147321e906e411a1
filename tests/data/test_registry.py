"""The data sets by name, and how one is added."""

import subprocess
import sys

import pytest
import torch

from balpoe import Dataset, Preprocessing, UserError, load_data
from balpoe.cli.main import main
from balpoe.data.registry import DATASETS, DatasetEntry, load_data_and_rest, load_files, validation_data
from balpoe.experiments.build import assemble
from balpoe.experiments.recipe import Recipe, updated


@pytest.mark.parametrize("name", DATASETS)
def test_every_loader_is_there(name):
    assert callable(DATASETS[name].loader())


def test_the_names_cost_nothing_to_read():
    code = "import sys, balpoe.data.registry; print({'torch', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_files_are_not_loaded_into_memory_nor_the_other_way_round():
    with pytest.raises(UserError, match=r"known are digits-lt, cifar10-lt, cifar100-lt$"):
        load_data("places-lt")
    with pytest.raises(UserError, match="unknown data set 'digits-lt'"):
        load_files("digits-lt", None, Preprocessing((3, 32, 32)))


def two_blobs(name, root, download):
    """Points around -1 and 1: 40 of each class to train on, 10 to test on."""
    targets = torch.arange(100) % 2
    points = 0.3 * torch.randn(100, 4, generator=torch.Generator().manual_seed(0)) + (2 * targets - 1)[:, None]
    return Dataset(points[:80], targets[:80], ("low", "high")), Dataset(points[80:], targets[80:], ("low", "high"))


@pytest.fixture
def added(monkeypatch):
    monkeypatch.setitem(DATASETS, "blobs-lt", DatasetEntry("two clouds of points", two_blobs, in_memory=True))
    return Recipe(
        dataset="blobs-lt", imbalance_ratio=10, network="mlp", width=(8,), augmentation="none", epochs=3, batch_size=8,
        lr=0.05, warmup_epochs=0, shot_groups=(5, 20),
    )  # fmt: skip


def test_a_data_set_that_is_added_is_known_everywhere(added, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    parts = assemble(added)
    assert parts.train.class_counts.tolist() == [40, 4]
    assert len(assemble(updated(added, {"validation": 5})).test) == 10
    (tmp_path / "blobs.toml").write_text(
        'dataset = "blobs-lt"\nimbalance_ratio = 10\nnetwork = "mlp"\nwidth = [8]\naugmentation = "none"\nepochs = 3\n'
        "batch_size = 8\nlr = 0.05\nwarmup_epochs = 0\nshot_groups = [5, 20]\n"
    )
    assert main(["train", "blobs.toml"]) == 0
    assert (tmp_path / "runs" / "blobs" / "seed-0" / "evaluation.json").is_file()
    assert main(["data", "blobs-lt", "--imbalance-ratio", "10", "--shot-groups", "5,20"]) == 0
    assert "blobs-lt: 2 classes, 44 training samples (40 to 4 a class, imbalance ratio 10)" in capsys.readouterr().out
    assert main(["data", "blobs"]) == 2
    assert "did you mean 'blobs-lt'" in capsys.readouterr().err
    assert main(["data", "--help"]) == 0
    assert "two clouds" in capsys.readouterr().out


def test_without_a_long_tail_no_sample_is_left(added):
    even = updated(added, {"imbalance_ratio": 1})
    parts = assemble(even)
    assert (parts.train.class_counts.tolist(), parts.held_out) == ([40, 40], None)
    assert load_data_and_rest("blobs-lt", rest=10, imbalance_ratio=1)[2] is None
    with pytest.raises(UserError, match=r"none of blobs-lt are left at imbalance_ratio 1; add --no-calibrate, or take"):
        assemble(updated(even, {"calibrate": True}))
    with pytest.raises(UserError, match=r"training on blobs-lt leaves no sample at imbalance_ratio 1; take a larger"):
        validation_data("blobs-lt", imbalance_ratio=1)


def test_a_data_set_that_is_not_added_is_unknown():
    with pytest.raises(UserError, match="unknown dataset 'blobs-lt'"):
        Recipe(dataset="blobs-lt")
