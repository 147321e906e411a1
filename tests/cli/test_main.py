"""What the command line says to mistakes, and how it ends."""

import sys

import pytest
import torch

from balpoe.cli.main import main
from commands import QUICK, sentence


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
    "absent folder": (["train", "phots"], "there is no file or folder phots; unknown recipe 'phots'"),
    "absent folder with a slash": (["train", "phots/"], "there is nothing at phots/; give a preset"),
    "absent table to look at": (["data", "birds.csv"], "there is nothing at birds.csv; give a data set"),
    "range": ([*QUICK[:2], "--epochs", "-1"], "epochs must be at least 0, but is -1"),
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
    "option that is a word": (["evaluate", "x", "--zzz", "1"], "unknown option '--zzz'; known are --help, --baseline"),
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


def test_a_reader_that_has_seen_enough(monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["recipes"]) == 0
