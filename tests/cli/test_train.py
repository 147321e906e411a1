"""Training from the command line: runs, their names, and what goes wrong on the way."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import QUICK, sentence
from processes import ready_command


def test_train_evaluate_and_train_again(run, tmp_path):
    code, out, err = run(*QUICK)
    assert code == 0
    assert "differs from digits-lt (width 8, epochs 2): its runs are kept in runs/digits-lt-width-8-epochs-2" in out
    assert "Next: balpoe evaluate runs/digits-lt-width-8-epochs-2/seed-0" in out
    assert "BalPoE, seed 0  epoch 2/2" in err
    assert "samples/s" in err
    folder = tmp_path / "runs" / "digits-lt-width-8-epochs-2" / "seed-0"
    assert (folder / "evaluation.json").exists()
    code, out, _ = run(*QUICK)
    assert code == 0
    assert "is finished already; --fresh trains it anew" in out
    code, out, _ = run(*QUICK, "--fresh")
    assert code == 0
    assert "The earlier run is kept in runs/digits-lt-width-8-epochs-2/seed-0.before-1" in out
    code, out, _ = run("evaluate", folder, "--baseline", f"{folder}.before-1", "--shot-groups", "5,100")
    assert code == 0
    for text in (
        "ensemble",
        "expert, lambda 1",
        "expert, lambda -1",
        "95 % intervals",
        "backward-50",
        "parameters",
        "balanced +0.0",
    ):
        assert text in out


def test_seeds_name_and_mean(run):
    code, out, _ = run(*QUICK, "--seeds", "1,2", "--name", "mine")
    assert code == 0
    assert "2 seeds" in out
    assert "±" in out
    assert "Next: balpoe evaluate runs/mine" in out
    code, out, _ = run("evaluate", "runs/mine")
    assert code == 0
    assert "±" in out
    code, out, _ = run("evaluate", "runs/mine", "--baseline", "runs/mine")
    assert code == 0
    assert "mine minus mine, seed by seed, mean and deviation of 2: accuracy +0.0 ± 0.0, balanced +0.0 ± 0.0" in out
    code, out, _ = run("evaluate", "runs/mine/seed-2", "--baseline", "runs/mine")
    assert code == 0
    assert "mine/seed-2 minus mine/seed-2, 95 % paired intervals: accuracy +0.0 (-0.1 to +0.1)" in out
    code, _, err = run(*QUICK, "--seed", "1", "--name", "mine", "--lr", "0.5")
    assert code == 2
    assert "choose another --name" in sentence(err)
    code, _, err = run(*QUICK, "--seed", "1", "--name", "mine", "--lr", "0.5", "--fresh")
    assert code == 2
    assert "runs/mine also holds seed 2 of another recipe (yours has lr 0.5)" in sentence(err)
    assert not Path("runs/mine/seed-1.before-1").exists()
    assert run(*QUICK, "--seeds", "1,2", "--name", "mine", "--lr", "0.5", "--fresh")[0] == 0


def test_a_name_that_is_taken_is_refused_before_cross_entropy_is_trained(run, tmp_path):
    np.savez(tmp_path / "x.npz", features=np.eye(8).repeat(5, 0), labels=np.arange(40) % 2)
    train = ["train", "x.npz", "--name", "z", "--no-calibrate", "--epochs", "1", "--width", "4", "--device", "cpu"]
    assert run(*train, "--seeds", "0,1", "--no-baseline")[0] == 0
    for flags in (["--fresh"], []):
        code, _, err = run(*train, "--seed", "0", "--lr", "0.01", *flags)
        assert code == 2
        assert "of another recipe (yours has lr 0.01); choose another --name" in sentence(err)
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["z"]


def test_a_recipe_file(run, tmp_path):
    code, out, _ = run("recipes", "digits-lt")
    assert code == 0
    Path("mine.toml").write_text(out.replace("epochs = 60", "epochs = 1"))
    code, out, _ = run("train", "mine.toml", "--width", "8")
    assert code == 0
    assert (tmp_path / "runs" / "mine-width-8" / "seed-0" / "evaluation.json").exists()


def test_as_released(run):
    assert run("train", "digits-lt", "--as-released", "--epochs", "1", "--width", "8")[0] == 0
    assert Path("runs/digits-lt-as-released-width-8-epochs-1/seed-0/evaluation.json").exists()


@pytest.mark.filterwarnings("default:lambdas average")
def test_lambdas_that_do_not_average_to_zero_are_noted(run):
    code, _, err = run(*QUICK, "--lambdas", "1,0")
    assert code == 0
    assert "balpoe: note: lambdas average to 0.5" in err


def test_a_loss_that_diverges(run, tmp_path):
    wild = (*QUICK, "--lr", "1e6", "--weight-decay", "1e6")
    code, _, err = run(*wild, "--name", "wild", "--checkpoint-seconds", "0")
    assert code == 2
    assert re.search("the loss became (nan|inf) in epoch 1 of 2, step ", sentence(err))
    assert not (tmp_path / "runs" / "wild" / "seed-0" / "checkpoint.pt").exists()


def test_checkpoints_that_cannot_be_used(run, tmp_path):
    folder = tmp_path / "runs" / "digits-lt-width-8-epochs-2" / "seed-0"
    run(*QUICK)
    whole = (folder / "checkpoint.pt").read_bytes()
    (folder / "evaluation.json").unlink()
    contents = {
        b"": "cannot be read as a checkpoint",
        whole[:1000]: "cannot be read as a checkpoint",
        b"cos\nsystem\n(S'touch pwned'\ntR.": "cannot be read as a checkpoint",
    }
    for content, expected in contents.items():
        (folder / "checkpoint.pt").write_bytes(content)
        code, _, err = run(*QUICK)
        assert code == 2
        assert expected in sentence(err)
        assert (folder / "checkpoint.pt").read_bytes() == content
    assert not (tmp_path / "pwned").exists()
    (folder / "checkpoint.pt").write_bytes(whole)
    assert run(*QUICK)[0] == 0


def test_a_full_disk_while_training(run, tmp_path, monkeypatch):
    import errno

    real = os.fsync
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) >= 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = run(*QUICK, "--checkpoint-seconds", "0")
    assert code == 2
    assert "no space left on device; what was there before is kept" in sentence(err)
    assert not list(tmp_path.rglob(".*.part"))
    monkeypatch.setattr(os, "fsync", real)
    assert run(*QUICK, "--checkpoint-seconds", "0")[0] == 0


@pytest.fixture(params=["60k", "100k", "150k"])
def small_disk(tmp_path, request):
    """A real file system with room for no checkpoint, for one, and for all but the predictions."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(run, small_disk):
    command = ["train", "digits-lt", "--epochs", "3", "--width", "32", "--threads", "1", "--checkpoint-seconds", "0"]
    code, _, err = run(*command, "--runs", small_disk)
    assert code == 2
    assert "no space left on device" in sentence(err) or "the disk may be full" in sentence(err)
    assert not list(small_disk.rglob(".*.part"))
    for path in small_disk.rglob("checkpoint.pt"):
        assert torch.load(path, weights_only=True)["epoch"] >= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("default:.*continues with 1 process where 2 began")
