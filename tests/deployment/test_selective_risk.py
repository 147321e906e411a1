"""Risk against coverage, in the open, and thresholds that keep their promise."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import UserError, risk_coverage
from balpoe.deployment.selective_risk import lowest_threshold


def slow_curve(confidence, correct, weights):
    """Every threshold by itself."""
    rows = list(zip(confidence, correct, weights, strict=True))
    total, points = sum(weights), []
    for threshold in sorted(set(confidence), reverse=True):
        answered = [(right, weight) for sure, right, weight in rows if sure >= threshold]
        mass = sum(weight for _, weight in answered)
        points.append((threshold, mass / total, sum(weight for right, weight in answered if not right) / mass))
    return points


def slow_area(points):
    before, area = 0.0, 0.0
    for _, coverage, risk in points:
        area += (coverage - before) * risk
        before = coverage
    return area


samples = st.lists(
    st.tuples(st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0]) | st.floats(0, 1), st.booleans(), st.floats(0.1, 10)),
    min_size=1,
    max_size=30,
)


@given(samples)
def test_against_every_threshold_by_itself(rows):
    confidence, correct, weights = (list(column) for column in zip(*rows, strict=True))
    curve = risk_coverage(
        torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct), torch.tensor(weights, dtype=torch.float64)
    )
    points = slow_curve(confidence, correct, weights)
    found = list(zip(curve.threshold.tolist(), curve.coverage.tolist(), curve.risk.tolist(), strict=True))
    assert [point[0] for point in found] == [point[0] for point in points]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(points))
    assert curve.area == pytest.approx(slow_area(points))
    assert curve.excess_area >= -1e-9


@given(st.lists(st.tuples(st.booleans(), st.floats(0.1, 10)), min_size=1, max_size=5))
def test_no_order_has_less_than_the_least_area(rows):
    """Of all orders the least area is the best, and with equal weights each perfect one has it."""
    correct, weights = (torch.tensor(column) for column in zip(*rows, strict=True))
    falling = torch.linspace(1, 0.1, len(rows), dtype=torch.float64)
    orders = [torch.tensor(order) for order in itertools.permutations(range(len(rows)))]
    areas = [risk_coverage(falling, correct[order], weights[order]).area for order in orders]
    assert risk_coverage(falling, correct, weights).least_area == pytest.approx(min(areas), abs=1e-12)
    perfect = correct.double().argsort(descending=True, stable=True)
    assert risk_coverage(falling, correct[perfect]).excess_area == 0


def test_area_of_known_curves():
    right = torch.tensor([True] * 60 + [False] * 40)
    falling = torch.linspace(1, 0, 100)
    best = risk_coverage(falling, right)
    assert best.area == pytest.approx(sum((k - 60) / k for k in range(61, 101)) / 100)
    assert best.excess_area == 0
    assert risk_coverage(torch.ones(100), right).area == pytest.approx(0.4)
    assert risk_coverage(falling, ~right).area > 0.8 * 0.6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 0.1], [True]), "must be one number for each sample"),
        (([], []), "confidence has no samples"),
        (([0.5, math.nan], [True, False]), "confidence is NaN for sample 1"),
        (([0.5], [True], [-1.0]), "weights must be finite numbers from 0"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(UserError, match=message):
        risk_coverage(*map(torch.tensor, arguments))


def test_without_doubt_it_is_the_lowest_for_these_samples():
    confidence = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5])
    correct = torch.tensor([True, False, True, True, False])
    assert lowest_threshold(confidence, correct, 0.25) == pytest.approx(0.6)
    assert lowest_threshold(confidence, correct, 0.4) == pytest.approx(0.5)
    assert lowest_threshold(confidence, ~correct, 0.1) is None


def true_error(threshold):
    """Of answers to samples whose confidence is uniform on (0, 1), and that are wrong with probability (1 - c) / 2."""
    return (1 - threshold) / 4


def draw(samples, generator):
    confidence = torch.rand(samples, generator=generator, dtype=torch.float64)
    return confidence, torch.rand(samples, generator=generator, dtype=torch.float64) > (1 - confidence) / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equal", "weighted", "groups"])
def test_a_promise_is_kept(kind):
    """A broken promise in at most a tenth of the draws, but for chance; the plain threshold breaks about half."""
    generator, broken, plain, answered = torch.Generator().manual_seed(0), 0, 0, 0.0
    for _ in range(100):
        confidence, correct = draw(600, generator)
        weights = groups = None
        if kind == "weighted":  # independent of right and wrong, so that the true error is the same
            weights = torch.randint(1, 4, (600,), generator=generator).double()
        if kind == "groups":  # each sample three times: they are not three pieces of evidence
            groups = torch.arange(600).repeat_interleave(3)
            confidence, correct = confidence.repeat_interleave(3), correct.repeat_interleave(3)
        found = lowest_threshold(confidence, correct, 0.15, weights, groups, doubt=0.1)
        if found is not None:
            broken += true_error(found) > 0.15
            answered += (1 - found) / 100
        plain += true_error(lowest_threshold(confidence, correct, 0.15, weights, groups)) > 0.15
    assert broken <= 18  # binomial with 100 draws of 0.1: above that in less than 1 %
    assert plain > 30
    assert answered > (0.33 if kind == "equal" else 0.2)  # of the 0.6 that could be


def test_repeated_samples_would_break_the_promise_without_groups():
    generator = torch.Generator().manual_seed(0)
    confidence, correct = draw(1000, generator)
    many = (confidence.repeat_interleave(20), correct.repeat_interleave(20), 0.15)
    alone = lowest_threshold(*many, doubt=0.1)
    assert alone < lowest_threshold(*many, groups=torch.arange(1000).repeat_interleave(20), doubt=0.1)


def test_too_few_samples_promise_nothing():
    assert lowest_threshold(torch.linspace(1, 0.5, 20), torch.ones(20), 0.05, doubt=0.05) is None


def test_an_error_that_few_samples_have_is_found():
    """At 3 % one in eight samples can be answered: at a quarter, where the tests would else begin, all are refused."""
    confidence, correct = draw(20_000, torch.Generator().manual_seed(0))
    found = lowest_threshold(confidence, correct, 0.03, doubt=0.05)
    assert found is not None
    assert 0.02 < true_error(found) <= 0.03
