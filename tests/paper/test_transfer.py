"""The tables beyond the paper: their recipes, and what was chosen by the trials."""

import json
from pathlib import Path

import pytest

from balpoe.experiments.recipe import Recipe
from balpoe.paper.expected import PAPER_TABLES
from balpoe.paper.reproduce import missing_runs
from balpoe.paper.transfer import CHOSEN, FURTHER_TABLES, SEARCH, TINY_IMAGENET, TRANSFER, UNMIXED

ROOT = Path(__file__).parents[2]


def test_every_row_is_a_recipe_with_a_folder_of_its_own():
    rows = [result for table in FURTHER_TABLES.values() for result in table]
    assert len({result.folder for result in rows}) == len(rows)
    recipes = [result.recipe(seed=2) for result in rows]
    assert all(isinstance(recipe, Recipe) and recipe.seed == 2 for recipe in recipes)
    assert len({repr(recipe) for recipe in recipes}) == len(rows)
    assert not FURTHER_TABLES.keys() & PAPER_TABLES.keys()


def test_they_are_trained_when_they_are_asked_for(tmp_path):
    assert len(missing_runs(["transfer", "tiny-imagenet"], tmp_path)) == 3 * (len(TRANSFER) + len(TINY_IMAGENET))
    ours = {each.path.parts[0] for each in missing_runs([], tmp_path)}
    assert not ours & {"transfer", "transfer-search", "tiny-imagenet"}
    assert all(each.seconds > 0 for each in missing_runs(["transfer-search"], tmp_path))


def test_methods_differ_in_lambdas_alone():
    by_tune = {}
    for result in TRANSFER:
        recipe = result.recipe(1)
        same = {name: value for name, value in vars(recipe).items() if name not in ("lambdas", "adapter_split")}
        by_tune.setdefault((recipe.tune, "unmixed" in result.folder), []).append(same)
    chosen, unmixed = ({(tune, part) for tune in names} for part, names in ((False, CHOSEN), (True, UNMIXED)))
    assert by_tune.keys() == chosen | unmixed
    assert CHOSEN.keys() == {"head", "adapters", "full"}
    for several in by_tune.values():
        assert all(each == several[0] for each in several)


def test_trials_are_measured_on_held_out_images_and_chosen_settings_are_trained():
    assert all(result.recipe(1).validation == 20 for result in FURTHER_TABLES["transfer-search"])
    assert all(result.recipe(1).validation == 0 for result in TRANSFER)
    for tune, name in (*CHOSEN.items(), *UNMIXED.items()):
        assert SEARCH[name][0] == tune
        unmixed = name in UNMIXED.values()
        recipes = [result.recipe(1) for result in TRANSFER if ("unmixed" in result.folder) == unmixed]
        rows = [recipe for recipe in recipes if recipe.tune == tune]
        assert {(recipe.lr, recipe.mixup_alpha) for recipe in rows} == {
            (SEARCH[name][1]["lr"], SEARCH[name][1]["mixup_alpha"])
        }


def test_the_chosen_trial_is_the_best_of_the_records():
    found = {
        name: json.loads(path.read_text())["evaluation"]["balanced_accuracy"]
        for name in SEARCH
        if (path := ROOT / "results" / "transfer-search" / name / "seed-1.json").exists()
    }
    if not found:
        pytest.skip("no trial is recorded yet")
    for chosen, trials in (
        (CHOSEN, SEARCH),
        (UNMIXED, [each for each in SEARCH if not SEARCH[each][1]["mixup_alpha"]]),
    ):
        for tune, name in chosen.items():
            several = [each for each in found if each in trials and SEARCH[each][0] == tune]
            assert name == max(several, key=found.__getitem__)
