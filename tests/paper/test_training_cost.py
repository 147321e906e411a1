"""What trainings cost, against the sizes of the data sets and what was measured."""

import json
from pathlib import Path

import pytest

from balpoe.data.long_tail import long_tailed_counts
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.paper.training_cost import SAMPLES, SECONDS_A_STEP, gpu_seconds, training_steps
from balpoe.training.concurrent import TRAININGS_AT_ONCE

ROOT = Path(__file__).parents[2]


def test_sizes_of_the_long_tailed_sets():
    classes = {"cifar100-lt": (100, 500), "cifar10-lt": (10, 5000), "tiny-imagenet-lt": (200, 500)}
    for (name, ratio), samples in SAMPLES.items():
        number, largest = classes[name]
        assert sum(long_tailed_counts(number, largest, ratio)) == samples


def test_seconds_are_about_those_of_the_steps_that_were_measured():
    measured = json.loads((ROOT / "results" / "cifar_step.json").read_text())
    fused = [row for row in measured["rows"] if row["kind"] == "fused"]
    assert len(fused) == 6
    for row in fused:
        recipe = updated(preset("cifar100-lt"), {"num_experts": row["experts"], "batch_size": row["batch"]})
        steps = recipe.epochs * -(-SAMPLES["cifar100-lt", 100] // row["batch"])
        trained = (row["experts"], row["batch"]) in ((3, 128), (7, 128), (3, 512))  # by the presets
        assert gpu_seconds(recipe) == pytest.approx(steps * row["ms_a_step"] / 1000, rel=0.03 if trained else 0.2)
    # Five at once take a little less each; who reckons with the same is in time.
    five = [row["ms_a_step_of_all"] for row in measured["together"] if row["at_once"] == TRAININGS_AT_ONCE]
    assert len(five) == 2
    for together in five:
        assert 0.8 < together / (TRAININGS_AT_ONCE * 1000 * SECONDS_A_STEP) < 0.9


def test_seconds_are_about_those_of_five_trainings_of_seven_experts_that_shared_a_gpu():
    folder = ROOT / "results" / "cifar100-lt-50" / "balpoe-best"
    seconds = [json.loads(path.read_text())["seconds"] for path in folder.glob("seed-*.json")]
    assert len(seconds) == TRAININGS_AT_ONCE
    assert min(seconds) > 0.98 * max(seconds)  # they ran side by side
    assert 0.85 < max(seconds) / (TRAININGS_AT_ONCE * gpu_seconds(preset("cifar100-lt-50-best"))) < 1


def test_wider_networks_take_longer():
    recipe = preset("cifar100-lt")
    narrow, reduced, wide = (
        training_steps(updated(recipe, {"width": width})) for width in ((16,), (16, 24, 48), (64,))
    )
    assert (narrow, reduced, wide) == (17_000, 17_000, 108_800)
    digits = preset("digits-lt")  # of an mlp the width is another thing
    assert training_steps(updated(digits, {"width": 64})) == training_steps(digits)
