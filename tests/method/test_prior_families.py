"""The most likely prior, tested by the conditions of a maximum and by long plain EM."""

import pytest
import torch

from balpoe import tempered_prior
from balpoe.method.prior_families import log_likelihood, prior_family, slopes
from gaussians import Gaussians, long_tail, random_prior


def uniform(classes):
    return torch.full((classes,), 1 / classes, dtype=torch.float64)


def ones(samples):
    return torch.ones(samples, dtype=torch.float64)


def drawn(classes, dimensions, separation, samples, seed=0):
    """Ratios of samples from a skewed prior."""
    problem = Gaussians(classes, dimensions, separation, seed)
    x, _ = problem.sample(random_prior(classes, problem.generator, 1.5), samples)
    return problem.log_likelihood(x).softmax(dim=1)


def free(ratios, weights=None):
    weights = ones(len(ratios)) if weights is None else weights
    return prior_family("free", None, uniform(ratios.shape[1])).fit(ratios, weights).prior


def plain_em(ratios, steps):
    prior = uniform(ratios.shape[1])
    for _ in range(steps):
        joint = ratios * prior
        prior = (joint / joint.sum(dim=1, keepdim=True)).mean(dim=0)
    return prior


def assert_optimal(ratios, weights, prior):
    """Slopes written out, class by class: 1 where there is a share, at most 1 where there is none."""
    assert float(prior.sum()) == pytest.approx(1, abs=1e-12)
    assert float(prior.min()) >= 0
    for label, share in enumerate(prior.tolist()):
        slope = float((weights * ratios[:, label] / (ratios @ prior)).sum() / weights.sum())
        assert slope <= 1 + 1e-6
        if share > 0:
            assert slope >= 1 - 1e-6


@pytest.mark.parametrize(
    ("classes", "dimensions", "separation", "samples"),
    [(23, 5, 1.0, 3000), (23, 5, 1.0, 200), (40, 3, 0.3, 1000), (60, 8, 1.0, 30), (10, 8, 20.0, 500), (4, 2, 1.0, 1)],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_conditions_of_a_maximum(classes, dimensions, separation, samples, weighted):
    """Overlapping classes, more classes than samples, classes that are never confused, and one sample alone."""
    for seed in range(3):
        ratios = drawn(classes, dimensions, separation, samples, seed)
        weights = torch.rand(samples, generator=torch.Generator().manual_seed(seed)).double() + 0.01
        weights = weights if weighted else ones(samples)
        assert_optimal(ratios, weights, free(ratios, weights))


def test_against_long_plain_em():
    """EM comes from below, and has nearly arrived."""
    for seed in range(3):
        ratios = drawn(12, 5, 1.0, 600, seed)
        ours, slow = free(ratios), plain_em(ratios, 4000)
        gain = float(log_likelihood(ratios, ones(600), ours) - log_likelihood(ratios, ones(600), slow))
        assert -1e-9 < gain < 1e-2
        torch.testing.assert_close(ours, slow, rtol=0, atol=5e-3)


def test_shares_of_overlapping_classes_come_back_from_zero():
    """23 classes in five dimensions: the search passes through zero for shares of up to a few per cent."""
    problem = Gaussians(23, 5, 1.0, seed=1)
    target = random_prior(23, problem.generator, 1.5)
    x, _ = problem.sample(target, 5000)
    found = free(problem.log_likelihood(x).softmax(dim=1))
    assert float(target[found == 0].max() if bool((found == 0).any()) else 0) < 0.01
    assert float((found - target).abs().max()) < 0.03


def test_classes_that_nothing_tells_apart_and_classes_that_no_sample_is_of():
    ratios = drawn(5, 4, 1.0, 300)
    twins = torch.cat([ratios, ratios[:, :1], torch.zeros(300, 1, dtype=torch.float64)], dim=1)
    found = free(twins)
    assert_optimal(twins, ones(300), found)
    torch.testing.assert_close(found[:1] + found[5:6], free(ratios)[:1], rtol=0, atol=1e-6)
    assert float(found[6]) == 0


def test_any_start_leads_to_the_same_maximum():
    ratios = drawn(12, 5, 1.0, 400)
    members = prior_family("free", None, uniform(12))
    for seed in range(4):
        start = 0.99 * random_prior(12, torch.Generator().manual_seed(seed), 3.0) + 0.01 / 12
        assert_optimal(ratios, ones(400), members.fit(ratios, ones(400), start).prior)


def test_a_weight_of_three_is_three_rows():
    ratios = drawn(6, 4, 0.7, 100)
    times = torch.arange(100) % 4
    torch.testing.assert_close(free(ratios, times.double()), free(ratios.repeat_interleave(times, dim=0)))


def test_tempered_against_a_fine_grid():
    train = long_tail(8, 30)
    family = prior_family("tempered", train, uniform(8))
    grid = torch.linspace(-4, 4, 8001, dtype=torch.float64)
    for lambda_ in (-1.3, 0.2, 1.0):
        problem = Gaussians(8, separation=0.6, seed=5)
        x, _ = problem.sample(tempered_prior(train, lambda_), 400)
        ratios = problem.log_likelihood(x).softmax(dim=1)
        best = grid[log_likelihood(ratios, ones(400), tempered_prior(train, grid)).argmax()]
        found = family.fit(ratios, ones(400))
        assert found.lambda_ == pytest.approx(float(best), abs=1e-3)
        torch.testing.assert_close(found.prior, tempered_prior(train, found.lambda_))


@pytest.mark.parametrize("name", ["free", "tempered"])
def test_one_step_to_other_samples_against_a_search(name):
    """Random weights move the estimate; one step goes nearly all of the way."""
    train = long_tail(6, 20)
    problem = Gaussians(6, separation=0.8, seed=2)
    x, _ = problem.sample(train, 2000)
    ratios, family = problem.log_likelihood(x).softmax(dim=1), prior_family(name, train, uniform(6))
    found = family.fit(ratios, ones(2000))
    times = torch.empty(20, 2000, dtype=torch.float64).exponential_(generator=problem.generator)
    searches = [family.fit(ratios, each) for each in times]
    exact = torch.stack([each.prior if name == "free" else torch.tensor(each.lambda_) for each in searches]).double()
    redrawn = torch.stack([slopes(ratios, each, found.prior) for each in times])
    step = family.refit(found, ratios, ones(2000), redrawn)
    start = found.prior if name == "free" else found.lambda_
    assert step.shape == exact.shape
    assert float((step - exact).norm()) < 0.15 * float((exact - start).norm())
