import pytest
import torch
from scipy.special import stdtrit

from balpoe.method.intervals import (
    bootstrap,
    effective_counts,
    evidence_counts,
    exact_interval,
    mean_difference_interval,
    mean_interval,
    stratified_resample,
    wilson_interval,
)
from balpoe.private_apis import standard_gamma


def test_a_resample_keeps_the_classes_and_draws_evenly():
    targets = torch.tensor([2, 0, 0, 1, 2, 2, 0])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.zeros(7)
    for _ in range(3000):
        rows = stratified_resample(targets, generator)[0]
        assert torch.equal(torch.bincount(targets[rows]), torch.bincount(targets))
        drawn += torch.bincount(rows, minlength=7)
    torch.testing.assert_close(drawn / 3000, torch.ones(7), rtol=0, atol=0.06)


def test_bootstrap_of_a_mean_against_its_known_deviation():
    torch.manual_seed(0)
    values = torch.randn(400, dtype=torch.float64)
    targets = torch.zeros(400, dtype=torch.long)
    low, high = bootstrap(lambda counts: (counts @ values / 400)[:, None], targets, num_resamples=4000)
    deviation = float(values.std() / 20)
    assert float(low) == pytest.approx(float(values.mean()) - 1.96 * deviation, abs=0.1 * deviation)
    assert float(high) == pytest.approx(float(values.mean()) + 1.96 * deviation, abs=0.1 * deviation)


