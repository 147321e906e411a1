"""Each metric against a naive loop over samples and classes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import UserError
from balpoe.evaluation.metrics import (
    accuracy_per_class,
    brier_scores,
    calibration_bins,
    classwise_sums,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihoods,
    rarest_third,
    shot_groups,
    weighted_mean,
)


def naive_bins(confidence, correct, weights, bins):
    """(lower, upper] as the definition says, 0 with the first bin."""
    sums = [[0.0, 0.0, 0.0] for _ in range(bins)]
    for c, hit, w in zip(confidence, correct, weights, strict=True):
        for b in range(bins):
            low, high = b / bins, (b + 1) / bins
            if (low < c <= high) or (c == 0 and b == 0):
                sums[b][0] += w
                sums[b][1] += w * c
                sums[b][2] += w * hit
    return sums


def naive_ece_mce(confidence, correct, weights, bins):
    sums = naive_bins(confidence, correct, weights, bins)
    total = sum(weights)
    gaps = [(mass / total, abs(hits - conf) / mass if mass else 0.0) for mass, conf, hits in sums]
    return sum(share * gap for share, gap in gaps), max(gap for _, gap in gaps)


probability = st.one_of(st.floats(0, 1), st.just(1.0), st.just(0.0), st.integers(0, 16).map(lambda k: k / 16))
samples = st.lists(st.tuples(probability, st.booleans(), st.floats(0.1, 5)), min_size=1, max_size=40)


@given(samples, st.sampled_from([1, 4, 16]), st.booleans())
def test_calibration_errors_against_a_naive_loop(rows, bins, weighted):
    confidence, correct, weights = (list(column) for column in zip(*rows, strict=True))
    weights = weights if weighted else [1.0] * len(rows)
    binned = calibration_bins(
        torch.tensor(confidence, dtype=torch.float64),
        torch.tensor(correct),
        bins,
        torch.tensor(weights, dtype=torch.float64) if weighted else None,
    )
    ece, mce = naive_ece_mce(confidence, correct, weights, bins)
    assert float(expected_calibration_error(binned)) == pytest.approx(ece, abs=1e-9)
    assert float(maximum_calibration_error(binned)) == pytest.approx(mce, abs=1e-9)
    assert float(binned.share.sum()) == pytest.approx(1.0)


def test_a_confidence_of_exactly_one_shares_the_last_bin():
    """torchmetrics gives it a bin of its own, and so an ECE of 0.515 and an MCE of 1 here."""
    bins = calibration_bins(torch.tensor([0.97, 1.0]), torch.tensor([True, False]), 15)
    assert float(expected_calibration_error(bins)) == pytest.approx(0.485)
    assert float(maximum_calibration_error(bins)) == pytest.approx(0.485)
    assert bins.mass.tolist() == [0] * 14 + [2]
    # float32 really gives it: a gap of 18 between two logits is enough.
    assert float(torch.tensor([18.0, 0.0]).softmax(dim=0)[0]) == 1.0


def test_a_small_ece_is_not_enough():
    """A predictor that knows nothing but the prior is calibrated: ECE is needed, and does not suffice."""
    targets = torch.arange(1000) % 10 < 7  # 70 % of one class
    bins = calibration_bins(torch.full((1000,), 0.7), targets)
    assert float(expected_calibration_error(bins)) == pytest.approx(0.0, abs=1e-6)


def test_edges_belong_to_the_bin_below():
    bins = calibration_bins(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), torch.ones(5), 4)
    assert bins.mass.tolist() == [2, 1, 1, 1]


@given(st.integers(0, 1000), st.booleans())
def test_classwise_bins_are_the_bins_of_each_column(seed, weighted):
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(30, 4, generator=generator).softmax(dim=1)
    targets = torch.randint(4, (30,), generator=generator)
    weights = torch.rand(30, generator=generator) if weighted else None
    first, second = (
        classwise_sums(p[rows], targets[rows], 15, None if weights is None else weights[rows])
        for rows in (slice(0, 11), slice(11, 30))
    )
    together = expected_calibration_error(first.joined(second).bins(15))
    for label in range(4):
        alone = expected_calibration_error(calibration_bins(p[:, label], targets == label, 15, weights))
        assert float(together[label]) == pytest.approx(float(alone))


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 1), st.floats(0.1, 5)), min_size=1, max_size=12))
def test_edges_of_classwise_bins_belong_to_the_bin_below(rows):
    """Probabilities on every edge, 0 and 1 among them, against the definition; each bin by itself."""
    first = [k / 16 for k, _, _ in rows]
    labels, weights = [label for _, label, _ in rows], [weight for *_, weight in rows]
    p = torch.tensor([[a, 1 - a] for a in first], dtype=torch.float64)
    sums = classwise_sums(p, torch.tensor(labels), 4, torch.tensor(weights, dtype=torch.float64))
    bins = sums.bins(4)
    for label in range(2):
        expected = naive_bins(p[:, label].tolist(), [each == label for each in labels], weights, 4)
        for part, column in zip(bins, zip(*expected, strict=True), strict=True):
            assert part[label].tolist() == pytest.approx(list(column), abs=1e-9)


def test_bins_of_blocks_can_be_added():
    torch.manual_seed(0)
    confidence, correct = torch.rand(100), torch.rand(100) < 0.5
    whole = calibration_bins(confidence, correct)
    halves = [calibration_bins(confidence[half], correct[half]) for half in (slice(0, 37), slice(37, 100))]
    for part, first, second in zip(whole, *halves, strict=True):
        torch.testing.assert_close(part, first + second)


def test_accuracy_per_class_and_groups():
    targets, correct = torch.tensor([0, 0, 1, 1, 1, 3]), torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.bool)
    per_class = accuracy_per_class(correct, targets, 5).tolist()
    assert per_class[:2] == pytest.approx([1 / 2, 2 / 3])
    assert math.isnan(per_class[2])
    assert per_class[3] == 0
    counts = torch.tensor([101, 100, 20, 19])
    groups = {name: mask.nonzero().flatten().tolist() for name, mask in shot_groups(counts).items()}
    assert groups == {"many": [0], "medium": [1, 2], "few": [3]}
    other = {name: int(mask.sum()) for name, mask in shot_groups(counts, (101, 100)).items()}
    assert other == {"many": 1, "medium": 0, "few": 3}
    with pytest.raises(UserError, match="few <= many"):
        shot_groups(counts, (100, 20))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=10))
def test_the_rarest_third_has_the_fewest_samples(counts):
    chosen = rarest_third(torch.tensor(counts)).tolist()
    assert sum(chosen) == math.ceil(len(counts) / 3)
    rare = [count for count, is_rare in zip(counts, chosen, strict=True) if is_rare]
    others = [count for count, is_rare in zip(counts, chosen, strict=True) if not is_rare]
    assert not others or max(rare) <= min(others)


@given(st.integers(0, 1000))
def test_likelihood_and_brier_against_a_naive_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(10, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(4, (10,), generator=generator)
    p = logits.softmax(dim=1)
    nll, brier = negative_log_likelihoods(logits.log_softmax(dim=1), targets), brier_scores(p, targets)
    for row in range(10):
        label = int(targets[row])
        assert float(nll[row]) == pytest.approx(-math.log(p[row, label]))
        assert float(brier[row]) == pytest.approx(sum((float(p[row, c]) - (c == label)) ** 2 for c in range(4)))


def test_weighted_mean():
    values, weights = torch.tensor([1.0, 3.0, torch.inf]), torch.tensor([[1.0, 3.0, 0.0], [2.0, 0.0, 0.5]])
    assert weighted_mean(values, weights).tolist() == [2.5, torch.inf]
    assert weighted_mean(values, weights[0]).item() == 2.5
    assert weighted_mean(torch.tensor([True, False])).item() == 0.5


@given(st.integers(0, 1000))
def test_rows_of_counts_are_resamples_one_by_one(seed):
    generator = torch.Generator().manual_seed(seed)
    confidence, correct = torch.rand(40, generator=generator), torch.rand(40, generator=generator) < 0.5
    targets = torch.randint(4, (40,), generator=generator)
    rows = torch.randint(40, (5, 40), generator=generator)
    counts = torch.stack([torch.bincount(each, minlength=40) for each in rows]).double()
    bins, per_class = calibration_bins(confidence, correct, 5, counts), accuracy_per_class(correct, targets, 5, counts)
    means = weighted_mean(confidence, counts)
    for number, each in enumerate(rows):
        for part, alone in zip(bins, calibration_bins(confidence[each], correct[each], 5), strict=True):
            torch.testing.assert_close(part[number], alone)
        torch.testing.assert_close(
            per_class[number], accuracy_per_class(correct[each], targets[each], 5), equal_nan=True
        )
        torch.testing.assert_close(means[number], weighted_mean(confidence[each]))
