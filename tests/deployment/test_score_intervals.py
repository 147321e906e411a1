import numpy as np
import pytest
import torch

from balpoe import Predictions
from balpoe.deployment.score_intervals import ScoreIntervals, WeightedMean
from balpoe.method.intervals import mean_interval


def labelled(targets, groups=None):
    targets = torch.as_tensor(targets)
    return Predictions(torch.zeros(len(targets), 1, 3), targets, [9, 9, 9], [0], groups=groups)


def numbers(values):
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def test_a_mean_has_the_interval_of_the_normal_distribution():
    """Resampled within classes, of which each has its own variance and weight."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 3, 3000)
    values, class_weights = rng.normal(size=3000) * (1 + targets), np.array([1.0, 3, 0.5])
    mean = WeightedMean(numbers(values), numbers(class_weights[targets]))
    (low, high) = ScoreIntervals(labelled(targets)).of_means([mean])[0]
    masses = [class_weights[y] * (targets == y).sum() for y in range(3)]
    centre = np.average(values, weights=class_weights[targets])
    error = sum(
        (m / sum(masses)) ** 2 * values[targets == y].var() / (targets == y).sum() for y, m in enumerate(masses)
    )
    assert mean.value == pytest.approx(centre)
    half = 1.96 * error**0.5
    assert (low, high) == pytest.approx((centre - half, centre + half), abs=0.15 * half)


def test_shares_of_few_samples_have_a_width_and_those_of_many_are_resampled():
    targets = torch.tensor([0] * 8 + [1] * 200)
    right = torch.cat([torch.arange(8) % 4 > 0, (torch.arange(200) % 5 > 0)]).double()
    few = WeightedMean(right, (targets == 0).double())
    many = WeightedMean(right, (targets == 1).double())
    none = WeightedMean(right, (targets == 2).double())
    found = ScoreIntervals(labelled(targets)).of_shares([few, many, none])
    assert found[0] == mean_interval(right[:8], torch.zeros(8, dtype=torch.int64))
    assert found[1] == pytest.approx((0.8 - 1.96 * 0.4 / 200**0.5, 0.8 + 1.96 * 0.4 / 200**0.5), abs=0.015)
    assert found[1] == ScoreIntervals(labelled(targets)).of_means([many])[0]
    assert found[2] is none.value is None
    certain = ScoreIntervals(labelled(targets)).of_shares([WeightedMean(torch.ones(208).double(), many.mass)])[0]
    assert certain[0] < certain[1] == 1  # resampled, it would have no width


def test_samples_of_one_group_are_one_piece_of_evidence():
    targets, right = torch.arange(60) % 3, (torch.arange(60) % 4 > 0).double()
    once = ScoreIntervals(labelled(targets, torch.arange(60)))
    thrice = ScoreIntervals(labelled(targets.repeat(3), torch.arange(60).repeat(3)))
    ones = torch.ones(60, dtype=torch.float64)
    expected = once.of_shares([WeightedMean(right, ones)])[0]
    assert thrice.of_shares([WeightedMean(right.repeat(3), ones.repeat(3))])[0] == pytest.approx(expected)
    alone = ScoreIntervals(labelled(targets, torch.arange(60) % 2))
    assert alone.of_means([WeightedMean(right, ones)]) == [None]  # two groups say nothing of their spread


def test_all_means_are_of_the_same_resamples():
    targets, values = torch.zeros(50, dtype=torch.int64), torch.arange(50).double()
    ones = torch.ones(50, dtype=torch.float64)
    found = ScoreIntervals(labelled(targets)).of_means([WeightedMean(values, ones), WeightedMean(values + 1, ones)])
    assert found[1] == pytest.approx((found[0][0] + 1, found[0][1] + 1))
    assert ScoreIntervals(labelled(targets)).of_means([]) == []
