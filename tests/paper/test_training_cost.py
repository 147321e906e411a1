"""What trainings cost, against the sizes of the data sets and what was measured."""

import json
from pathlib import Path

import pytest

from balpoe.data.long_tail import long_tailed_counts
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.paper.training_cost import SAMPLES, gpu_seconds, training_steps

ROOT = Path(__file__).parents[2]


def test_sizes_of_the_long_tailed_sets():
    classes = {"cifar100-lt": (100, 500), "cifar10-lt": (10, 5000), "tiny-imagenet-lt": (200, 500)}
    for (name, ratio), samples in SAMPLES.items():
        number, largest = classes[name]
        assert sum(long_tailed_counts(number, largest, ratio)) == samples


def test_seconds_are_about_those_that_were_measured():
    rows = json.loads((ROOT / "results" / "whole_trainings.json").read_text())["rows"]
    alone = [row for row in rows if row["seeds"] == 1 and not row["cold"]]
    assert len(alone) >= 2
    for row in alone:
        assert gpu_seconds(preset(row["recipe"])) == pytest.approx(row["epochs_seconds"], rel=0.05)


def test_wider_networks_take_longer():
    recipe = preset("cifar100-lt")
    narrow, reduced, wide = (
        training_steps(updated(recipe, {"width": width})) for width in ((16,), (16, 24, 48), (64,))
    )
    assert (narrow, reduced, wide) == (17_000, 17_000, 170_000)
    digits = preset("digits-lt")  # of an mlp the width is another thing
    assert training_steps(updated(digits, {"width": 64})) == training_steps(digits)
