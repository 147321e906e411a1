"""Methods side by side: rows, paired differences, and what cannot be told apart, against slow obvious loops."""

import json
from dataclasses import replace
from statistics import fmean, stdev

import numpy as np
import pytest
import torch

from balpoe import Predictions, evaluate
from balpoe.errors import UserError
from balpoe.evaluation.shifted_tests import full_evaluation
from balpoe.experiments.comparison import (
    COMPARED,
    Comparison,
    Row,
    Trained,
    adjusted_after,
    alike,
    compared,
    measured,
    verdict_of_all,
)
from made_predictions import make

GROUPS = (20, 100)


def training(predictions, seed=0):
    return Trained(seed, predictions, full_evaluation(predictions, GROUPS), 3.0 + seed)


def row(name):
    return Row(name, name.upper(), name)


def found(trainings, **about):
    return compared({name: row(name) for name in trainings}, trainings, GROUPS, data="made", **about)


@pytest.fixture(scope="module")
def trainings():
    """Three methods with three seeds: the more noise, the worse; the first two have the same."""
    noises = {"good": 0.3, "alike": 0.3, "bad": 2.5}
    return {
        name: [
            training(make(600, 6, noise=noise, seed=seed + (10 if name == "alike" else 0)), seed) for seed in (1, 2, 3)
        ]
        for name, noise in noises.items()
    }


def test_rows_are_sorted_and_hold_the_numbers_of_the_evaluations(trainings):
    comparison = found(trainings)
    means = [each.mean("balanced_accuracy") for each in comparison.rows]
    assert means == sorted(means, reverse=True)
    assert comparison.rows[-1].method == "bad"
    assert comparison.samples == 600
    for each in comparison.rows:
        evaluations = [evaluate(one.predictions, num_resamples=0) for one in trainings[each.method]]
        for name in COMPARED:
            assert each.scores[name] == tuple(getattr(evaluation, name) for evaluation in evaluations)
        assert each.seeds == (1, 2, 3)
        assert each.seconds == (4.0, 5.0, 6.0)
        assert each.adjustable


def test_the_paired_interval_is_that_of_a_slow_bootstrap():
    ours, best = make(400, 4, noise=1.2, seed=3), make(400, 4, noise=0.3, seed=3)
    comparison = found({"ours": [training(ours)], "best": [training(best)]})
    difference = comparison.rows[1].differences["balanced_accuracy"]
    right = [(each.logits.argmax(dim=1) == each.targets).numpy().astype(float) for each in (ours, best)]
    targets, generator, draws = ours.targets.numpy(), np.random.default_rng(0), []
    for _ in range(4000):
        values = []
        for label in range(4):  # as many of each class in each resample
            rows = np.flatnonzero(targets == label)
            drawn = generator.choice(rows, len(rows))
            values.append((right[0][drawn] - right[1][drawn]).mean())
        draws.append(np.mean(values))
    low, high = np.quantile(draws, [0.025, 0.975])
    assert difference.value == pytest.approx(np.mean([(right[0] - right[1])[targets == c].mean() for c in range(4)]))
    assert difference.low == pytest.approx(low, abs=0.006)
    assert difference.high == pytest.approx(high, abs=0.006)


def test_the_interval_over_seeds_is_wider_than_that_of_their_spread(trainings):
    comparison = found(trainings)
    best, *others = comparison.rows
    for each in others:
        values = [
            a - b for a, b in zip(each.scores["balanced_accuracy"], best.scores["balanced_accuracy"], strict=True)
        ]
        difference = each.differences["balanced_accuracy"]
        assert difference.value == pytest.approx(fmean(values))
        assert difference.pairs == 3
        assert difference.high - difference.low > 2 * 1.96 * stdev(values) / 3**0.5


def test_what_cannot_be_told_apart(trainings):
    comparison = found(trainings)
    best, second, _ = comparison.rows
    assert [each.method for each in alike(comparison)] == [second.method]
    sentence = verdict_of_all(comparison)
    assert sentence.startswith(f"{best.title} has the highest balanced accuracy")
    assert f"{second.title} cannot be told apart from it (600 test samples and 3 seeds)" in sentence
    assert "every other method is below it" in sentence


def test_a_single_method_and_one_that_beats_all():
    good, bad = training(make(400, 4, noise=0.1)), training(make(400, 4, noise=5.0))
    assert "nothing is compared" in verdict_of_all(found({"good": [good]}))
    assert "to every other method (400 test samples, one seed)" in verdict_of_all(found({"a": [good], "b": [bad]}))
    assert "no method here can be told apart" in verdict_of_all(found({"a": [good], "b": [good]}))


def test_only_seeds_that_both_have_are_paired(trainings):
    some = {**trainings, "bad": trainings["bad"][1:]}
    assert found(some).rows[-1].differences["ece"].pairs == 2
    assert found({**trainings, "bad": []}).rows[-1].method != "bad"


def test_other_samples_have_no_difference():
    first, second = make(400, 4, noise=0.1), make(200, 4, noise=1.0)
    assert found({"a": [training(first)], "b": [training(second)]}).rows[1].differences == {}


def test_most_shifted_test_sets_are_adjusted_where_that_is_possible():
    predictions = make(600, 6)
    evaluation = full_evaluation(predictions, GROUPS)
    shifted = {each["name"]: each for each in evaluation["shifted"]}
    numbers = measured(evaluation)
    assert numbers["forward-50"] == shifted["forward-50"]["adjusted"]
    assert numbers["backward-50"] == shifted["backward-50"]["adjusted"]
    fixed = full_evaluation(replace(predictions, lambdas=None, source_prior=None), GROUPS)
    assert measured(fixed)["forward-50"] == fixed["shifted"][0]["as_trained"]


def test_adjusting_after_training_moves_cross_entropy_to_equal_classes():
    plain = make(600, 6, lambdas=(1,))
    moved = adjusted_after(training(plain), GROUPS)
    assert torch.allclose(moved.predictions.source_prior, torch.full((6,), 1 / 6))
    assert moved.evaluation["balanced_accuracy"] > evaluate(plain, num_resamples=0).balanced_accuracy
    assert moved.evaluation["calibration"]["before"]["ece"] == pytest.approx(moved.evaluation["ece"])
    assert "shifted" in moved.evaluation
    same = training(make(600, 6, lambdas=(0,)))
    assert adjusted_after(same, GROUPS) is same


def test_a_comparison_is_read_back_as_it_was_written(trainings, tmp_path):
    comparison = found(trainings, about={"class_counts": (5, 3)}, missing=("x",))
    comparison.save(tmp_path / "comparison.json")
    read = Comparison.load(tmp_path / "comparison.json")
    assert read.rows == comparison.rows
    assert read.missing == ("x",)
    (tmp_path / "comparison.json").write_text(json.dumps({"rows": 1}))
    with pytest.raises(UserError, match="is not a comparison"):
        Comparison.load(tmp_path / "comparison.json")


def test_nothing_is_adjusted_without_a_posterior():
    fixed = Predictions(torch.randn(40, 1, 2), torch.arange(40) % 2, torch.tensor([30, 10]))
    assert not found({"a": [training(fixed)]}).rows[0].adjustable