def test_the_seed_decides():
    values, targets = torch.arange(50.0, dtype=torch.float64), torch.zeros(50, dtype=torch.long)

    def mean(counts):
        return (counts @ values / 50)[:, None]

    first = bootstrap(mean, targets, num_resamples=50, seed=1)
    assert torch.equal(first, bootstrap(mean, targets, num_resamples=50, seed=1))
    assert not torch.equal(first, bootstrap(mean, targets, num_resamples=50, seed=2))


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_counts_are_those_of_resamples_drawn_one_by_one(monkeypatch, at_once):
    targets, seen = torch.tensor([2, 0, 0, 1, 2, 2, 0, 1]), []
    monkeypatch.setattr("balpoe.method.intervals.RESAMPLED_VALUES", at_once * len(targets))
    bootstrap(lambda counts: seen.append(counts) or counts, targets, num_resamples=20, seed=3)
    generator = torch.Generator().manual_seed(3)
    rows = list(stratified_resample(targets, generator, 20))
    assert torch.equal(torch.cat(seen), torch.stack([torch.bincount(each, minlength=8) for each in rows]).double())
    assert len(seen) == -(-20 // at_once)


def test_a_component_that_is_never_measured_is_nan():
    result = bootstrap(
        lambda counts: torch.tensor([[1.0, float("nan")]] * len(counts)), torch.zeros(3).long(), num_resamples=5
    )
    assert result[:, 0].tolist() == [1.0, 1.0]
    assert result[:, 1].isnan().all()


def test_classes_of_one_sample_are_not_sure():
    """Two classes, one sample each, both right: Laplace's shares of 2/3 give each a variance of 2/9."""
    low, high = mean_interval(torch.tensor([1, 1]), torch.tensor([0, 1]))
    assert low == pytest.approx(max(0, 1 - stdtrit(4, 0.975) * (2 * 2 / 9) ** 0.5 / 2))
    assert high == 1.0
    many = torch.arange(3000) % 1000
    low, _ = mean_interval(torch.ones(3000), many)
    assert low == pytest.approx(1 - stdtrit(4000, 0.975) * (1000 * 0.16 / 3) ** 0.5 / 1000)


def test_observations_of_several_samples_and_classes_that_weigh_more():
    """A group counts by its samples, and a class by its weight: against the same formula, one class after the other."""
    shares, classes = torch.tensor([1.0, 0.5, 0.0, 0.75]), torch.tensor([0, 0, 2, 2])
    sizes, weights = torch.tensor([10, 30, 5, 5]), torch.tensor([3.0, 1.0])
    low, high = mean_interval(shares, classes, sizes=sizes, class_weights=weights)
    worth = [40**2 / 1000, 2.0]
    mean = [(10 * 1 + 30 * 0.5) / 40, 0.375]
    square = [(10 * 1 + 30 * 0.25) / 40, 0.75**2 / 2]
    spread = []
    for n, first, second, weight in zip(worth, mean, square, (0.75, 0.25), strict=True):
        spread.append(weight**2 * ((n * second + 1) / (n + 2) - ((n * first + 1) / (n + 2)) ** 2) / n)
    freedom = sum(spread) ** 2 / sum(each**2 / (n + 1) for each, n in zip(spread, worth, strict=True))
    middle, half = 0.75 * mean[0] + 0.25 * mean[1], stdtrit(freedom, 0.975) * sum(spread) ** 0.5
    assert (low, high) == pytest.approx((max(0, middle - half), min(1, middle + half)))


def tracks(generator, right, number, together, frames=10):
    """Shares of right frames of the tracks of one class: how often, and how much those of a track are alike."""
    if together == 1:
        return (torch.rand(number, generator=generator) < right).double()
    shape = (1 - together) / together
    beta = torch.stack([standard_gamma(torch.full((number,), shape * each).double(), generator)
                        for each in (right, 1 - right)])  # fmt: skip
    chance = beta[0] / beta.sum(dim=0)
    return (torch.rand(frames, number, generator=generator) < chance).double().mean(dim=0)


@pytest.mark.parametrize("number", range(2, 11))
@pytest.mark.parametrize("together", [0.2, 1.0])
def test_intervals_of_accuracies_cover_with_two_to_ten_groups_a_class(number, together):
    """Three classes of tracks, right or wrong as a whole or in part: the true accuracy is inside, and there is a width.

    Resampled, ten tracks of which 95 % are right cover it in fewer than 70 % of the draws, and two in a third.
    """
    generator = torch.Generator().manual_seed(number)
    classes, right = torch.arange(3).repeat_interleave(number), (0.97, 0.9, 0.6)
    inside = 0
    for _ in range(200):
        shares = torch.cat([tracks(generator, each, number, together) for each in right])
        low, high = mean_interval(shares, classes)
        inside += low <= sum(right) / 3 <= high
        assert high - low > 0.08
    assert inside >= 0.92 * 200


@pytest.mark.parametrize("number", [2, 4, 10])
def test_intervals_of_differences_cover_with_few_groups_a_class(number):
    generator = torch.Generator().manual_seed(number)
    classes, pairs = torch.arange(3).repeat_interleave(number), ((0.97, 0.9), (0.9, 0.7), (0.6, 0.6))
    truth, inside = sum(a - b for a, b in pairs) / 3, 0
    for _ in range(200):
        ours, theirs = (torch.cat([tracks(generator, pair[each], number, 1.0) for pair in pairs]) for each in range(2))
        low, high = mean_difference_interval(ours - theirs, classes)
        inside += low <= truth <= high
        assert high > low
    assert inside >= 0.92 * 200


@pytest.mark.parametrize("number", [4, 6, 10])
@pytest.mark.parametrize("classes", [1, 2, 10])
def test_resampled_means_cover_with_four_to_ten_groups(number, classes):
    """Losses of tracks: Student's stretch, and classes of a single track joined: one says nothing of its spread."""
    classes = min(classes, number)
    generator = torch.Generator().manual_seed(10 * number + classes)
    groups = torch.arange(number).repeat_interleave(5)
    inside = 0
    for draw in range(150):
        values = (1 + torch.randn(number, generator=generator).double()).repeat_interleave(5)
        low, high = bootstrap(
            lambda counts, values=values: (counts @ values / len(values))[:, None], groups % classes, groups=groups,
            num_resamples=200, seed=draw,
        )  # fmt: skip
        inside += float(low) < 1 < float(high)
    assert inside >= 0.9 * 150


def test_wilson_against_published_values():
    """Newcombe (1998), Table I: 81 of 263, 15 of 148, 0 of 20 and 1 of 29, score method without correction."""
    low, high = wilson_interval(torch.tensor([81.0, 15, 0, 1]), torch.tensor([263.0, 148, 20, 29]))
    assert low.tolist() == pytest.approx([0.2553, 0.0624, 0.0000, 0.0061], abs=1e-4)
    assert high.tolist() == pytest.approx([0.3662, 0.1605, 0.1611, 0.1718], abs=1e-4)


@pytest.mark.parametrize("sizes", [[1] * 40, [1] * 20 + [3] * 20, [2] * 10 + [30] * 10])
def test_interval_of_a_difference_covers_it_also_with_a_sample_or_two_a_class(sizes):
    """Two predictors of known accuracies on each class: the true mean difference lies in 93 % of intervals or more."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    better = torch.linspace(0.0, 0.25, len(sizes), dtype=torch.float64)  # where only the first one is right
    worse = torch.full_like(better, 0.08)
    truth, inside = float((better - worse).mean()), 0
    for _ in range(400):
        drawn = torch.rand(len(targets), generator=generator, dtype=torch.float64)
        first, second = better[targets], worse[targets]
        low, high = mean_difference_interval((drawn < first).double() - (drawn > 1 - second).double(), targets)
        inside += low <= truth <= high
    assert 0.93 <= inside / 400 < 1


def test_predictors_that_never_differ_may_still_do_so():
    low, high = mean_difference_interval(torch.zeros(5), torch.arange(5))
    assert -0.6 < low < -0.1
    assert high == -low


def counts_of(targets, groups, **settings):
    """What a statistic is given, in one block; at last everything once, for the value itself."""
    seen = []
    bootstrap(lambda counts: seen.append(counts) or counts, targets, groups=groups, **settings)
    assert torch.equal(seen[-1], torch.ones(1, len(targets)).double())
    return torch.cat(seen[:-1])


def test_groups_are_weighted_as_a_whole_and_classes_keep_their_size():
    targets, groups = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2]), torch.tensor([4, 4, 9, 9, 7, 7, 5, 5])
    counts = counts_of(targets, groups, num_resamples=200)
    assert bool((counts > 0).all())
    for label in range(3):
        mine = targets == label
        torch.testing.assert_close(counts[:, mine].sum(dim=1), torch.full((200,), float(mine.sum())).double())
        for group in groups[mine].unique():
            assert bool((counts[:, mine & (groups == group)].diff(dim=1) == 0).all())
    alone = counts_of(targets[:3], torch.zeros(3).long(), num_resamples=9)  # one group: there is nothing to vary
    torch.testing.assert_close(alone, torch.ones(9, 3).double())


def test_the_deviation_of_a_mean_over_groups_is_the_unbiased_estimate():
    torch.manual_seed(0)
    for number in (4, 6, 30):
        values = torch.randn(number, dtype=torch.float64)
        targets, groups = torch.zeros(5 * number).long(), torch.arange(number).repeat_interleave(5)
        means = counts_of(targets, groups, num_resamples=5000) @ values.repeat_interleave(5) / (5 * number)
        assert float(means.std()) == pytest.approx(float(values.std() / number**0.5), rel=0.05)


def test_intervals_over_groups_cover_where_those_over_samples_do_not():
    """Ten frames a track, nearly all of them right or wrong together: 32 tracks are 32 observations, not 320."""
    generator, covered = torch.Generator().manual_seed(0), [0, 0]
    groups = torch.arange(32).repeat_interleave(10)
    for draw in range(150):
        frames = 0.3 * torch.randn(320, generator=generator)
        values = torch.randn(32, generator=generator).repeat_interleave(10) + frames
        for place, kind in enumerate((None, groups)):
            low, high = bootstrap(
                lambda counts, values=values: (counts @ values.double() / 320)[:, None], groups % 4,
                groups=kind, num_resamples=200, seed=draw,
            )  # fmt: skip
            covered[place] += float(low) < 0 < float(high)
    assert covered[0] < 0.6 * 150
    assert covered[1] > 0.9 * 150


def test_evidence_is_counted_in_groups_and_their_sizes_matter():
    targets, groups = torch.tensor([0] * 30 + [1] * 30 + [2]), torch.tensor([0] * 30 + [*range(30)] + [1])
    assert evidence_counts(targets, 4).tolist() == [30, 30, 1, 0]
    assert evidence_counts(targets, 4, groups).tolist() == [1, 30, 1, 0]
    assert effective_counts(targets, 4).tolist() == [30, 30, 1, 0]
    assert effective_counts(targets, 4, groups).tolist() == [1, 30, 1, 0]
    uneven = effective_counts(torch.zeros(104).long(), 1, torch.tensor([0] * 100 + [1, 2, 3, 4]))
    assert float(uneven) == pytest.approx(104**2 / (100**2 + 4))


def test_exact_intervals_are_scipys():
    from scipy.stats import binomtest

    for hits, total in [(0, 1), (1, 1), (3, 10), (10, 10), (0, 50), (499, 1000)]:
        for level in (0.8, 0.95):
            known = binomtest(hits, total).proportion_ci(level, method="exact")
            low, high = exact_interval(torch.tensor(float(hits)), torch.tensor(total), level).tolist()
            assert (low, high) == pytest.approx((known.low, known.high))
