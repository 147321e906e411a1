"""Scores of prediction sets: coverage and sizes counted from the sets themselves."""

import pytest
import torch

from balpoe.deployment.conformal import ConformalSets
from balpoe.deployment.validation_split import split_validation
from balpoe.method.intervals import wilson_interval
from balpoe.report.decide.sets import METHODS, set_scores, set_validation
from made_predictions import make

ALPHAS = (0.02, 0.1, 0.3)


@pytest.mark.parametrize("classes", [10, 100])
def test_coverage_and_sizes_are_those_of_the_sets(classes):
    both = make(4000, classes)
    chosen = torch.arange(4000) < 1500
    long_tail = chosen & (torch.arange(4000) % 7 < 6 - 4 * (both.targets > classes // 2))
    _, validation = split_validation(both.subset(long_tail))
    test = both.subset(~chosen)
    scores = set_scores(validation, test, (20, 100), ALPHAS)
    assert [(each.method, each.alpha) for each in scores] == [(method, alpha) for method in METHODS for alpha in ALPHAS]
    shares = torch.bincount(validation.targets, minlength=classes).double() / len(validation)
    few = test.class_counts < 20
    for each in scores:
        sets = ConformalSets.fit(validation, alpha=each.alpha, method=each.method)
        found = sets.predict(test)
        held = found[torch.arange(len(test)), test.targets].double()
        of_class = torch.stack([held[test.targets == label].mean() for label in range(classes)])
        size_of_class = torch.stack(
            [found[test.targets == label].sum(dim=1).double().mean() for label in range(classes)]
        )
        assert each.promise == sets.guarantee
        for name, weights in (
            ("held-out mix", shares), ("all alike", torch.full((classes,), 1 / classes)), ("few", few / few.sum()),
        ):  # fmt: skip
            assert each.groups[name].coverage == pytest.approx(float(weights.double() @ of_class))
            assert each.groups[name].size == pytest.approx(float(weights.double() @ size_of_class))


def test_the_interval_is_that_of_so_many_equal_samples():
    predictions = make(400, 5)
    (marginal, _) = set_scores(predictions, predictions, (20, 100), [0.1])
    found = marginal.groups["all alike"]
    low, high = wilson_interval(torch.tensor(400 * found.coverage).double(), torch.tensor(400.0).double()).tolist()
    assert found.interval == pytest.approx((low, high))


def test_an_alpha_that_the_samples_cannot_serve_is_left_out():
    predictions = make(400, 5)
    scores = set_scores(predictions.subset(torch.arange(12)), predictions, (20, 100))
    assert sorted({each.alpha for each in scores}) == [0.1, 0.15, 0.2, 0.3]
    assert set_scores(predictions.subset(torch.arange(1)), predictions, (20, 100)) == []


def test_a_run_without_held_out_samples_has_no_sets(tmp_path):
    assert set_validation(tmp_path) is None
