"""How sure a measured number is: bootstrap over the test samples, paired for a difference; Wilson for a share."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "LEAST_EVIDENCE",
    "bootstrap",
    "mean_difference_interval",
    "mean_interval",
    "stratified_resample",
    "wilson_interval",
]

RESAMPLED_VALUES = 2**20  # samples of the resamples that are looked at together
LEAST_EVIDENCE = 4  # samples of a class, below which neither they nor resamples of them say how well it is recognised


def stratified_resample(targets: Tensor, generator: torch.Generator) -> Tensor:
    """Return indices of a resample with replacement that keeps the number of samples of each class.

    >>> targets = torch.tensor([0, 1, 1, 0])
    >>> targets[stratified_resample(targets, torch.Generator().manual_seed(0))]
    tensor([0, 0, 1, 1])
    """
    return _Strata(targets).draw(generator)[0]


class _Strata:
    """The samples class by class, sorted once for many resamples."""

    def __init__(self, targets: Tensor) -> None:
        self.order = torch.argsort(targets, stable=True)
        counts = torch.bincount(targets)
        self.start = (counts.cumsum(0) - counts)[targets[self.order]]
        self.size = counts[targets[self.order]]

    def draw(self, generator: torch.Generator, resamples: int = 1) -> Tensor:
        """Indices of samples, (resamples, samples)."""
        drawn = torch.rand(resamples, len(self.order), generator=generator, dtype=torch.float64) * self.size
        return self.order[self.start + drawn.long()]


def bootstrap(
    statistic: Callable[[Tensor], Tensor],
    targets: Tensor,
    *,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Tensor:
    """Return the percentile interval of each component of a statistic, shape (2, components).

    Args:
        statistic: Function from how often each sample was drawn, (resamples, samples) in float64, to
            (resamples, components). The difference of two runs on the same test samples makes the bootstrap paired.
        targets: Labels; each resample keeps the number of samples of each class.
        num_resamples: Number of resamples.
        level: Probability of the interval.
        seed: Seed of the bootstrap.

    >>> values = torch.arange(100.0)
    >>> mean = lambda counts: (counts @ values.double() / 100)[:, None]
    >>> low, high = bootstrap(mean, torch.zeros(100, dtype=torch.long)).tolist()
    >>> low[0] < 49.5 < high[0]
    True
    """
    generator, strata = torch.Generator().manual_seed(seed), _Strata(targets)
    at_once = max(1, RESAMPLED_VALUES // len(targets))
    blocks = []
    for first in range(0, num_resamples, at_once):
        rows = strata.draw(generator, min(at_once, num_resamples - first))
        counts = torch.zeros(rows.shape, dtype=torch.float64)
        blocks.append(statistic(counts.scatter_add_(1, rows, torch.ones_like(counts))))
    draws = torch.cat(blocks)
    tail = (1 - level) / 2
    return torch.nanquantile(draws.double(), torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0)


def mean_interval(hits: Tensor, totals: Tensor, level: float = 0.95) -> tuple[float, float]:
    """Return an interval of the mean of several shares, sound also where some of them rest on a sample or two.

    Resampling a class of one sample gives that sample again, as if nothing about it were random. Here each share's
    variance is that of the share with a hit and a miss added (Laplace).

    >>> low, high = mean_interval(torch.tensor([1, 0, 1, 1]), torch.tensor([1, 1, 1, 1]))
    >>> round(low, 2), round(high, 2)
    (0.29, 1.0)
    """
    hits, totals = hits.double(), totals.double()
    z = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))
    smooth = (hits + 1) / (totals + 2)
    half = z * (smooth * (1 - smooth) / totals).sum().sqrt() / len(hits)
    mean = (hits / totals).mean()
    return max(0.0, float(mean - half)), min(1.0, float(mean + half))


def mean_difference_interval(differences: Tensor, targets: Tensor, level: float = 0.95) -> tuple[float, float]:
    """Return an interval of the mean over the classes of each class's mean difference, sound also for a sample or two.

    Two predictors are right on the same samples, or one of them is. A class's variance is how often they differ there,
    shrunk to how often they differ anywhere, which is taken to be once more than was seen.

    Args:
        differences: Difference of each sample, -1, 0 or 1, (samples,).
        targets: Labels, (samples,).
        level: Probability of the interval.

    >>> low, high = mean_difference_interval(torch.tensor([1, 0, 0, 0]), torch.tensor([0, 1, 2, 3]))
    >>> round(low, 2), round(high, 2)
    (-0.29, 0.79)
    """
    _, row_of, totals = torch.unique(targets, return_inverse=True, return_counts=True)
    values, sizes = differences.double(), totals.double()
    z = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))
    anywhere = (values.square().sum() + 1) / (len(values) + 2)
    variance = (torch.bincount(row_of, values.square()) + 2 * anywhere) / (sizes + 2)
    half = z * (variance / sizes).sum().sqrt() / len(sizes)
    mean = (torch.bincount(row_of, values) / sizes).mean()
    return max(-1.0, float(mean - half)), min(1.0, float(mean + half))


def wilson_interval(hits: Tensor, totals: Tensor, level: float = 0.95) -> Tensor:
    """Return Wilson's interval of a share, shape (2, ...): sound at 0 %, at 100 % and for few samples.

    >>> wilson_interval(torch.tensor([0.0]), torch.tensor([10.0]))[:, 0]
    tensor([0.0000, 0.2775], dtype=torch.float64)
    """
    hits, totals = hits.double(), totals.double()
    z = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))
    share = hits / totals
    centre = (share + z**2 / (2 * totals)) / (1 + z**2 / totals)
    half = z / (1 + z**2 / totals) * (share * (1 - share) / totals + z**2 / (4 * totals**2)).sqrt()
    return torch.stack([(centre - half).clamp(min=0), (centre + half).clamp(max=1)])
