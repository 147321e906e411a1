import json

import pytest

from balpoe.cli import compare_search
from balpoe.cli.compare_search import searched
from balpoe.cli.compare_trainings import Budget
from balpoe.errors import UserError
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.report.console import console

DIGITS = preset("digits-lt")


def begun(folder, recipe=DIGITS, seeds=(1, 2)):
    """A search that is begun, or gone on with, without a trial."""
    return searched(console(), {"balpoe": recipe}, ["lr"], trials=0, seeds=seeds, folder=folder, budget=Budget(1))


@pytest.mark.parametrize(
    ("changes", "seeds", "words"),
    [
        ({"epochs": 5}, (1, 2), r"yours has epochs 5\)"),
        ({"data_version": "0badcafe"}, (1, 2), "yours has other files or labels"),
        ({}, (1, 2, 3), r"yours has seeds 1,2,3\)"),
        ({"lambdas": (0.5, 0, -0.5)}, (3, 4), r"yours has lambdas 0.5,0,-0.5, seeds 3,4\)"),
    ],
)
def test_trials_of_another_recipe_data_or_seeds_are_not_taken_for_one_s_own(changes, seeds, words, tmp_path):
    begun(tmp_path)
    begun(tmp_path)
    with pytest.raises(UserError, match=words) as error:
        begun(tmp_path, updated(DIGITS, changes), seeds)
    assert "choose another --name, or --fresh" in str(error.value)


def test_a_proposal_that_no_recipe_has_is_a_trial_given_up(tmp_path, monkeypatch):
    """Two means of the weights; the first trial is the recipe as it stands, whose mistakes are told."""

    def score(*_):
        yield lambda: None
        return 0.5

    monkeypatch.setattr(compare_search, "_held_out_score", score)
    names, recipes = ["weight_average_fraction", "weight_average_decay"], {"balpoe": DIGITS}
    found = searched(console(), recipes, names, trials=3, seeds=(1,), folder=tmp_path, budget=Budget(1))
    first, *others = found["balpoe"].trials
    assert not first.pruned
    assert len(others) == 2
    for trial in others:
        assert trial.pruned == all(trial.values.values())
    assert any(trial.pruned for trial in others)


def test_where_the_machine_keeps_things_is_no_other_search(tmp_path):
    begun(tmp_path)
    begun(tmp_path, updated(DIGITS, {"data_root": str(tmp_path), "threads": 1, "workers": 1}))


def test_trials_that_came_without_their_recipe_and_a_garbled_one(tmp_path):
    (tmp_path / "balpoe.jsonl").write_text(json.dumps({"values": {"lr": 0.1}, "scores": [0.5], "pruned": False}) + "\n")
    assert len(begun(tmp_path)["balpoe"].trials) == 1
    (tmp_path / "balpoe.start.json").write_text('{"seeds": 3}')
    with pytest.raises(UserError, match=r"balpoe\.start\.json is garbled"):
        begun(tmp_path)
