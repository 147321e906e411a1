"""A recipe for each of several methods: what is the same, what is each one's own, and what is refused."""

import pytest

from balpoe.baselines.catalogue import METHODS
from balpoe.errors import UserError
from balpoe.experiments.method_recipes import method_names, method_recipe, method_recipes
from balpoe.experiments.presets import preset

DIGITS = preset("digits-lt")


def test_all_is_the_whole_catalogue():
    assert method_names("all") == list(METHODS)
    with pytest.raises(UserError, match="did you mean 'cross-entropy'"):
        method_names("balpoe,crossentropy")
    with pytest.raises(UserError, match="twice"):
        method_names("sade,sade")


def test_all_else_is_equal():
    """Methods differ in the fields that are theirs, and in nothing else."""
    recipes = method_recipes(DIGITS, METHODS, {"epochs": 7})
    theirs = {"method", "num_experts", "lambdas", "method_settings"}
    for name, recipe in recipes.items():
        entry = METHODS[name]
        assert recipe.method == (entry.evaluates or name)
        same = DIGITS.identity() | {"epochs": 7} | dict(entry.prescribes)
        different = {key for key, value in recipe.identity().items() if value != same[key]}
        assert different <= theirs


def test_lambdas_and_experts_are_for_those_that_have_them():
    recipes = method_recipes(DIGITS, ["cross-entropy", "ldam-drw", "balpoe"], {"lambdas": (1.0, -1.0)})
    assert [recipe.experts for recipe in recipes.values()] == [1, 1, 2]
    assert method_recipe(DIGITS, "ldam-drw", {"num_experts": 5}).experts == 1
    assert method_recipe(DIGITS, "logit-adjustment-ensemble", {"num_experts": 5}).experts == 5
    with pytest.raises(UserError, match="none of these methods has experts with lambdas"):
        method_recipes(DIGITS, ["ldam-drw"], {"lambdas": (1.0,)})


def test_what_a_paper_prescribes_stays_so():
    recipes = method_recipes(DIGITS, ["cross-entropy", "mixup", "balpoe"], {"mixup_alpha": 0.2})
    assert [recipe.mixup_alpha for recipe in recipes.values()] == [0.0, 0.2, 0.2]


def test_settings_go_to_whoever_has_them():
    settings = [("gamma", "2"), ("betas", "0.8,0.9")]
    recipes = method_recipes(DIGITS, ["cb-focal", "sade"], {"optimizer": "adamw"}, settings)
    assert recipes["cb-focal"].method_settings == {"gamma": 2.0}
    assert recipes["sade"].method_settings == {}
    assert all(recipe.optimizer_settings == {"betas": (0.8, 0.9)} for recipe in recipes.values())
    with pytest.raises(UserError, match="did you mean 'gamma'"):
        method_recipes(DIGITS, ["cb-focal"], {}, [("gama", "2")])
    with pytest.raises(UserError, match="--set gamma: neither these methods nor the optimiser has settings"):
        method_recipes(DIGITS, ["balpoe", "cross-entropy"], {}, [("gamma", "2")])


def test_of_all_methods_those_are_left_out_that_do_not_go_with_what_is_asked_for():
    left_out = {}
    settings = [("gamma", "2")]
    found = method_recipes(
        DIGITS, ["cross-entropy", "cb-focal", "ride", "balpoe"], {"num_experts": 1}, settings, left_out
    )
    assert list(found) == ["cross-entropy", "cb-focal", "balpoe"]
    assert found["cb-focal"].method_settings == {"gamma": 2.0}
    assert list(left_out) == ["ride"]
    assert "made of several experts" in left_out["ride"]
    with pytest.raises(UserError, match="did you mean 'gamma'"):
        method_recipes(DIGITS, list(METHODS), {}, [("gama", "2")], {})
    with pytest.raises(UserError, match="made of several experts"):
        method_recipes(DIGITS, ["ride"], {"num_experts": 1}, (), {})
