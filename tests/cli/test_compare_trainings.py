"""How long trainings of a comparison are expected to take, and what happens when one fails."""

import pytest

from balpoe.cli.compare_trainings import Budget, Job, train_jobs
from balpoe.errors import UserError
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import Run
from balpoe.report.console import console


def test_a_training_is_expected_to_take_as_long_as_others(tmp_path):
    budget = Budget(1.0, tmp_path)
    assert budget.fits("any")  # nothing is known yet
    budget.add("a", 20.0)
    budget.add("a", 40.0)
    budget.add("b", 90.0)
    again = Budget(1.0, tmp_path)
    assert [again.expected(name) for name in "abc"] == [30.0, 90.0, 50.0]
    assert [again.fits(name) for name in "abc"] == [True, False, True]


def test_one_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    done = []

    def training(recipe, folder, **options):
        yield
        if recipe.seed == 1:
            raise UserError("the loss is not a number")
        done.append(recipe.seed)

    monkeypatch.setattr("balpoe.cli.compare_trainings.train_judged_by_step", training)
    recipe = updated(preset("digits-lt"), {"device": "cpu"})
    jobs = [Job(updated(recipe, {"seed": seed}), tmp_path / f"seed-{seed}") for seed in (1, 2)]
    budget = Budget(float("inf"), tmp_path)
    failed = train_jobs(console(), jobs, budget, fresh=False, line=lambda run: "fine" if isinstance(run, Run) else "")
    assert done == [2]
    assert failed == {jobs[0].folder: "the loss is not a number"}
    out = capsys.readouterr().out
    assert "BalPoE, seed 1: the loss is not a number" in out
    assert "BalPoE, seed 2: fine" in out
    assert len(budget.durations) == 1


@pytest.mark.parametrize("minutes", [0.0001, 5.0])
def test_what_would_end_too_late_is_not_begun(tmp_path, monkeypatch, minutes):
    done = []

    def training(recipe, folder, **options):
        yield
        done.append(recipe.seed)

    monkeypatch.setattr("balpoe.cli.compare_trainings.train_judged_by_step", training)
    recipe = updated(preset("digits-lt"), {"device": "cpu"})
    budget = Budget(minutes, tmp_path)
    budget.add("balpoe", 60.0)
    jobs = [Job(updated(recipe, {"seed": seed}), tmp_path / f"seed-{seed}") for seed in (1, 2)]
    train_jobs(console(), jobs, budget, fresh=False, line=lambda run: "")
    assert done == ([1, 2] if minutes == 5.0 else [])
