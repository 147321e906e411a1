"""Nearest neighbours among images, and how often they share a group."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["Share", "nearest", "neighbour_accuracy", "neighbour_share"]

PERMUTATIONS = 200
BEYOND_RANDOM = 6.0
"""Deviations between the share of neighbours in one group and that of groups drawn at random."""
AT_ONCE = 512
"""Rows whose distances are held in memory."""


class Share(NamedTuple):
    """Share of the images whose neighbour is of their group."""

    observed: float
    expected: float
    """The share where groups are drawn at random."""
    deviation: float
    """Deviation of the share where groups are drawn at random."""

    @property
    def explained(self) -> float:
        """Part of what randomness leaves open."""
        return (self.observed - self.expected) / max(1 - self.expected, 1e-9)

    @property
    def is_beyond_random(self) -> bool:
        """Whether randomness would hardly ever give it, and it matters."""
        return self.observed - self.expected >= BEYOND_RANDOM * self.deviation and self.explained >= 0.1

    @property
    def is_strong(self) -> bool:
        """Whether it is far beyond random: several times what is expected, or most of what that leaves open."""
        several_times = self.observed >= 3 * self.expected and self.explained >= 0.25
        return self.is_beyond_random and (several_times or self.explained >= 0.75)


def neighbour_share(
    neighbours: np.ndarray,
    groups: np.ndarray,
    targets: np.ndarray,
    below: np.ndarray,
    random: np.random.Generator,
) -> Share:
    """Return how often an image and its neighbour share a group, and how often if groups were drawn within classes.

    Args:
        neighbours: Row of each image's neighbour; -1 for none.
        groups: Group of each image.
        targets: Class of each image.
        below: What stays together when groups are drawn: a finer group, or each image by itself.
        random: Generator of the permutations.
    """
    rows = np.flatnonzero(neighbours >= 0)
    if not len(rows):
        return Share(0.0, 0.0, 1.0)
    _, first, part = np.unique(np.stack([targets, below]), axis=1, return_index=True, return_inverse=True)
    part = part.reshape(-1)
    of_part, group = targets[first], groups[first]
    base = np.argsort(of_part, kind="stable")
    draws = []
    for _ in range(PERMUTATIONS):
        drawn = np.empty_like(group)
        drawn[base] = group[np.lexsort((random.random(len(group)), of_part))]
        draws.append(np.mean(drawn[part[rows]] == drawn[part[neighbours[rows]]]))
    observed = np.mean(groups[rows] == groups[neighbours[rows]])
    return Share(float(observed), float(np.mean(draws)), max(float(np.std(draws)), 1 / len(rows)))


def neighbour_accuracy(features: np.ndarray, targets: np.ndarray, apart: np.ndarray, counted: np.ndarray) -> float:
    """Return the balanced accuracy of the nearest neighbour's label.

    Args:
        features: Features of the images, (images, values).
        targets: Labels.
        apart: Part of each image: neighbours of the same one are not asked.
        counted: Whether an image is counted, (images,).
    """
    right = targets[nearest(features, lambda rows: apart[rows, None] != apart)] == targets
    return float(np.mean([right[counted & (targets == label)].mean() for label in np.unique(targets[counted])]))


def nearest(features: np.ndarray, allowed: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the nearest allowed row of each, -1 where none is.

    Args:
        features: Features of the images, (images, values).
        allowed: Function from some rows to whether each image may be their neighbour, (rows, images).

    >>> nearest(np.array([[0.0], [1.0], [9.0]], dtype=np.float32), lambda rows: rows[:, None] != np.arange(3))
    array([1, 0, 1])
    """
    squares, found = np.square(features).sum(axis=1), []
    for rows in np.array_split(np.arange(len(features)), max(1, len(features) // AT_ONCE)):
        distance = squares - 2 * features[rows] @ features.T
        distance[~allowed(rows)] = np.inf
        nearest = distance.argmin(axis=1)
        found.append(np.where(np.isfinite(distance[np.arange(len(rows)), nearest]), nearest, -1))
    return np.concatenate(found)