@pytest.mark.parametrize("devices", ["1", "2"])
def test_ctrl_c_on_the_command_line(run, tmp_path, devices):
    """A real Ctrl-C to the whole group of processes; the same command then goes on to the end."""
    command = [
        "train", "digits-lt", "--epochs", "80", "--batch-size", "512", "--threads", "1", "--checkpoint-seconds", "0",
        "--runs", str(tmp_path), "--name", "mine", "--devices", devices,
    ]  # fmt: skip
    checkpoint = tmp_path / "mine" / "seed-0" / "checkpoint.pt"
    process = ready_command(command, tmp_path / "printed")
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    process.join(60)
    err = (tmp_path / "printed.err").read_text()
    assert process.exitcode == 2, err
    assert "Traceback" not in err
    assert "stopped in epoch" in sentence(err)
    assert "of 80; nothing is lost, the same command goes on from here" in sentence(err)
    before = torch.load(checkpoint, weights_only=True)["epoch"]
    assert 0 < before < 80
    code, out, err = run(*command, "--devices", "1", "--checkpoint-seconds", "5")
    assert code == 0, err
    assert "continues where it stopped" in out


@pytest.mark.slow
def test_two_devices_on_the_command_line(run, tmp_path, ready_processes):
    code, _, _ = run(*QUICK, "--devices", "2", "--device", "cpu", "--name", "two")
    assert code == 0
    code, _, _ = run(*QUICK, "--name", "one")
    assert code == 0
    one, two = ((tmp_path / "runs" / name / "seed-0" / "history.jsonl").read_text() for name in ("one", "two"))
    import json

    for a, b in zip(one.splitlines(), two.splitlines(), strict=True):
        assert json.loads(a)["loss"] == pytest.approx(json.loads(b)["loss"], abs=1e-5)


