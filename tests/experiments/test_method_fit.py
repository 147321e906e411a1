"""What is known of data before a training: which methods fit, and whether held-out samples can judge."""

import dataclasses

import pytest
import torch

from balpoe.baselines.catalogue import METHODS, Entry
from balpoe.baselines.method import Method
from balpoe.errors import UserError
from balpoe.experiments.calibrate import FOLDS, NETWORKS
from balpoe.experiments.method_fit import DataFacts, check_held_out, data_facts, has_posterior, misfit, trained_as
from balpoe.experiments.method_recipes import method_recipe
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.training.cross_fit import split_folds

DIGITS = preset("digits-lt")


def facts(*counts, held_out=False):
    return DataFacts(tuple(f"class {n}" for n in range(len(counts))), counts, counts, held_out, 0)


def test_facts_of_a_data_set():
    found = data_facts(updated(DIGITS, {"calibrate": True}))
    assert (max(found.class_counts), min(found.class_counts), len(found.class_names)) == (124, 2, 10)
    assert found.held_out
    assert found.spared == 0


def test_which_scores_are_posteriors(scores_without_a_prior):
    found = facts(90, 10, 5)
    assert has_posterior(DIGITS, found)
    assert not has_posterior(updated(DIGITS, {"method": "ldam-drw"}), found)


@pytest.mark.filterwarnings("ignore:lambdas average to")  # SADE's do not average to zero
def test_features_have_neither_views_nor_parts():
    found = facts(90, 10, 5)
    for name, why in (("mdcs", "two views"), ("sade-test-time", "two views"), ("cmo", "parts of images")):
        recipe = updated(DIGITS, {"method": name})
        assert misfit(recipe, found) is None
        assert why in misfit(recipe, found._replace(images=False))


def test_a_method_that_refuses_some_data(monkeypatch):
    def loss(inputs):
        raise UserError("every class wants 20 samples")

    monkeypatch.setitem(METHODS, "picky", Entry(Method(loss), "refuses"))
    assert misfit(dataclasses.replace(DIGITS, method="picky"), facts(90, 10)) == "every class wants 20 samples"
    assert misfit(DIGITS, facts(90, 10)) is None


@pytest.mark.parametrize("samples", [500, 3000, 7000])
def test_so_many_samples_are_wanted_that_one_is_held_out(samples):
    """The rule is that of the folds themselves: with as many samples a class always has a held-out one."""
    networks = next((networks for most, networks in NETWORKS if samples <= most), 1)
    wanted = max(2, FOLDS - networks + 1)
    check_held_out(facts(samples - wanted, wanted))
    with pytest.raises(UserError, match=f"class 'class 1' has {wanted - 1} training sample"):
        check_held_out(facts(samples - wanted, wanted - 1))
    for seed in range(10):
        targets = torch.cat([torch.zeros(samples - wanted), torch.ones(wanted)]).long()
        fold = split_folds(targets, networks, FOLDS, torch.Generator().manual_seed(seed)).fold
        assert bool((fold[targets == 1] >= 0).any())


def test_samples_outside_of_training_need_no_folds():
    check_held_out(facts(90, 1, held_out=True))


def test_what_is_the_same_training_is_done_once():
    names = [name for name in METHODS if "sade" not in name]
    recipes = {name: method_recipe(DIGITS, name, {}) for name in names}
    found = trained_as(recipes, facts(90, 10, 5))
    others = {name: first for name, first in found.items() if name != first}
    assert others == {"logit-adjustment-after": "cross-entropy", "balanced-softmax": "logit-adjustment"}
    recipes["mixup"] = method_recipe(DIGITS, "mixup", {"mixup_alpha": 0.0})
    recipes["logit-adjustment"] = method_recipe(DIGITS, "logit-adjustment", {}, [("tau", "0.5")])
    recipes["balpoe"] = method_recipe(DIGITS, "balpoe", {"lambdas": (0.0, 0.0, 0.0)})
    assert {name: first for name, first in trained_as(recipes, facts(90, 10, 5)).items() if name != first} == {
        "mixup": "cross-entropy",
        "logit-adjustment-after": "cross-entropy",
        "balpoe": "logit-adjustment-ensemble",
    }
    assert trained_as({"logit-adjustment-after": recipes["cross-entropy"]}, facts(90, 10)) == {
        "logit-adjustment-after": "cross-entropy"
    }
