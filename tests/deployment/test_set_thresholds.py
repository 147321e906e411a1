"""Thresholds: what counts that stand for shares can cost, and drawn thresholds."""

import pytest
import torch

from balpoe.deployment.class_pools import ALL
from balpoe.deployment.set_thresholds import coverage_thresholds, label_weights, shortfall

PRIOR = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
COUNTS = torch.tensor([30, 12, 8])
TARGETS = torch.repeat_interleave(torch.arange(3), COUNTS)


def mean_coverage(alpha, draws=600):
    """Mean of the exact coverage under the prior of thresholds of random scores, uniform in [0, 1 + label]."""
    generator = torch.Generator().manual_seed(0)
    weights = label_weights(PRIOR, COUNTS / COUNTS.sum())
    widths, shares = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), []
    for _ in range(draws):
        scores = torch.rand(len(TARGETS), generator=generator, dtype=torch.float64) * widths[TARGETS]
        t = coverage_thresholds(scores, TARGETS, torch.full((3,), ALL), alpha, weights)
        shares.append(PRIOR @ (t / widths).clamp(0, 1))
    return float(torch.stack(shares).mean())


def test_fixed_counts_stay_above_the_shortfall_and_near_the_level():
    found = mean_coverage(0.2)
    assert found >= 0.8 - shortfall(PRIOR, COUNTS)
    assert 0.79 <= found <= 0.83


def test_a_threshold_that_asks_for_the_shortfall_too_holds_the_level():
    """The bound in `shortfall`, asked for beforehand."""
    assert mean_coverage(0.2 - shortfall(PRIOR, COUNTS)) >= 0.8


@pytest.mark.slow
def test_drawn_thresholds_meet_the_level():
    """19 samples of one class at 0.88: at least 18 of 20 otherwise."""
    generator = torch.Generator().manual_seed(0)
    one, targets = torch.zeros(1), torch.zeros(19, dtype=torch.long)
    plain, drawn = [], []
    for _ in range(1000):
        scores = torch.rand(19, generator=generator, dtype=torch.float64)
        spare = torch.rand(1, generator=generator, dtype=torch.float64)
        weights = torch.ones(1, dtype=torch.float64)
        plain.append(coverage_thresholds(scores, targets, one, 0.12, weights))
        drawn.append(coverage_thresholds(scores, targets, one, 0.12, weights, spare).clamp(max=1))
    assert abs(float(torch.cat(plain).mean()) - 0.9) < 0.009
    assert abs(float(torch.cat(drawn).mean()) - 0.88) < 0.009
