"""95 % intervals of what decisions are worth: over the test samples, or over their groups.

Means are resampled within each class. Shares of a class with few samples, or of samples that come in groups, are not:
they have the interval of `mean_interval`, which has a width also where all of the few are right.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.evaluation.predictions import Predictions
from balpoe.method.intervals import LEAST_EVIDENCE, LEAST_RESAMPLED, bootstrap, mean_interval

__all__ = ["Interval", "ScoreIntervals", "WeightedMean"]

Interval = tuple[float, float] | None
"""Both ends; None where there are too few samples to tell."""


class WeightedMean(NamedTuple):
    """The mean of a number of each sample, each with a weight."""

    values: Tensor
    """Numbers, (samples,), in float64."""
    mass: Tensor
    """Weights, (samples,), the same for all samples of a class that have any."""

    @property
    def value(self) -> float | None:
        """The mean; None without any weight."""
        return float(self.values @ self.mass / self.mass.sum()) if bool(self.mass.any()) else None


class ScoreIntervals:
    """Intervals of numbers that are measured on the same labelled samples.

    Args:
        predictions: Labelled predictions.
        num_resamples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap.

    >>> predictions = Predictions(torch.zeros(40, 1, 2), torch.arange(40) % 2, [9, 9], [0])
    >>> right = WeightedMean((torch.arange(40) % 4 > 0).double(), torch.ones(40).double())
    >>> (low, high), = ScoreIntervals(predictions).of_shares([right])
    >>> 0.55 < low < right.value < high < 0.95
    True
    """

    def __init__(self, predictions: Predictions, num_resamples: int = 1000, seed: int = 0) -> None:
        self.targets, self.groups = predictions.targets, predictions.groups
        self.num_classes, self.num_resamples, self.seed = predictions.num_classes, num_resamples, seed

    def resampled(self, statistic: Callable[[Tensor], Tensor]) -> list[Interval]:
        """Return the bootstrap interval of each component of a statistic.

        Args:
            statistic: Function from how often each sample counts, (resamples, samples), to (resamples, components).
        """
        if self.groups is not None and len(torch.unique(self.groups)) < LEAST_EVIDENCE:
            once = torch.ones(1, len(self.targets), dtype=torch.float64)
            return [None] * statistic(once).shape[1]
        settings = {"num_resamples": self.num_resamples, "seed": self.seed}
        low, high = bootstrap(statistic, self.targets, groups=self.groups, **settings).tolist()
        return [(a, b) if math.isfinite(a) and math.isfinite(b) else None for a, b in zip(low, high, strict=True)]

    def of_means(self, means: Sequence[WeightedMean]) -> list[Interval]:
        """Return the bootstrap interval of each mean, all from the same resamples."""
        if not means:
            return []
        mass = torch.stack([each.mass for each in means], dim=1)
        sums = mass * torch.stack([each.values for each in means], dim=1)
        return self.resampled(lambda counts: (counts @ sums) / (counts @ mass))

    def of_shares(self, shares: Sequence[WeightedMean]) -> list[Interval]:
        """Return the interval of each mean of numbers from 0 to 1."""
        resampled = [place for place, share in enumerate(shares) if self._enough(share)]
        found: dict[int, Interval] = dict(
            zip(resampled, self.of_means([shares[place] for place in resampled]), strict=True)
        )
        for place, share in enumerate(shares):
            ends = found.get(place)
            if ends is None or ends[0] == ends[1]:
                found[place] = self._closed(share)
        return [found[place] for place in range(len(shares))]

    def _enough(self, share: WeightedMean) -> bool:
        counted = self.targets[share.mass > 0]
        least = torch.bincount(counted)[counted.unique()].min() if len(counted) else 0
        return self.groups is None and int(least) >= LEAST_RESAMPLED

    def _closed(self, share: WeightedMean) -> Interval:
        rows = share.mass > 0
        if not bool(rows.any()):
            return None
        values, targets, mass = share.values[rows], self.targets[rows], share.mass[rows]
        class_mass = torch.bincount(targets, mass)[targets.unique()]
        if self.groups is None:
            return mean_interval(values, targets, class_weights=class_mass)
        pairs, row, sizes = torch.unique(
            torch.stack([targets, self.groups[rows]]), dim=1, return_inverse=True, return_counts=True
        )
        return mean_interval(torch.bincount(row, values) / sizes, pairs[0], sizes=sizes, class_weights=class_mass)
