import pytest
import torch

from balpoe.method.intervals import bootstrap, mean_difference_interval, stratified_resample, wilson_interval


def test_a_resample_keeps_the_classes_and_draws_evenly():
    targets = torch.tensor([2, 0, 0, 1, 2, 2, 0])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.zeros(7)
    for _ in range(3000):
        rows = stratified_resample(targets, generator)
        assert torch.equal(torch.bincount(targets[rows]), torch.bincount(targets))
        drawn += torch.bincount(rows, minlength=7)
    torch.testing.assert_close(drawn / 3000, torch.ones(7), rtol=0, atol=0.06)


def test_bootstrap_of_a_mean_against_its_known_deviation():
    torch.manual_seed(0)
    values = torch.randn(400, dtype=torch.float64)
    low, high = bootstrap(lambda counts: (counts @ values / 400)[:, None], torch.zeros(400, dtype=torch.long))
    deviation = float(values.std() / 20)
    assert float(low) == pytest.approx(float(values.mean()) - 1.96 * deviation, abs=0.02)
    assert float(high) == pytest.approx(float(values.mean()) + 1.96 * deviation, abs=0.02)


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
    rows = [stratified_resample(targets, generator) for _ in range(20)]
    assert torch.equal(torch.cat(seen), torch.stack([torch.bincount(each, minlength=8) for each in rows]).double())
    assert len(seen) == -(-20 // at_once)


def test_a_component_that_is_never_measured_is_nan():
    result = bootstrap(
        lambda counts: torch.tensor([[1.0, float("nan")]] * len(counts)), torch.zeros(3).long(), num_resamples=5
    )
    assert result[:, 0].tolist() == [1.0, 1.0]
    assert result[:, 1].isnan().all()


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
