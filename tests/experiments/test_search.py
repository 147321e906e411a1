"""A search: what can be tuned and where, that it goes on as if it had not stopped, and that bad trials are given up."""

import pytest

from balpoe.errors import UserError
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import FIELDS, Recipe, updated
from balpoe.experiments.search import (
    Search,
    Trial,
    check_optuna,
    check_tunable,
    dimensions,
    with_values,
)

DIGITS = preset("digits-lt")
NAMES = ("mixup_alpha", "lambdas", "lr")


def score(values):
    """A made score that is best at mixup_alpha 0.7 and lr 0.05."""
    return 1 - (values["mixup_alpha"] - 0.7) ** 2 - abs(values["lr"] - 0.05)


def searched(file, trials):
    search = Search(DIGITS, NAMES, file)
    while len(search.trials) < trials:
        values = search.propose()
        search.record(Trial(values, (score(values),)))
    return search


@pytest.mark.parametrize("name", ["seed", "dataset", "method", "data_root", "network", "calibrate", "shot_groups"])
def test_not_everything_is_a_setting_to_search_for(name):
    with pytest.raises(UserError, match="not a setting to search for"):
        check_tunable([name], {"balpoe": DIGITS})


def test_unknown_names_and_settings_of_other_methods():
    with pytest.raises(UserError, match="did you mean 'mixup_alpha'"):
        check_tunable(["mixup_alfa"], {"balpoe": DIGITS})
    with pytest.raises(UserError, match="none of these methods has it"):
        check_tunable(["lambdas"], {"cross-entropy": updated(DIGITS, {"method": "cross-entropy"})})
    with pytest.raises(UserError, match="twice"):
        check_tunable(["lr", "lr"], {"balpoe": DIGITS})
    check_tunable(["backward_tau"], {"sade": updated(DIGITS, {"method": "sade"}), "balpoe": DIGITS})


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("balpoe.experiments.search.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"balpoe\[tune\]"):
        check_optuna()


def test_every_proposal_of_every_tunable_field_makes_a_recipe():
    for base in (DIGITS, Recipe(), *(updated(DIGITS, {"method": name}) for name in ("sade", "ride-router", "mdcs"))):
        for name in (*FIELDS, "backward_tau"):
            try:
                check_tunable([name], {"any": base})
            except UserError:
                continue
            (each,) = dimensions([name], base).values()
            for value in each.choices or (each.low, each.high):
                assert with_values(base, {name: value}).method == base.method


def test_a_dimension_holds_the_recipes_own_value():
    for name, each in dimensions(["lr", "weight_decay", "epochs", "mixup_alpha", "cosine_scale"], DIGITS).items():
        assert each.low <= getattr(DIGITS, name) <= each.high


def test_lambdas_are_evenly_spaced_and_keep_their_mean():
    assert with_values(DIGITS, {"lambdas": 2.0}).lambdas == (2.0, 0.0, -2.0)
    assert with_values(DIGITS, {"lambdas": 1.0, "num_experts": 2}).lambdas == (1.0, -1.0)
    assert with_values(updated(DIGITS, {"num_experts": 5}), {"lambdas": 1.0, "num_experts": 2}).experts == 2
    sade = updated(DIGITS, {"method": "sade"})
    assert with_values(sade, {"backward_tau": 1.5}).method_settings == {"backward_tau": 1.5}


def test_the_first_trial_is_the_recipe_as_it_stands(tmp_path):
    search = Search(DIGITS, NAMES, tmp_path / "trials.jsonl")
    assert with_values(DIGITS, search.propose()).identity() == DIGITS.identity()


def test_a_search_goes_on_as_if_it_had_not_stopped(tmp_path):
    pytest.importorskip("optuna")
    whole = searched(tmp_path / "whole.jsonl", 12)
    for trials in (4, 9, 12):  # stopped twice
        parts = searched(tmp_path / "parts.jsonl", trials)
    assert parts.trials == whole.trials
    assert len({tuple(trial.values.values()) for trial in whole.trials}) == 12
    assert whole.best.score == max(trial.score for trial in whole.trials)
    assert whole.best.score > whole.trials[0].score


def test_trials_below_the_median_are_given_up(tmp_path):
    pytest.importorskip("optuna")
    search = Search(DIGITS, NAMES, tmp_path / "trials.jsonl")
    for number in range(6):
        search.record(Trial(search.propose(), (0.5 + 0.01 * number, 0.6)))
    assert search.is_worth_going_on([0.6])
    assert not search.is_worth_going_on([0.3])
    search.record(Trial(search.propose(), (0.99,), pruned=True))
    assert not search.best.pruned


def test_files_of_other_searches_and_garbled_ones(tmp_path):
    file = tmp_path / "trials.jsonl"
    Search(DIGITS, ["lr"], file).record(Trial({"lr": 0.1}, (0.5,)))
    with pytest.raises(UserError, match="a search for other settings"):
        Search(DIGITS, ["mixup_alpha"], file)
    assert file.read_text() == '{"values": {"lr": 0.1}, "scores": [0.5], "pruned": false}\n'
    file.write_text("{")
    with pytest.raises(UserError, match="garbled"):
        Search(DIGITS, ["lr"], file)
