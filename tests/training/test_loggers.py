import csv
import importlib
import json
import sys
from importlib.util import find_spec

import pytest

from balpoe import UserError
from balpoe.training.loggers import Tracking, check_tracking
from trainings import Stop, features, mlp, train

ROWS = [{"epoch": epoch, "lr": 0.1, "loss": 3.0 - epoch, "images_per_second": 100.0} for epoch in range(4)]


def scalars(folder):
    """What TensorBoard shows: for each curve its steps and values."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_a_training_is_logged_epoch_by_epoch(tmp_path):
    pytest.importorskip("tensorboard")
    data = features()
    history = train(data, mlp(data), run=tmp_path, track=("csv", "tensorboard"))
    timing = [json.loads(line) for line in (tmp_path / "timing.jsonl").read_text().splitlines()]
    with open(tmp_path / "history.csv", newline="") as stream:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(stream)]
    rates = [{"images_per_second": entry["images_per_second"]} for entry in timing]
    assert rows == [{**entry, **rate} for entry, rate in zip(history, rates, strict=True)]
    shown = scalars(tmp_path / "tensorboard")
    assert set(shown) == {"lr", "loss", "images_per_second"}
    for name, points in shown.items():
        assert points == [(row["epoch"], row[name]) for row in rows]


def test_on_the_command_line(tmp_path):
    from balpoe.cli.main import main

    command = ["train", "digits-lt", "--epochs", "2", "--device", "cpu", "--track", "csv", "--runs", str(tmp_path)]
    assert main(command) == 0
    lines = (tmp_path / "digits-lt-epochs-2" / "seed-0" / "history.csv").read_text().splitlines()
    assert lines[0] == "epoch,lr,loss,images_per_second"
    assert len(lines) == 1 + 2


def test_an_interrupted_training_goes_on_in_its_logs(tmp_path):
    pytest.importorskip("tensorboard")
    from balpoe import BalPoELoss, fit

    data = features()
    settings = {"epochs": 4, "batch_size": 16, "device": "cpu", "progress": False, "mixup_alpha": 0.0, "run": tmp_path}
    loss = BalPoELoss(data.class_counts, (1, 0, -1))
    with pytest.raises(KeyboardInterrupt):
        fit(mlp(data), Stop(loss, 12), data, track=("csv", "tensorboard"), **settings)
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 1 + 2
    history = fit(mlp(data), Stop(loss, 0), data, track=("csv", "tensorboard"), **settings)
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 1 + 4
    assert scalars(tmp_path / "tensorboard")["loss"] == [(entry["epoch"], entry["loss"]) for entry in history]


def test_epochs_that_were_logged_but_not_saved_are_shown_once(tmp_path):
    pytest.importorskip("tensorboard")
    with Tracking(("csv", "tensorboard"), tmp_path) as tracking:
        for done in (1, 2, 3):
            tracking.log(ROWS[:done])
    again = [ROWS[0], *({**row, "loss": row["loss"] + 0.5} for row in ROWS[1:])]
    with Tracking(("csv", "tensorboard"), tmp_path, done=1) as tracking:
        for done in (2, 3, 4):
            tracking.log(again[:done])
    assert scalars(tmp_path / "tensorboard")["loss"] == [(row["epoch"], row["loss"]) for row in again]
    losses = [line.split(",")[2] for line in (tmp_path / "history.csv").read_text().splitlines()]
    assert losses == ["loss", "3.0", "2.5", "1.5", "0.5"]


WANDB = """
class Error(Exception):
    pass

calls = []

class Run:
    def log(self, values, step):
        calls.append(("log", step, values))

    def finish(self):
        calls.append(("finish",))

def init(**settings):
    if settings["name"].startswith("stranger"):
        raise Error("No API key configured.\\nmore")
    calls.append(("init", settings))
    return Run()
"""


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """A module of this name that remembers what it is told, as the real one is not installed for tests."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(tmp_path / "package")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    yield importlib.import_module("wandb")
    sys.modules.pop("wandb", None)


def test_weights_and_biases(wandb, tmp_path):
    folder = tmp_path / "digits-lt" / "seed-0"
    for done in (0, 2):
        with Tracking(("wandb",), folder, done) as tracking:
            tracking.log(ROWS[: done + 1])
    (first, again), rest = [call[1] for call in wandb.calls if call[0] == "init"], wandb.calls[1:3]
    assert first == again  # the same id: the run goes on
    assert (first["project"], first["name"], first["resume"]) == ("balpoe", "digits-lt/seed-0", "allow")
    assert first["dir"] == str(folder)
    assert rest == [("log", 0, {"lr": 0.1, "loss": 3.0, "images_per_second": 100.0}), ("finish",)]
    assert wandb.calls[4][:2] == ("log", 2)
    other = tmp_path / "digits-lt" / "seed-1"
    Tracking(("wandb",), other)
    assert wandb.calls[-1][1]["id"] != first["id"]
    with pytest.raises(UserError, match=r"cannot be used: No API key configured; type `wandb login`, or set"):
        Tracking(("wandb",), tmp_path / "stranger" / "seed-0")


def test_what_is_missing_is_told_before_training_begins(tmp_path, monkeypatch):
    data = features()
    with pytest.raises(UserError, match="track tensorboard writes into the folder of a run, but there is none"):
        train(data, mlp(data), track=("tensorboard",))
    with pytest.raises(UserError, match="unknown track 'tensorbord'; did you mean 'tensorboard'"):
        train(data, mlp(data), run=tmp_path / "run", track=("tensorbord",))
    with monkeypatch.context() as patch:
        patch.setattr("balpoe.training.loggers.find_spec", lambda name: None)
        for name in ("tensorboard", "wandb"):
            with pytest.raises(UserError, match=f"track {name} needs a package .* type: pip install {name}"):
                train(data, mlp(data), run=tmp_path / "run", track=("csv", name))
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(find_spec("wandb") is not None, reason="wandb is installed")
def test_a_folder_is_not_taken_for_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(UserError, match="pip install wandb"):
        check_tracking(("wandb",), tmp_path)
