"""Features with heavy tails, each value replaced by the quantile of a normal distribution that has its rank.

A few values far out would make the deviation so large that all the others lie in one point. Ranks do not know how far
out they are.
"""

from typing import NamedTuple

import numpy as np
import torch

__all__ = ["NormalScores", "heavy_tailed_columns", "kurtosis", "normal_scores"]

HEAVY = 4.0  # times the kurtosis of the normal scores; that of an exponential distribution is 3 times as large
KNOTS = 1000


class NormalScores(NamedTuple):
    """A monotone map from the values of a feature to normal scores, straight between knots, flat beyond the last."""

    values: np.ndarray
    """Knots, (knots,), increasing."""
    scores: np.ndarray

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the scores of any values, of the same shape."""
        return np.asarray(np.interp(values, self.values, self.scores))


def normal_scores(values: np.ndarray, weights: np.ndarray) -> NormalScores:
    """Return the map from one feature to normal scores: the quantile of the weight below, half of its own included.

    Equal values share a score, so that a feature of two values keeps its shape.

    Args:
        values: The feature of the training samples, (samples,).
        weights: One a sample, above 0.

    >>> normal_scores(np.array([1.0, 3.0, 1e9]), np.ones(3))(np.array([-5.0, 1.0, 3.0, 1e99])).round(2)
    array([-0.97, -0.97,  0.  ,  0.97])
    """
    distinct, place = np.unique(values, return_inverse=True)
    weight = np.bincount(place, weights=weights)
    below = np.cumsum(weight) - weight / 2
    knots = np.unique(np.linspace(0, len(distinct) - 1, KNOTS).round().astype(int))
    scores = torch.special.ndtri(torch.from_numpy(below[knots] / weight.sum())).numpy()
    return NormalScores(distinct[knots], scores)


def kurtosis(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the fourth moment over the square of the second, of each feature: 3 for a normal distribution.

    Args:
        values: (samples, features).
        weights: One a sample.

    >>> kurtosis(np.array([[-1.0, 5.0], [1.0, 5.0]]), np.ones(2))  # a constant has none
    array([1., 0.])
    """
    square = (values - np.average(values, axis=0, weights=weights)) ** 2
    second = np.average(square, axis=0, weights=weights)
    fourth = np.average((square / np.where(second > 0, second, 1)) ** 2, axis=0, weights=weights)
    return np.asarray(fourth)


def heavy_tailed_columns(values: np.ndarray, weights: np.ndarray) -> dict[int, NormalScores]:
    """Return the normal scores of the features that need them: of those whose kurtosis they make far smaller.

    A pixel that is seldom above zero has a large kurtosis, too, but ranks do not change that: it stays as it is.

    Args:
        values: (samples, features).
        weights: One a sample, above 0.

    >>> chance = np.random.default_rng(0)
    >>> list(heavy_tailed_columns(np.stack([chance.normal(size=200), chance.standard_cauchy(200)], 1), np.ones(200)))
    [1]
    """
    found, before = {}, kurtosis(values, weights)
    for column in np.flatnonzero(before > HEAVY * 3).tolist():
        scores = normal_scores(values[:, column], weights)
        if before[column] > HEAVY * kurtosis(scores(values[:, column])[:, None], weights)[0]:
            found[column] = scores
    return found
