import json
import tomllib
from pathlib import Path

import pytest
import torch

import balpoe
from balpoe import UserError, evaluate
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import Recipe, updated
from balpoe.experiments.run_folder import Run, runs_of, set_aside, source_digest, train_run
from balpoe.experiments.run_names import run_folder
from balpoe.files import locked

QUICK = updated(preset("digits-lt"), {"epochs": 2, "width": (8,)})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "quick" / "seed-0"
    return train_run(QUICK, folder, progress=False)


def test_what_a_run_leaves_behind(finished):
    files = {str(path.relative_to(finished.folder)) for path in finished.folder.rglob("*") if path.is_file()}
    assert files == {
        ".lock", "recipe.toml", "environment.json", "classes.json", "history.jsonl", "timing.jsonl", "checkpoint.pt",
        "model.safetensors", "predictions/expert_logits.npy", "predictions/targets.npy", "predictions/predictions.json",
        "evaluation.json",
    }  # fmt: skip
    assert finished.name == "quick/seed-0"
    assert finished.recipe() == QUICK
    assert finished.seconds() > 0
    environment = json.loads((finished.folder / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert str(Path.home()) not in (finished.folder / "environment.json").read_text()


def test_the_weights_are_safetensors_of_the_trained_network(finished):
    from safetensors.torch import load_file

    from balpoe.evaluation.forward import predict
    from balpoe.experiments.build import assemble

    parts = assemble(QUICK)
    parts.network.load_state_dict(load_file(finished.folder / "model.safetensors"))
    again = predict(parts.network, parts.test, class_counts=parts.train.class_counts, lambdas=QUICK.expert_lambdas)
    torch.testing.assert_close(again.expert_logits, finished.predictions().expert_logits)


def test_seeds_side_by_side_read_their_data_once(monkeypatch, tmp_path):
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import replace

    from balpoe.data.registry import DATASETS
    from balpoe.experiments.build import _last_read, assemble

    reads, digits = [], DATASETS["digits-lt"]
    counted = replace(digits, load=lambda *where: reads.append(where) or digits.loader()(*where))
    monkeypatch.setitem(DATASETS, "digits-lt", counted)
    monkeypatch.setenv("BALPOE_DATA", "data")
    monkeypatch.chdir(tmp_path)
    _last_read.cache_clear()
    with ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(assemble, [updated(QUICK, {"seed": seed}) for seed in range(3)]))
    assert assemble(updated(QUICK, {"calibrate": True})).held_out is not None  # what calibrates, too
    assert reads == [("digits-lt", None, False)]
    assert all(part.train is parts[0].train and part.test is parts[0].test for part in parts)
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    assert assemble(QUICK).train is not parts[0].train
    assert len(assemble(updated(QUICK, {"imbalance_ratio": 10.0})).train) != len(parts[0].train)
    assert len(reads) == 3
    monkeypatch.setenv("BALPOE_DATA", "elsewhere")
    assemble(updated(QUICK, {"imbalance_ratio": 10.0}))
    assert len(reads) == 4


def test_the_saved_evaluation_is_that_of_the_saved_predictions(finished):
    saved = finished.evaluation()
    again = evaluate(finished.predictions(), shot_groups=(10, 50)).to_dict()
    for name in ("accuracy", "balanced_accuracy", "many", "medium", "few", "ece", "mce", "nll", "brier", "parameters"):
        assert saved[name] == again[name]
    assert [row["name"] for row in saved["shifted"]][5] == "uniform"
    classes = json.loads((finished.folder / "classes.json").read_text())
    assert classes["counts"] == [124, 80, 51, 33, 21, 14, 9, 5, 3, 2]
    assert classes["preprocessing"]["size"] == [1, 8, 8]


def test_what_is_published_of_a_run(finished):
    record = finished.record()
    assert updated(Recipe(), record["recipe"]) == updated(QUICK, {"data_root": ""})
    assert record["evaluation"] == finished.evaluation()
    assert record["environment"]["balpoe"]
    assert record["seconds"] == finished.seconds()
    assert record["steps"] == ["eager"]
    assert record["loss"] == json.loads((finished.folder / "history.jsonl").read_text().splitlines()[-1])["loss"]
    assert set(record["environment"]["packages"]) >= {"torch", "triton"}
    assert record["environment"]["source"] == source_digest(Path(balpoe.__file__).parent)


def test_the_digest_of_code(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text("x = 1\n")
    (tmp_path / "a" / "b.pyc").write_text("no code")
    before = source_digest(tmp_path)
    (tmp_path / "a" / "b.pyc").write_text("other")
    assert source_digest(tmp_path) == before
    (tmp_path / "a" / "b.py").write_text("x = 2\n")
    changed = source_digest(tmp_path)
    (tmp_path / "a" / "b.py").rename(tmp_path / "b.py")
    assert len({before, changed, source_digest(tmp_path)}) == 3


def test_a_finished_run_is_left_alone(finished):
    before = (finished.folder / "evaluation.json").stat().st_mtime_ns
    train_run(QUICK, finished.folder, progress=False)
    assert (finished.folder / "evaluation.json").stat().st_mtime_ns == before


def start(folder, recipe):
    folder.mkdir(parents=True)
    from balpoe.experiments.recipe import recipe_toml

    (folder / "recipe.toml").write_text(recipe_toml(recipe))


def test_a_run_in_use_is_refused(tmp_path):
    with locked(tmp_path / "busy"), pytest.raises(UserError, match="in use by another process"):
        train_run(QUICK, tmp_path / "busy", progress=False)


def test_setting_aside_loses_nothing(tmp_path):
    assert set_aside(tmp_path / "seed-0") is None
    for number in (1, 2):
        (tmp_path / "seed-0").mkdir()
        (tmp_path / "seed-0" / "file").write_text(str(number))
        assert set_aside(tmp_path / "seed-0") == tmp_path / f"seed-0.before-{number}"
    assert (tmp_path / "seed-0.before-1" / "file").read_text() == "1"


def test_finding_runs(finished, tmp_path):
    assert [run.folder for run in runs_of(finished.folder)] == [finished.folder]
    for seed in (10, 2):
        start(tmp_path / f"seed-{seed}", updated(QUICK, {"seed": seed}))
    start(tmp_path / "seed-2.before-1", QUICK)  # set aside by --fresh
    assert [run.folder.name for run in runs_of(tmp_path)] == ["seed-2", "seed-10"]
    with pytest.raises(UserError, match="neither a run nor a folder with runs"):
        runs_of(tmp_path / "nothing")
    with pytest.raises(UserError, match="not finished; continue it"):
        Run(tmp_path / "seed-2").evaluation()
    with pytest.raises(UserError, match="not the folder of a run"):
        Run(tmp_path / "nothing").predictions()
    (tmp_path / "seed-2" / "recipe.toml").write_text("epochs = -3")
    with pytest.raises(UserError, match=r"recipe\.toml: epochs must be at least 0"):
        Run(tmp_path / "seed-2").recipe()


def test_recipe_file_is_complete_toml(finished):
    values = tomllib.loads((finished.folder / "recipe.toml").read_text())
    assert updated(Recipe(), values) == QUICK


def test_what_is_wrong_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.delenv("BALPOE_DATA", raising=False)
    with pytest.raises(UserError, match="BALPOE_DATA"):
        train_run(preset("cifar100-lt"), tmp_path / "run" / "seed-0")
    assert not list(tmp_path.iterdir())


def test_a_run_that_cannot_be_trained_leaves_its_name_free(tmp_path, monkeypatch):
    def fit(*arguments, **settings):
        raise UserError("a step of 32 samples in 1 part does not fit into the memory of the GPU; add --accumulate 4")

    monkeypatch.setattr("balpoe.training.fit.fit_and_predict", fit)
    folder, other = tmp_path / "mine" / "seed-0", updated(QUICK, {"accumulate": 4})
    with pytest.raises(UserError, match="--accumulate 4"):
        train_run(QUICK, folder)
    assert run_folder(tmp_path, "mine", other, fixed=True) == folder
    (folder / "history.jsonl").touch()
    with pytest.raises(UserError, match="--accumulate 4"):
        train_run(QUICK, folder)
    with pytest.raises(UserError, match="holds a run of another recipe"):
        run_folder(tmp_path, "mine", other, fixed=True)
