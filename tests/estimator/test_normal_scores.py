"""Normal scores against scipy's ranks and quantiles; which features get them."""

import numpy as np
import pytest
from scipy.stats import kurtosis as scipy_kurtosis
from scipy.stats import norm, rankdata

from balpoe.estimator.inputs import FeatureInputs
from balpoe.estimator.normal_scores import heavy_tailed_columns, kurtosis, normal_scores


def test_scores_are_normal_quantiles_of_mean_ranks():
    values = np.random.default_rng(0).integers(0, 40, 300).astype(float)  # with ties
    expected = norm.ppf((rankdata(values) - 0.5) / 300)
    np.testing.assert_allclose(normal_scores(values, np.ones(300))(values), expected, atol=1e-12)


def test_a_weight_of_three_is_three_samples():
    chance = np.random.default_rng(1)
    values, times = chance.standard_cauchy(50), chance.integers(1, 4, 50)
    weighted = normal_scores(values, times.astype(float))(values)
    repeated = normal_scores(np.repeat(values, times), np.ones(times.sum()))(values)
    np.testing.assert_allclose(weighted, repeated)


def test_many_values_have_a_thousand_knots():
    values = np.random.default_rng(2).standard_cauchy(20_000)
    scores = normal_scores(values, np.ones(20_000))
    assert len(scores.values) == 1000
    expected = norm.ppf((rankdata(values) - 0.5) / 20_000)
    inside = np.abs(expected) < 2.5  # between the last knots are few values, far apart
    assert np.abs(scores(values) - expected)[inside].max() < 0.05
    assert (np.diff(scores(np.sort(values))) >= 0).all()


def test_kurtosis_is_scipy_s():
    values = np.random.default_rng(3).exponential(size=(500, 2))
    np.testing.assert_allclose(kurtosis(values, np.ones(500)), scipy_kurtosis(values, fisher=False))


SHAPES = {
    "normal": lambda chance: chance.normal(size=1000),
    "uniform": lambda chance: chance.uniform(size=1000),
    "exponential": lambda chance: chance.exponential(size=1000),
    "two values, one of them rare": lambda chance: (chance.uniform(size=1000) < 0.01).astype(float),
    "a pixel in the corner": lambda chance: np.where(chance.uniform(size=1000) < 0.02, chance.integers(1, 17, 1000), 0),
    "constant": lambda chance: np.ones(1000),
    "Cauchy": lambda chance: chance.standard_cauchy(1000),
    "log-normal": lambda chance: np.exp(1.5 * chance.normal(size=1000)),
    "sinh": lambda chance: np.sinh(3 * chance.normal(size=1000)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_heavy_tails_and_no_others_are_replaced(name):
    values = SHAPES[name](np.random.default_rng(0)).astype(float)[:, None]
    heavy = name in ("Cauchy", "log-normal", "sinh")
    assert bool(heavy_tailed_columns(values, np.ones(1000))) == heavy


def test_a_monotone_map_with_heavy_tails_changes_almost_nothing():
    """What the network sees of sinh(4 x) is what it sees of x."""
    x = np.random.default_rng(4).normal(size=(800, 2))
    weights = np.ones(800)
    plain, bent = (FeatureInputs(each, weights)(each).numpy() for each in (x, np.sinh(4 * x)))
    assert np.abs(plain - bent).mean() < 0.05
    assert np.isfinite(FeatureInputs(1e300 * np.tan(x), weights)(1e307 * x).numpy()).all()
