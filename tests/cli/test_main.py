import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from balpoe import Predictions, evaluate, load_predictions
from balpoe.cli.main import main

QUICK = ["train", "digits-lt", "--epochs", "2", "--width", "8", "--threads", "1"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; return exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def sentence(err):
    """The one line that a mistake prints."""
    lines = [line for line in err.splitlines() if line.startswith("balpoe: ")]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]


def test_train_evaluate_and_train_again(run, tmp_path):
    code, out, err = run(*QUICK)
    assert code == 0
    assert "The recipe differs from digits-lt: its runs are kept in runs/digits-lt-width-8-epochs-2" in out
    assert "Next: balpoe evaluate runs/digits-lt-width-8-epochs-2/seed-0" in out
    assert "epoch 2/2" in err
    assert "images/s" in err
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
    assert "mine/seed-2 minus mine/seed-2, 95 % paired intervals: accuracy +0.0 (+0.0 to +0.0)" in out
    code, _, err = run(*QUICK, "--seed", "1", "--name", "mine", "--lr", "0.5")
    assert code == 2
    assert "choose another --name" in sentence(err)


def test_a_recipe_file(run, tmp_path):
    code, out, _ = run("recipes", "digits-lt")
    assert code == 0
    Path("mine.toml").write_text(out.replace("epochs = 60", "epochs = 1"))
    code, out, _ = run("train", "mine.toml", "--width", "8")
    assert code == 0
    assert (tmp_path / "runs" / "mine-width-8" / "seed-0" / "evaluation.json").exists()


def test_lambdas_with_a_leading_minus(run, tmp_path):
    for arguments in (["--lambdas", "-1,0,1"], ["--lambdas=-1,0,1"]):
        code, _, _ = run(*QUICK, *arguments, "--name", "minus")
        assert code == 0
    assert "lambdas = [-1.0, 0.0, 1.0]" in (tmp_path / "runs" / "minus" / "seed-0" / "recipe.toml").read_text()


@pytest.mark.filterwarnings("default:lambdas average")
def test_lambdas_that_do_not_average_to_zero_are_noted(run):
    code, _, err = run(*QUICK, "--lambdas", "1,0")
    assert code == 0
    assert "balpoe: note: lambdas average to 0.5" in err


def test_recipes_and_data(run):
    code, out, _ = run("recipes")
    assert code == 0
    assert "cifar100-lt-long" in out
    assert "55.9" in out
    code, out, _ = run("recipes", "cifar100-lt", "--as-released")
    assert "cosine_scale = 30.0" in out
    assert run("train", "digits-lt", "--as-released", "--epochs", "1", "--width", "8")[0] == 0
    assert Path("runs/digits-lt-as-released-width-8-epochs-1/seed-0/evaluation.json").exists()
    code, out, _ = run("data", "digits-lt", "--imbalance-ratio", "10")
    assert code == 0
    assert "10 classes" in out
    assert "shot groups: " in out


@pytest.mark.data
def test_data_of_cifar(run, cifar_root):
    code, out, _ = run("data", "cifar100-lt", "--data-root", cifar_root)
    assert code == 0
    assert "100 classes, 10,847 training samples (500 to 5 a class, imbalance ratio 100)" in out
    assert "shot groups: 35 many, 35 medium, 30 few" in out


def test_help_and_version(run, capsys):
    code, out, _ = run()
    assert code == 0
    assert "COMMAND" in out
    for arguments in (["--help"], ["train", "--help"], ["--version"]):
        assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "--imbalance-ratio X" in out
    assert "balpoe 0." in out


