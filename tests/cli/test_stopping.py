"""What is said at an interrupt is true at that moment: Ctrl-C and SIGTERM wherever a command takes long."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from balpoe.cli import train_choice
from balpoe.data.npz import read_archive
from balpoe.data.user import inspection
from balpoe.experiments import cached_features
from balpoe.experiments.cost_estimate import UnitCosts
from balpoe.networks import ExpertNetwork
from balpoe.training.eager_step import EagerStep
from commands import QUICK, sentence
from images import picture_folder
from processes import ready_command

TINY = [
    *("--network", "test_efficientnet", "--image-size", "32", "--width", "16", "--weights", ""),
    *("--epochs", "2", "--workers", "0", "--device", "cpu", "--no-baseline"),
    "--no-calibrate",
]
COUNTS = {"ash": 14, "birch": 7, "cedar": 4}
GOES_ON = "nothing is lost, the same command goes on from here"
FROM_FILES = "the same command goes on from what was written last, if anything was"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(train_choice, "measured_costs", lambda *_: UnitCosts(0.0, 0.0, 0.0))  # calls are counted here


@pytest.fixture(autouse=True)
def _ctrl_c_is_heard():
    """What is started in the background of a shell ignores Ctrl-C; these tests do not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def stopping(call, at, number=signal.SIGINT):
    """The same function, during whose n-th call the signal comes; and the list of its calls."""
    calls = []

    def stopped(*arguments, **settings):
        calls.append(arguments)
        if len(calls) == at:
            signal.raise_signal(number)
        return call(*arguments, **settings)

    return stopped, calls