def test_places_that_cannot_be_used(run, tmp_path):
    (tmp_path / "afile").write_text("")
    code, _, err = run(*QUICK, "--runs", "afile")
    assert code == 2
    assert "cannot use the folder afile/digits-lt-width-8-epochs-2/seed-0: not a directory" in sentence(err)
    (tmp_path / "plain.toml").write_text("epochs = 1\n")
    code, _, err = run("train", "plain.toml", "--as-released")
    assert code == 2
    assert "this file does not name one" in sentence(err)
    code, _, _ = run(*QUICK, "--lambdas", ",".join(["0.123456"] * 60))  # a name longer than file systems take
    assert code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits-lt-2"]


def test_fresh_touches_nothing_that_is_in_use_or_cannot_be_trained(run, tmp_path):
    from balpoe.files import locked

    folder = tmp_path / "runs" / "mine" / "seed-0"
    run(*QUICK, "--name", "mine")
    with locked(folder):
        code, _, err = run(*QUICK, "--name", "mine", "--fresh")
    assert code == 2
    assert "is in use by another process" in sentence(err)
    code, _, err = run(*QUICK, "--name", "mine", "--fresh", "--split", "9")
    assert code == 2
    assert [path.name for path in folder.parent.iterdir()] == ["seed-0"]
    assert run("evaluate", folder)[0] == 0


def test_a_changed_file_says_where_its_runs_are(run, tmp_path):
    file = tmp_path / "my.toml"
    for epochs in (1, 2):
        file.write_text(f'preset = "digits-lt"\nepochs = {epochs}\nwidth = [8]\n')
        code, out, _ = run("train", "my.toml")
        assert code == 0
    assert "The recipe differs from my (epochs 2): its runs are kept in runs/my-epochs-2" in out
    close = ("--lr", "0.0123454"), ("--lr", "0.0123451")
    for flags in close:
        code, out, _ = run(*QUICK, *flags)
        assert f"kept in runs/digits-lt-width-8-epochs-2-lr-{flags[1]}" in out
        assert f"Next: balpoe evaluate runs/digits-lt-width-8-epochs-2-lr-{flags[1]}/seed-0" in out


def test_seeds_side_by_side_as_on_a_gpu(run, monkeypatch, tmp_path):
    """The same runs, whether one after the other or in turns."""
    run(*QUICK, "--seeds", "1,2", "--name", "apart")
    monkeypatch.setattr("balpoe.cli.train_seeds.can_share_a_gpu", lambda *_: True)
    code, out, _ = run(*QUICK, "--seeds", "1,2", "--name", "together")
    assert code == 0
    assert "2 seeds" in out
    for seed in (1, 2):
        for name in ("history.jsonl", "evaluation.json", "model.safetensors"):
            paths = [tmp_path / "runs" / kind / f"seed-{seed}" / name for kind in ("apart", "together")]
            assert paths[0].read_bytes() == paths[1].read_bytes(), name