MISTAKES = {
    "unknown command": (["trian"], "unknown command 'trian'; did you mean 'train'?"),
    "unknown recipe": (["train", "cifar100lt"], "unknown recipe 'cifar100lt'; did you mean 'cifar100-lt'?"),
    "unknown recipe to print": (["recipes", "digit-lt"], "did you mean 'digits-lt'?"),
    "unknown field": (["train", "digits-lt", "--epoch", "3"], "unknown option '--epoch'; did you mean '--epochs'?"),
    "abbreviation": (["train", "digits-lt", "--imbalance", "3"], "unknown option '--imbalance'"),
    "unknown data": (["data", "cifar99-lt"], "unknown data set 'cifar99-lt'"),
    "range": ([*QUICK[:2], "--epochs", "-1"], "epochs must be at least 1, but is -1"),
    "type": ([*QUICK[:2], "--epochs", "ten"], "epochs must be a whole number, but is 'ten'"),
    "nan": ([*QUICK[:2], "--lambdas=1,nan"], "lambdas must be a finite number, but is nan"),
    "choice": ([*QUICK[:2], "--schedule", "cosin"], "unknown schedule 'cosin'; did you mean 'cosine'?"),
    "experts": ([*QUICK, "--lambdas", "1,0", "--num-experts", "3"], "lambdas describes 2 experts but num_experts is 3"),
    "ratio": (
        [*QUICK, "--imbalance-ratio", "0.01"],
        "imbalance_ratio must be at least 1, but is 0.01; did you mean 100?",
    ),
    "empty class": ([*QUICK, "--imbalance-ratio", "1000"], "class 7 would keep no sample of 124"),
    "split": ([*QUICK, "--split", "9"], "split must be 0 to 2"),
    "seeds": ([*QUICK, "--seeds", "1,x"], "--seeds wants whole numbers"),
    "seed and seeds": ([*QUICK, "--seed", "1", "--seeds", "1,2"], "give --seed or --seeds, not both"),
    "missing file": (["train", "nowhere.toml"], "cannot read nowhere.toml: no such file or directory; check the path"),
    "missing run": (["evaluate", "runs/none"], "runs/none is neither a run nor a folder with runs"),
    "missing value": (["train", "digits-lt", "--epochs"], "argument --epochs: expected one argument"),
    "missing argument": (["train"], "the following arguments are required: NAME|FILE"),
    "one word too many": (["train", "digits-lt", "again"], "'again' is one word too many"),
    "no data": (["train", "cifar100-lt"], "CIFAR100 is not bundled"),
    "absent data": (["train", "cifar100-lt", "--data-root", "."], "cifar-100-python/train is missing"),
    "no GPU": ([*QUICK, "--device", "cuda"], "torch sees no GPU here"),
    "no Apple GPU": ([*QUICK, "--device", "mps"], "torch sees none here"),
    "option that is a word": (["evaluate", "x", "--rum", "1"], "unknown option '--rum'; known are --help, --baseline"),
    "estimate alone": (["evaluate", "x", "--prior", "estimate"], "give --validation PATH"),
    "validation alone": (["evaluate", "x", "--validation", "y"], "--validation serves --prior estimate alone"),
    "prior and baseline": (["evaluate", "x", "--prior", "train", "--baseline", "y"], "leave out --prior"),
    "missing predictions": (["evaluate", "x.npz"], "cannot read x.npz: no such file or directory; check the path"),
    "seed twice": ([*QUICK, "--seeds", "1,2,1"], "--seeds names a seed twice: 1,2,1"),
    "hole in a list": ([*QUICK, "--lambdas=1,,-1"], "lambdas must be numbers with commas between, but is '1,,-1'"),
    "name with a slash": ([*QUICK, "--name", "../evil"], "--name wants the name of a folder, without slashes"),
    "empty name": ([*QUICK, "--name", ""], "--name wants the name of a folder"),
    "huge seed": ([*QUICK, "--seed", "9" * 400], "seed must be below 9223372036854775808, but is 9999"),
    "huge rate": ([*QUICK, "--lr", "1e300"], "lr must be at most 1000000.0, but is 1e+300"),
    "long path": (["evaluate", "a" * 5000], "cannot use"),
    "text that is none": ([*QUICK, "--data-root", "a\udcff"], "data_root must be text"),
    "processes": ([*QUICK, "--batch-size", "2", "--devices", "3"], "batch_size 2 is too small for 3 processes"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_get_one_sentence_and_leave_nothing(run, tmp_path, monkeypatch, name):
    if name == "no GPU" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.delenv("BALPOE_DATA", raising=False)
    arguments, expected = MISTAKES[name]
    code, _, err = run(*arguments)
    assert code == 2
    assert expected in sentence(err)
    assert "usage" not in err
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in (".lock",)]
    assert not [path for path in left if path.name in ("checkpoint.pt", "model.safetensors", "evaluation.json")]


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
@pytest.mark.parametrize("devices", ["1", "2"])
def test_ctrl_c_on_the_command_line(tmp_path, devices):
    """A real Ctrl-C to the whole group of processes; the same command then goes on to the end."""
    command = [
        sys.executable, "-m", "balpoe", "train", "digits-lt", "--epochs", "200", "--width", "8", "--threads", "1",
        "--checkpoint-seconds", "0", "--runs", str(tmp_path), "--devices", devices,
    ]  # fmt: skip
    checkpoint = tmp_path / "digits-lt-width-8-epochs-200" / "seed-0" / "checkpoint.pt"
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    assert "stopped in epoch" in sentence(err)
    assert "of 200; nothing is lost, the same command goes on from here" in sentence(err)
    before = torch.load(checkpoint, weights_only=True)["epoch"]
    assert 0 < before < 200
    again = subprocess.run(
        [*command, "--devices", "1", "--checkpoint-seconds", "5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert again.returncode == 0, again.stderr
    assert "continues where it stopped" in again.stdout


@pytest.mark.slow
def test_two_devices_on_the_command_line(run, tmp_path):
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
    assert len(next((tmp_path / "runs").glob("digits-lt-*")).name) == 150


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
    assert "The recipe differs from my: its runs are kept in runs/my-epochs-2" in out
    close = ("--lr", "0.0123454"), ("--lr", "0.0123451")
    for flags in close:
        code, out, _ = run(*QUICK, *flags)
        assert f"kept in runs/digits-lt-width-8-epochs-2-lr-{flags[1]}" in out
        assert f"Next: balpoe evaluate runs/digits-lt-width-8-epochs-2-lr-{flags[1]}/seed-0" in out


def test_a_reader_that_has_seen_enough(monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["recipes"]) == 0


def test_run_files_that_were_garbled(run, tmp_path):
    folder = tmp_path / "runs" / "mine" / "seed-0"
    run(*QUICK, "--name", "mine")
    evaluation, targets = folder / "evaluation.json", folder / "predictions" / "targets.npy"
    whole = evaluation.read_bytes(), targets.read_bytes()
    for content, text in ((b"{}", "is not an evaluation of this run"), (b"[" * 9999, "is not valid JSON")):
        evaluation.write_bytes(content)
        code, _, err = run("evaluate", folder)
        assert code == 2
        assert text in sentence(err)
    evaluation.write_bytes(whole[0])
    for content in (b"", b"PK\x03\x04", whole[1][:-3]):
        targets.write_bytes(content)
        code, _, err = run("evaluate", folder, "--shot-groups", "5,50")
        assert code == 2
        assert "is not a whole array of numbers; predict again" in sentence(err)


def test_seeds_of_different_experts_are_not_averaged(run):
    run(*QUICK, "--name", "mine", "--seed", "1")
    code, _, err = run(*QUICK, "--name", "mine", "--seed", "2", "--lambdas", "0")
    assert "holds a run of another recipe" in sentence(err)
    run(*QUICK, "--name", "other", "--seed", "2", "--lambdas", "0")
    Path("runs/other/seed-2").rename("runs/mine/seed-2")
    code, _, err = run("evaluate", "runs/mine")
    assert code == 2
    assert "have different lambdas; evaluate them one by one" in sentence(err)


def test_seeds_side_by_side_as_on_a_gpu(run, monkeypatch, tmp_path):
    """The same runs, whether one after the other or in turns."""
    run(*QUICK, "--seeds", "1,2", "--name", "apart")
    monkeypatch.setattr("balpoe.cli.train.can_share_a_gpu", lambda *_: True)
    code, out, _ = run(*QUICK, "--seeds", "1,2", "--name", "together")
    assert code == 0
    assert "2 seeds" in out
    for seed in (1, 2):
        for name in ("history.jsonl", "evaluation.json", "model.safetensors"):
            paths = [tmp_path / "runs" / kind / f"seed-{seed}" / name for kind in ("apart", "together")]
            assert paths[0].read_bytes() == paths[1].read_bytes(), name


def saved(folder, samples=300, shift=0.0):
    """Predictions of three classes whose logits know something, in a folder."""
    generator = torch.Generator().manual_seed(samples)
    targets = torch.arange(samples) % 3
    logits = torch.randn(samples, 3, 3, generator=generator) + 2 * torch.nn.functional.one_hot(targets, 3)[:, None]
    names = ("cat", "dog, small", "🦊")
    predictions = Predictions(logits + shift, targets, torch.tensor([80, 15, 5]), torch.tensor([1.0, 0.0, -1.0]), names)
    predictions.save(folder)
    return predictions


def test_evaluate_at_a_place_of_use(run, tmp_path):
    predictions = saved(tmp_path / "theirs")
    code, out, _ = run("evaluate", "theirs")
    assert code == 0
    assert "expert, lambda -1" in out
    (tmp_path / "place.csv").write_text('cat,1\n"dog, small",1\n🦊,8\n', encoding="utf-8")
    code, out, _ = run("evaluate", "theirs", "--prior", "place.csv")
    assert code == 0
    told = evaluate(predictions, [0.1, 0.1, 0.8], num_resamples=0)
    not_told = evaluate(predictions, [0.1, 0.1, 0.8], told=False, num_resamples=0)
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert list(rows) == ["not told", "told"]
    for name, evaluation in (("told", told), ("not told", not_told)):
        assert f" {100 * evaluation.accuracy:.1f} " in rows[name]
        assert f" {evaluation.nll:.3f} " in rows[name]
    assert f"300 samples are worth {told.effective_samples:,.0f}." in out
    saved(tmp_path / "known", samples=120)
    code, out, _ = run("evaluate", "theirs", "--prior", "estimate", "--validation", "known")
    assert code == 0
    assert re.search(r"lambda -?\d\.\d\d \(95 % interval -?\d\.\d\d to -?\d\.\d\d\), p = \d\.\d\d\d: ", out)
    assert "A shift of the labels alone can explain" in out


def test_evaluate_several_seeds_and_an_archive_at_a_place_of_use(run, tmp_path):
    code, _, _ = run(*QUICK, "--seeds", "0,1", "--name", "two")
    assert code == 0
    code, out, _ = run("evaluate", "runs/two", "--prior", "backward-10")
    assert code == 0
    assert re.search(r"│ told +│ +\d+\.\d ± \d+\.\d │", out)
    assert "weighted to the prior backward-10" in out
    code, _, err = run("evaluate", "runs/two", "--prior", "estimate", "--validation", "runs/two/seed-0")
    assert code == 2
    assert "each with validation predictions of its own" in sentence(err)
    code, _, err = run("evaluate", "runs/two/seed-0", "--prior", "estimate", "--validation", "runs/two/seed-0")
    assert code == 2
    assert "validation are the predictions themselves" in sentence(err)
    predictions = load_predictions("runs/two/seed-0")
    np.savez("x.npz", logits=predictions.logits, targets=predictions.targets, class_counts=predictions.class_counts)
    code, out, _ = run("evaluate", "x.npz", "--prior", "train", "--shot-groups", "5,50")
    assert code == 0
    code, _, err = run("evaluate", "x.npz", "--prior", "uniforme")
    assert code == 2
    assert "unknown prior 'uniforme'; did you mean 'uniform'?" in sentence(err)
    code, _, err = run("evaluate", "x.npz", "--baseline", "runs/two/seed-1")
    assert code == 0