def raising(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_features(run, tmp_path, monkeypatch, number):
    command = ["train", picture_folder(tmp_path / "photos", COUNTS), *TINY]
    monkeypatch.setattr(cached_features, "FEATURES_AT_ONCE", 4)
    with monkeypatch.context() as patch:
        stopped, _ = stopping(ExpertNetwork.features, 3, number)
        patch.setattr(ExpertNetwork, "features", stopped)
        code, _, err = run(*command)
    assert code == 2
    assert f"stopped in features, 12 of 25; {GOES_ON}" in sentence(err)
    counted, calls = stopping(ExpertNetwork.features, 0)
    monkeypatch.setattr(ExpertNetwork, "features", counted)
    assert run(*command)[0] == 0
    assert sum(len(images) for _, images in calls) == 25 - 12
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def after_sigterm_to_all_processes(command, at, tmp_path):
    """What a command prints to which, and to whose processes that decode, SIGTERM comes, as a batch queue sends it."""
    cache = {"BALPOE_CACHE": os.environ["BALPOE_CACHE"]}
    process = ready_command([*map(str, command)], tmp_path / "printed", cache, module="slowly")
    printed, deadline = tmp_path / "printed.out", time.monotonic() + 60
    while not printed.exists() or printed.read_text().count("block\n") < at:
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    process.join(60)
    err = (tmp_path / "printed.err").read_text()
    assert process.exitcode == 2, err
    return sentence(err)


def test_sigterm_to_all_processes_in_features(tmp_path):
    photos = picture_folder(tmp_path / "photos", {"ash": 80, "birch": 20})
    said = after_sigterm_to_all_processes(
        ["train", photos, *TINY, "--workers", "1", "--runs", tmp_path / "runs"], 4, tmp_path
    )
    files = list((tmp_path / "cache" / "features").rglob("*.npz"))
    kept = sum(len(read_archive(path, ("digests", "features"))["digests"]) for path in files)
    assert kept in (6, 8)
    assert f"stopped in features, {kept} of 100; {GOES_ON}" in said


def test_sigterm_to_all_processes_while_images_stream_into_training(run, tmp_path):
    photos = picture_folder(tmp_path / "photos", {"ash": 20, "birch": 10})
    whole = ["--network", "resnet32", "--image-size", "16", "--width", "4", "--no-frozen"]
    slow = ["--epochs", "3", "--batch-size", "8", "--workers", "1", "--device", "cpu", "--augmentation", "none"]
    command = ["train", photos, *whole, *slow, "--no-baseline", "--no-calibrate", "--runs", tmp_path / "runs"]
    said = after_sigterm_to_all_processes(
        command, 5, tmp_path
    )  # epochs have 3 batches; the next one is made in advance
    assert f"stopped in epoch 2 of 3; {GOES_ON}" in said
    checkpoint = tmp_path / "runs" / "photos" / "seed-0" / "checkpoint.pt"
    state = torch.load(checkpoint, weights_only=True)
    assert state["epoch"] == 1
    assert 1 <= len(state["losses"]) <= 2
    code, out, _ = run(*command)
    assert code == 0
    assert "continues where it stopped" in out
    assert torch.load(checkpoint, weights_only=True)["history"][0] == state["history"][0]


def test_adapters_that_were_stopped_end_in_the_same_bytes(run, tmp_path, monkeypatch):
    command = [
        "train",
        picture_folder(tmp_path / "photos", COUNTS),
        *TINY,
        "--tune",
        "adapters",
        "--network",
        "test_vit",
    ]
    command += ["--batch-size", "8", "--adapter-split", "2", "--accumulate", "2"]
    assert run(*command, "--runs", "straight")[0] == 0
    with monkeypatch.context() as patch:
        stopped, _ = stopping(EagerStep.__call__, 5)
        patch.setattr(EagerStep, "__call__", stopped)
        code, _, err = run(*command)
    assert code == 2
    assert f"stopped in epoch 2 of 2; {GOES_ON}" in sentence(err)
    assert run(*command)[0] == 0
    for name in ("model.safetensors", "history.jsonl", "predictions/expert_logits.npy"):
        ours, theirs = (tmp_path / root / "photos" / "seed-0" / name for root in ("runs", "straight"))
        assert ours.read_bytes() == theirs.read_bytes(), name


def test_features_are_written_every_few_seconds(run, tmp_path, monkeypatch):
    """What a crash, of which nobody hears, leaves behind."""
    monkeypatch.setattr(cached_features, "FEATURES_AT_ONCE", 4)
    monkeypatch.setattr(cached_features, "SECONDS_BETWEEN_FILES", 0.0)
    written, calls = stopping(cached_features._keep, 0)
    monkeypatch.setattr(cached_features, "_keep", written)
    assert run("train", picture_folder(tmp_path / "photos", COUNTS), *TINY)[0] == 0
    assert [len(digests) for _, digests, _ in calls] == [4, 4, 4, 4, 4, 4, 1]  # 20 of training, 5 of the test


@pytest.mark.parametrize("verb", ["train", "data"])
def test_in_inspection(run, tmp_path, monkeypatch, verb):
    command = [verb, picture_folder(tmp_path / "photos", COUNTS), *(TINY if verb == "train" else ())]
    with monkeypatch.context() as patch:
        stopped, before = stopping(inspection._inspect_file, 9)
        patch.setattr(inspection, "_inspect_file", stopped)
        patch.setattr(inspection, "FILES_AT_ONCE", 4)
        code, _, err = run(*command)
    assert code == 2
    assert "stopped in looking through the files, 8 of 25" in sentence(err)
    assert GOES_ON in sentence(err)
    counted, after = stopping(inspection._inspect_file, 0)
    monkeypatch.setattr(inspection, "_inspect_file", counted)
    assert run(*command)[0] == 0
    assert len(before) + len(after) == 25  # no file was read twice


def test_in_evaluation(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("balpoe.evaluation.shifted_tests.full_evaluation", raising)
        code, _, err = run(*QUICK)
    assert code == 2
    assert sentence(err) == f"balpoe: stopped; {FROM_FILES}"
    folder = next(Path("runs").glob("*/seed-0"))
    checkpoint = (folder / "history.jsonl").read_text()
    code, out, _ = run(*QUICK)
    assert code == 0
    assert "continues where it stopped" in out
    assert (folder / "history.jsonl").read_text() == checkpoint
    assert len(torch.load(folder / "checkpoint.pt", weights_only=True)["timing"]) == 2


def test_a_second_ctrl_c_does_not_wait_and_does_not_boast(run, monkeypatch):
    from balpoe.training.loop import Trainer

    monkeypatch.setattr("balpoe.training.interrupts.PATIENCE", -1.0)
    twice, _ = stopping(stopping(Trainer._read, 1)[0], 1)
    monkeypatch.setattr(Trainer, "_read", twice)
    code, _, err = run(*QUICK)
    assert code == 2
    assert sentence(err) == f"balpoe: stopped; {FROM_FILES}"


@pytest.fixture
def trained(run, tmp_path):
    assert run("train", picture_folder(tmp_path / "photos", COUNTS), *TINY)[0] == 0
    return "runs/photos"


def test_in_report_and_evaluate(run, trained, tmp_path, monkeypatch):
    (tmp_path / "report.html").write_text("before")
    monkeypatch.setattr("balpoe.report.write.html_page", raising)
    code, _, err = run("report", trained)
    assert (code, sentence(err)) == (2, "balpoe: stopped; the same command begins anew")
    assert (tmp_path / "report.html").read_text() == "before"
    monkeypatch.setattr("balpoe.cli.evaluate_scores._print_evaluation", raising)
    code, _, err = run("evaluate", trained)
    assert (code, sentence(err)) == (2, "balpoe: stopped; the same command begins anew")


def test_in_predict(run, trained, tmp_path, monkeypatch):
    import balpoe.cli.predict_rows as predicting

    monkeypatch.setattr(predicting, "IMAGES_AT_ONCE", 10)
    real = predicting._Answers.__call__
    for out in (["--out", "x.csv"], []):
        stopped, _ = stopping(real, 2)
        monkeypatch.setattr(predicting._Answers, "__call__", stopped)
        code, text, err = run("predict", f"{trained}/seed-0", "photos", *out)
        assert code == 2
        assert sentence(err) == "balpoe: stopped in predicting, 10; the same command begins anew"
        assert not (tmp_path / "x.csv").exists()
        assert len(text.splitlines()) == (0 if out else 11)
        assert text.endswith("\n") or out
