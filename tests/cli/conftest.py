import time

import pytest

from balpoe.cli.main import main
from images import picture_folder


@pytest.fixture(autouse=True)
def _timed_once(monkeypatch):
    """What a training may cost is said by one time each, not by the shortest of some."""

    def seconds(work, device):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    monkeypatch.setattr("balpoe.experiments.cost_estimate._seconds", seconds)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; return exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def forest(tmp_path_factory):
    """A folder of images and a run on it with held-out predictions; all that decides is fitted on those."""
    root = tmp_path_factory.mktemp("forest")
    picture_folder(root / "trees", {"ash": 80, "birch": 50, "cedar": 30})
    flags = "--network test_efficientnet --image-size 32 --epochs 12 --width 16 --workers 0 --device cpu --no-baseline"
    more = ["--no-choose-mixup", "--no-choose-lr", "--mixup-alpha", "0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BALPOE_CACHE", str(root / "cache"))
        command = ["train", str(root / "trees"), "--runs", str(root / "runs"), "--name", "trees", *flags.split(), *more]
        assert main([*command, "--weights", ""]) == 0
    (root / "tree.csv").write_text("class,group\nash,broad\nbirch,broad\ncedar,needle\n")
    (root / "costs.csv").write_text("class,cost\ncedar,9\nash,1\nbirch,1\n")
    return root


@pytest.fixture
def trees(forest, monkeypatch):
    """The folder of the forest's run, with its cache."""
    monkeypatch.setenv("BALPOE_CACHE", str(forest / "cache"))
    return forest / "runs" / "trees" / "seed-0"
