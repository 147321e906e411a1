"""The trainings of a comparison: in processes where that pays, stopped in time, and one that fails by itself."""

import pickle

import pytest
import torch

from balpoe.cli.compare_trainings import Budget, Job, processes_at_once, train_jobs
from balpoe.errors import UserError
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import Run
from balpoe.report.console import console
from balpoe.training.eager_step import EagerStep
from balpoe.training.interrupts import Interrupt

FOREVER = float("inf")


@pytest.fixture
def recipe():
    """Digits, quickly, in this process."""
    return updated(preset("digits-lt"), {"device": "cpu", "threads": 1, "epochs": 3, "width": (8,)})


def jobs_of(recipe, folder, seeds):
    return [Job(updated(recipe, {"seed": seed}), folder / f"seed-{seed}") for seed in seeds]


def test_one_that_fails_does_not_stop_the_others(recipe, tmp_path, monkeypatch, capsys):
    done = []

    def training(recipe, folder, **options):
        yield
        if recipe.seed == 1:
            raise UserError("the loss is not a number")
        done.append(recipe.seed)

    monkeypatch.setattr("balpoe.cli.compare_trainings.train_run_by_step", training)
    jobs = jobs_of(recipe, tmp_path, (1, 2))
    line = lambda run: "fine" if isinstance(run, Run) else ""  # noqa: E731
    failed = train_jobs(console(), jobs, Budget(FOREVER), fresh=False, line=line)
    assert done == [2]
    assert failed == {jobs[0].folder: "the loss is not a number"}
    out = capsys.readouterr().out
    assert "BalPoE, seed 1: the loss is not a number" in out
    assert "2 of 2: BalPoE, seed 2: fine" in out


def stopped_after(steps, monkeypatch, then=lambda: None):
    """Let a request to stop come after some steps."""
    interrupt, step, done = Interrupt(), EagerStep.__call__, []

    def counted(*given):
        done.append(given)
        if len(done) == steps:
            then()
            interrupt.request()
        return step(*given)

    monkeypatch.setattr("balpoe.training.eager_step.EagerStep.__call__", counted)
    monkeypatch.setattr("balpoe.cli.compare_trainings.Interrupt", lambda: interrupt)


def test_a_training_under_way_stops_in_time_and_goes_on_from_there(recipe, tmp_path, monkeypatch, capsys):
    whole, jobs = jobs_of(recipe, tmp_path / "whole", (1,)), jobs_of(recipe, tmp_path / "parts", (1, 2))
    train_jobs(console(), whole, Budget(FOREVER), fresh=False, line=lambda run: "")
    with monkeypatch.context() as patch:
        budget = Budget(60.0)
        stopped_after(15, patch, then=lambda: setattr(budget, "seconds", 0.0))
        assert train_jobs(console(), jobs, budget, fresh=False, line=lambda run: "") == {}
    assert "0 of 2: BalPoE, seed 1: stopped in epoch 2 of 3, goes on next time" in capsys.readouterr().out
    assert not jobs[0].done
    assert not jobs[1].folder.exists()  # nothing is begun when the time is over
    train_jobs(console(), jobs[:1], Budget(FOREVER), fresh=False, line=lambda run: "")
    assert torch.equal(*(Run(each[0].folder).predictions().expert_logits for each in (whole, jobs)))


def test_a_ctrl_c_is_no_end_of_time(recipe, tmp_path, monkeypatch):
    stopped_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt, match="training 1 of 1"):
        train_jobs(console(), jobs_of(recipe, tmp_path, (1,)), Budget(FOREVER), fresh=False, line=lambda run: "")


def test_what_a_process_of_its_own_is_given_and_gives_back(recipe, tmp_path, monkeypatch, capsys):
    asked = []

    def here(tasks, at_once, threads, interrupt):
        asked.append((at_once, threads))
        for task in tasks:
            ended = pickle.loads(pickle.dumps(task))(interrupt)
            yield pickle.loads(pickle.dumps(ended))

    monkeypatch.setattr("balpoe.cli.compare_trainings.in_processes", here)
    jobs = jobs_of(updated(recipe, {"threads": 2}), tmp_path, (1, 2))
    assert train_jobs(console(), jobs, Budget(FOREVER), fresh=False, line=lambda run: "fine") == {}
    assert asked == [(2, 1)]
    assert all(job.done for job in jobs)
    assert Run(jobs[0].folder).environment()["threads"] == 1  # its share
    captured = capsys.readouterr()
    assert "2 of 2: BalPoE, seed 2: fine" in captured.out
    assert "epoch" not in captured.err  # two bars would write over each other


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"threads": 0}, (3, 1)),  # torch's choice
        ({"threads": 2}, (2, 1)),
        ({"threads": 6}, (3, 2)),
        ({"threads": 1}, (1, 1)),
        ({"threads": 64}, (3, 21)),
        ({"threads": 4, "devices": 2}, (1, 4)),
        ({"threads": 4, "network": "resnet32", "width": (4,)}, (1, 4)),
    ],
)
def test_processes_for_features_on_a_cpu(changes, expected, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    recipe = updated(preset("digits-lt"), {"device": "cpu", **changes})
    assert processes_at_once([recipe] * 3) == expected


def test_no_processes_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert processes_at_once([updated(preset("digits-lt"), {"threads": 4})] * 3) == (1, 4)
