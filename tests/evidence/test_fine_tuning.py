"""docs/fine-tuning.md against the records, and its benchmarks in their small configuration."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from balpoe import expert_network
from balpoe.evaluation.shifted_tests import shifted_test_sets
from made_predictions import make
from scripts import script

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fine-tuning.md").read_text(encoding="utf-8")


def test_every_table_is_made_from_the_records():
    assert script("docs/fine_tuning_tables.py").tuned(PAGE, ROOT / "results") == PAGE


def test_an_interval_of_differences_is_student_s():
    assert script("docs/fine_tuning_tables.py").student_interval([0.01, 0.02, 0.03]) == "+2.0 (-0.5 to +4.5)"


def test_a_step_of_each_way_is_measured(tmp_path, monkeypatch, capsys):
    benchmark, out = script("benchmarks/adapter_step.py"), tmp_path / "adapter_step.json"
    monkeypatch.setattr("sys.argv", ["adapter_step.py", "--small", "--out", str(out)])
    benchmark.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["way"] for row in rows] == list(benchmark.WAYS)
    full, *others = rows
    assert all(row["trained"] < full["trained"] for row in others)
    assert all(row["faster"] == row["images_per_second"] / full["images_per_second"] for row in rows)
    failed = benchmark.attempt("resnet32", "lora", 2, "auto", benchmark.Setting("cpu", 32, 0.01))
    assert "Error" in failed["error"]
    assert "Error" in benchmark.line(failed)


@pytest.fixture
def photographs(tmp_path):
    """Two classes in the layout of Tiny-ImageNet, six images and two test images each."""
    folder = tmp_path / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for number, wnid in enumerate(("n01", "n02")):
        place = folder / "train" / wnid / "images"
        place.mkdir(parents=True)
        for each in range(6):
            Image.new("RGB", (64, 64), (200 * number, 20 * each, 0)).save(place / f"{wnid}_{each}.JPEG")
        for each in range(2):
            name = f"val_{number}_{each}.JPEG"
            Image.new("RGB", (64, 64), (200 * number, 50, 0)).save(folder / "val" / "images" / name)
            lines.append(f"{name}\t{wnid}")
    (folder / "wnids.txt").write_text("n01\nn02\n")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines))
    return tmp_path


def test_pretraining_leaves_weights_that_a_network_reads(photographs, monkeypatch, capsys):
    out = photographs / "out"
    flags = {"data": photographs, "out": out, "record": out / "r.json", "network": "test_vit", "epochs": 1,
             "batch-size": 6, "workers": 0, "minutes": 5}  # fmt: skip
    monkeypatch.setattr("sys.argv", ["x", *(f"--{name}={value}" for name, value in flags.items())])
    benchmark = script("benchmarks/pretrain_vit.py")
    trained = []
    monkeypatch.setattr(benchmark, "accuracy", lambda network, test: trained.append(network) or 0.5)
    benchmark.main()
    record = json.loads((out / "r.json").read_text())
    assert (record["images"], record["test_images"], record["epochs_done"], record["finished"]) == (12, 4, 1, True)
    path = str(out / "test_vit.tiny_imagenet.safetensors")
    found = expert_network("test_vit", num_classes=3, weights=path, image_size=64).trunk.state_dict()
    for name, tensor in trained[-1].trunk.state_dict().items():
        assert torch.equal(found[name], tensor)
        assert torch.equal(tensor, tensor.bfloat16().float())
    assert "lr = 0.0015" in (out / "test_vit.tiny_imagenet.toml").read_text()


@pytest.mark.parametrize(("direction", "place"), [("forward", 0), ("backward", -1)])
def test_under_a_shifted_prior_runs_are_compared_by_the_accuracies_of_their_records(direction, place):
    benchmark, predictions = script("benchmarks/transfer.py"), make(samples=4000, lambdas=(1, 0, -1))
    ours = benchmark.under_shift(predictions, direction)
    expected = shifted_test_sets(predictions)[place]
    assert expected.name == f"{direction}-{benchmark.RATIO}"
    assert len(ours) == expected.samples
    assert float((ours.logits.argmax(dim=1) == ours.targets).double().mean()) == pytest.approx(expected.adjusted)


def test_cross_entropy_is_compared_adjusted():
    benchmark = script("benchmarks/transfer.py")
    plain, ours = make(samples=400, lambdas=(1,)), make(samples=400)
    assert benchmark.balanced(plain).source_prior == pytest.approx(torch.full((20,), 0.05))
    assert benchmark.balanced(ours) is ours


def test_pairs_whose_runs_are_not_here_keep_their_recorded_rows(tmp_path, monkeypatch, capsys):
    benchmark, out = script("benchmarks/transfer.py"), tmp_path / "transfer.json"
    pairs = [benchmark.Pair(name, "rival") for name in ("absent", "fewer", "equal", "never", "new")]
    score = {"value": 0.0, "low": 0.0, "high": 0.0}
    scores = {place: dict.fromkeys(names, score) for place, names in benchmark.METRICS.items()}
    recorded = [{**pair._asdict(), "seeds": 2, **scores, "from": "record"} for pair in pairs[:3]]
    out.write_text(json.dumps({"ratio": 50, "rows": recorded[::-1]}))  # in any order
    here = {"fewer": 1, "equal": 2, "new": 1}

    class Pool:
        """In this process, with runs of some pairs."""

        __init__ = __exit__ = lambda *_: None
        __enter__ = lambda self: self  # noqa: E731
        map = staticmethod(lambda _, pairs: [
            {**pair._asdict(), "seeds": here[pair.ours], **scores} if pair.ours in here else None for pair in pairs
        ])  # fmt: skip

    monkeypatch.setattr(benchmark, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr("sys.argv", ["transfer.py", "--out", str(out)])
    benchmark.main(pairs)
    rows = json.loads(out.read_text())["rows"]
    assert [(row["ours"], row["seeds"], row.get("from")) for row in rows] == [
        ("absent", 2, "record"), ("fewer", 2, "record"), ("equal", 2, None), ("new", 1, None)
    ]  # fmt: skip
