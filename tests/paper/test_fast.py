"""The search for a fast recipe: what its trials have in common, what they cost, and which seeds see the test set."""

import json
import shlex
from pathlib import Path
from statistics import fmean

import pytest

from balpoe.cli.main import command_parser
from balpoe.cli.train import chosen_recipe, starting_recipe
from balpoe.data.loading.epoch_plan import samples_seen
from balpoe.experiments.build import assemble
from balpoe.experiments.recipe import updated
from balpoe.paper.fast import FAST_SEARCH, FAST_TABLES, ranked_trials, write_fast_tables
from balpoe.paper.paper_result import PaperResult
from balpoe.paper.reproduce import missing_runs
from balpoe.paper.training_cost import SAMPLES, training_steps
from trainings import tiny_data

ROOT = Path(__file__).parents[2]
TRIALS, (CHOSEN,) = FAST_TABLES["fast-search"], FAST_TABLES["fast"]


def test_trials_are_measured_on_held_out_images_and_the_preset_on_the_test_set():
    assert len(TRIALS) == len(FAST_SEARCH)
    assert all(result.recipe(1).validation == 50 for result in TRIALS)
    assert CHOSEN.recipe(21).validation == 0
    assert not set(CHOSEN.seed_numbers) & {seed for result in TRIALS for seed in result.seed_numbers}


def seconds(recipe):
    """Of its steps alone on an H200, by a straight line through what was measured for batches of 128 and 512."""
    samples = SAMPLES["cifar100-lt", 100]
    steps = samples_seen(samples, recipe.batch_size, recipe.drop_last) // recipe.batch_size
    step = 1.67e-3 + (5.35e-3 - 1.67e-3) * (recipe.batch_size - 128) / (512 - 128)
    if recipe.early_image_size:
        step *= 1 - recipe.early_fraction * (1 - (recipe.early_image_size / 32) ** 2)
    return recipe.epochs * steps * (step + (4e-4 if recipe.optimizer == "muon" else 0))


@pytest.mark.parametrize("result", TRIALS, ids=lambda result: result.title)
def test_each_trial_fits_its_budget(result):
    budget = 15 if result.title.startswith("fifteen") else 10
    assert budget - 2.5 < seconds(result.recipe(1)) <= budget - 1.5


def test_the_preset_fits_ten_seconds():
    assert seconds(CHOSEN.recipe(21)) <= 8.5


def test_the_preset_is_the_most_accurate_trial_of_ten_seconds():
    best = next(each for each in ranked_trials(ROOT / "results") if not each.title.startswith("fifteen"))
    chosen = updated(CHOSEN.recipe(1), {"validation": 50, "checkpoint_seconds": best.recipe(1).checkpoint_seconds})
    assert best.recipe(1).identity() == chosen.identity()


def test_what_the_pages_say_of_blocks_that_begin_by_adding_less():
    def accuracy(trial):
        records = [json.loads(path.read_text()) for path in (ROOT / "results" / "fast-search" / trial).iterdir()]
        assert len(records) == 2
        assert all(record["steps"] == ["fused"] for record in records)
        return 100 * fmean(record["evaluation"]["accuracy"] for record in records)

    start = "muon-strong-others-4-alpha-0.2"
    whole, half, nothing = map(accuracy, (start, f"{start}-residuals-0.5", f"{start}-residuals-0"))
    results, recipes = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("results.md", "recipes.md"))
    assert f"gain nothing: {half:.1f} instead of {whole:.1f}. " in results
    assert f"Adding nothing at first costs {whole - nothing:.1f} points" in results
    assert f"neither gains anything, and 0 costs {whole - nothing:.1f} points" in recipes


@pytest.mark.parametrize("result", TRIALS, ids=lambda result: result.title)
def test_each_trial_can_be_put_together(result, monkeypatch, eight_layers):
    data = tiny_data(60, (3, 32, 32))
    monkeypatch.setattr("balpoe.experiments.build._benchmark_parts", lambda recipe: (data, data, data))
    settings = assemble(result.recipe(1)).settings
    assert settings.averaged_epochs > 10
    assert settings.all_optimizer_settings() is not None


@pytest.mark.parametrize("result", TRIALS, ids=lambda result: result.title)
def test_the_command_of_a_trial_is_the_trial(result):
    arguments = command_parser("train").parse_args(shlex.split(result.command())[1:])
    start, _ = starting_recipe(arguments.recipe, arguments.as_released)
    assert chosen_recipe(arguments, start).identity() == result.recipe(0).identity()


def test_all_first_seeds_come_before_the_second_ones(tmp_path):
    order = [each.seed for each in missing_runs(["fast-search"], tmp_path)]
    assert order == [1] * len(TRIALS) + [2] * len(TRIALS)
    assert [each.seed for each in missing_runs(["fast"], tmp_path)] == [21, 22, 23, 24, 25]


def test_trials_in_the_order_of_their_accuracy(tmp_path):
    (tmp_path / "tables").mkdir()
    write_fast_tables(tmp_path)
    assert not list((tmp_path / "tables").iterdir())
    names = ("accuracy", "many", "medium", "few", "ece", "mce", "nll")
    for trial, seed, accuracy in ((TRIALS[0], 1, 0.50), (TRIALS[0], 2, 0.52), (TRIALS[3], 1, 0.53)):
        folder = tmp_path / trial.folder
        folder.mkdir(parents=True, exist_ok=True)
        evaluation = {**dict.fromkeys(names, accuracy), "parameters": 1000, "multiply_adds": 2_000_000}
        (folder / f"seed-{seed}.json").write_text(json.dumps({"evaluation": evaluation}))
    write_fast_tables(tmp_path)
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["fast-search.md"]
    *_, best, other = (tmp_path / "tables" / "fast-search.md").read_text().splitlines()
    assert best.startswith(f"| {TRIALS[3].title} (NLL 0.530) | 1 of 2 | 53.0 |")
    assert other.startswith(f"| {TRIALS[0].title} (NLL 0.510) | 2 | 51.0 ± 1.4 |")


def test_larger_batches_take_longer():
    """A step of 512 takes 3.86 ms where one of 128 takes 1.42: 2.7 times as long."""

    def steps(**changes):
        return training_steps(PaperResult("some/result", "some", "cifar100-lt", changes, 1).recipe(1))

    assert steps() == 200 * 85
    assert steps(batch_size=512) == pytest.approx(200 * 22 * 3.86 / 1.42, rel=0.02)
    assert steps(batch_size=512, drop_last=True) == pytest.approx(200 * 21 * 3.86 / 1.42, rel=0.02)
