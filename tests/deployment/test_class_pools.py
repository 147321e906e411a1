"""Pools of classes: sizes, and k-means against scikit-learn's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from balpoe.deployment import class_pools
from balpoe.deployment.class_pools import ALL, least_samples, own_pools, similar_pools


@given(st.floats(0.01, 0.9))
def test_least_samples_have_a_threshold(alpha):
    n = least_samples(alpha)
    assert (n + 1) * (1 - alpha) <= n + 1e-6
    assert n == 1 or n * (1 - alpha) > n - 1 - 1e-6


def test_rare_classes_with_too_few_samples_together_take_all():
    found = own_pools(torch.tensor([0] * 20 + [1] * 5 + [2] * 3), 3, 0.1)
    assert found.pool_of.tolist() == [0, ALL, ALL]
    assert found.rare.tolist() == [False, True, True]


@pytest.mark.parametrize("clusters", [2, 3])
def test_k_means_are_as_good_as_scikit_learns(clusters):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(60, 6, generator=generator, dtype=torch.float64)
    weights = (3 * torch.randn(60, generator=generator, dtype=torch.float64)).exp()
    found = class_pools._k_means(points, weights, clusters, generator)
    spread = 0.0
    for cluster in range(clusters):
        own, weight = points[found == cluster], weights[found == cluster]
        spread += float(weight @ (own - (weight @ own) / weight.sum()).square().sum(dim=1))
    theirs = KMeans(clusters, n_init=20, random_state=0).fit(points.numpy(), sample_weight=weights.numpy())
    assert spread <= 1.001 * theirs.inertia_


def test_samples_that_made_pools_set_no_threshold():
    targets = torch.arange(5000) % 100
    scores = torch.rand(5000, generator=torch.Generator().manual_seed(0)) + (targets >= 50)
    found = similar_pools(scores, targets, 100, 0.1)
    part = 100 / 175  # the paper's rule for 100 classes
    assert torch.equal(torch.bincount(targets[found.rows]), torch.full((100,), 50 - round(50 * part)))
    assert not set(found.pool_of[:50].tolist()) & set(found.pool_of[50:].tolist())
    other = similar_pools(scores, targets, 100, 0.1, seed=1)
    assert not torch.equal(other.rows, found.rows)


def test_a_pool_counts_its_own_samples_alone(monkeypatch):
    """Classes that are too rare to be compared are in no pool, and make none large enough."""
    counts = torch.tensor([17] + 99 * [30] + 30 * [3])
    targets = torch.arange(130).repeat_interleave(counts)
    clusters = torch.tensor([0] + 99 * [1])  # the first class is alone, with 7 samples that did not decide on pools
    monkeypatch.setattr(class_pools, "_k_means", lambda *_: clusters)
    found = similar_pools(torch.rand(len(targets)), targets, 130, 0.1)
    assert int(found.rows[targets == 0].sum()) == 7 < least_samples(0.1)
    assert int(found.rows[targets >= 100].sum()) == 30
    assert found.pool_of.tolist() == [ALL] + 99 * [1] + 30 * [ALL]
    assert torch.equal(found.rare, found.pool_of == ALL)


def test_too_few_samples_make_one_pool():
    targets = torch.arange(100) % 10
    found = similar_pools(torch.rand(100), targets, 10, 0.1)
    assert found.pool_of.tolist() == [ALL] * 10
    assert bool(found.rows.all())
    assert not bool(found.rare.any())


def test_equal_points_make_clusters_of_nothing_worse():
    points, weights = torch.zeros(5, 2, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    assert len(class_pools._k_means(points, weights, 3, torch.Generator().manual_seed(0))) == 5
