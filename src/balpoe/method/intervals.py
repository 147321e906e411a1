"""How sure a measured number is: bootstrap over the test samples, paired for a difference; Wilson for a share.

Samples of one group, such as the frames of a track, are right or wrong together: where groups are known, it is they
that are resampled and counted. Where samples or groups are few, resampling gives intervals that are too narrow, and
of no width if all of them are right. So a mean of shares has an interval by a formula, and other intervals over groups
are widened by the ratio of Student's quantile to the normal one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from balpoe.private_apis import standard_gamma

__all__ = [
    "LEAST_EVIDENCE",
    "LEAST_RESAMPLED",
    "bootstrap",
    "effective_counts",
    "evidence_counts",
    "exact_interval",
    "mean_difference_interval",
    "mean_interval",
    "stratified_resample",
    "wilson_interval",
]

RESAMPLED_VALUES = 2**20  # samples of the resamples that are looked at together
LEAST_EVIDENCE = 4  # samples (or groups) of a class, below which nothing says how well it is recognised
LEAST_RESAMPLED = 10  # samples of a class, below which resampling them makes intervals that are too narrow


def stratified_resample(targets: Tensor, generator: torch.Generator, resamples: int = 1) -> Tensor:
    """Return indices of resamples with replacement, (resamples, samples), that keep the samples of each class.

    >>> targets = torch.tensor([0, 1, 1, 0])
    >>> targets[stratified_resample(targets, torch.Generator().manual_seed(0))]
    tensor([[0, 0, 1, 1]])
    """
    return _Strata(targets).draw(generator, resamples)


class _Strata:
    """The samples class by class, sorted once for many resamples."""

    def __init__(self, targets: Tensor) -> None:
        self.order = torch.argsort(targets, stable=True)
        counts = torch.bincount(targets)
        self.start = (counts.cumsum(0) - counts)[targets[self.order]]
        self.size = counts[targets[self.order]]

    def draw(self, generator: torch.Generator, resamples: int) -> Tensor:
        """Indices of samples, (resamples, samples)."""
        drawn = torch.rand(resamples, len(self.order), generator=generator, dtype=torch.float64) * self.size
        return self.order[self.start + drawn.long()]

    def counts(self, generator: torch.Generator, resamples: int) -> Tensor:
        """How often each sample is drawn, (resamples, samples)."""
        rows = self.draw(generator, resamples)
        counts = torch.zeros(rows.shape, dtype=torch.float64)
        return counts.scatter_add_(1, rows, torch.ones_like(counts))


class _GroupWeights:
    """Whole groups, weighted at random instead of drawn (Rubin's Bayesian bootstrap).

    Drawn groups would leave out a class that is in few groups, of several classes each; weights never do. A weight has
    the variance that makes the one of a class's mean over equal groups the unbiased estimate, also for few groups.
    """

    def __init__(self, targets: Tensor, groups: Tensor) -> None:
        self.group = torch.unique(groups, return_inverse=True)[1]
        self.strata = _joined(targets, self.group)
        self.totals = torch.bincount(self.strata).double()
        pairs = torch.unique(torch.stack([self.strata, self.group]), dim=1)
        several = torch.bincount(pairs[0])[pairs[0]].double()  # groups of the stratum
        least = torch.full((int(self.group.max()) + 1,), torch.inf, dtype=torch.float64)
        least.scatter_reduce_(0, pairs[1], several, "amin")
        self.shape = (1 - 2 / least).clamp(min=1 / 3)
        self.freedom = max(1, pairs.shape[1] - len(torch.unique(self.strata)))
        """Degrees of freedom of what the groups say about their own spread."""

    def counts(self, generator: torch.Generator, resamples: int) -> Tensor:
        """How much each sample counts, (resamples, samples); in sum over a stratum as many as there are."""
        drawn = standard_gamma(self.shape.expand(resamples, -1).contiguous(), generator) / self.shape
        weights = drawn[:, self.group]
        sums = torch.zeros(resamples, len(self.totals), dtype=torch.float64).index_add_(1, self.strata, weights)
        return weights * (self.totals / sums)[:, self.strata]


def _joined(targets: Tensor, group: Tensor) -> Tensor:
    """The stratum of each sample: its class; classes of a single group are joined to one, which then has a spread."""
    groups = evidence_counts(targets, int(targets.max()) + 1, group)
    alone = groups == 1
    if int(alone.sum()) == 1 and int((groups > 1).sum()):
        alone[int(groups.where(groups > 1, len(group) + 1).argmin())] = True
    strata = torch.arange(len(groups))
    strata[alone] = strata[alone][:1]
    return strata[targets]


def bootstrap(
    statistic: Callable[[Tensor], Tensor],
    targets: Tensor,
    *,
    groups: Tensor | None = None,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Tensor:
    """Return the percentile interval of each component of a statistic, shape (2, components).

    With groups it is widened by the ratio of Student's quantile to the normal one: few groups say little about their
    own spread.

    Args:
        statistic: Function from how often each sample was drawn, (resamples, samples) in float64, to
            (resamples, components). The difference of two runs on the same test samples makes the bootstrap paired.
        targets: Labels; each resample keeps the number of samples of each class.
        groups: Group of each sample: they are resampled as a whole. None where each sample stands for itself.
        num_resamples: Number of resamples.
        level: Probability of the interval.
        seed: Seed of the bootstrap.

    >>> values = torch.arange(100.0)
    >>> mean = lambda counts: (counts @ values.double() / 100)[:, None]
    >>> low, high = bootstrap(mean, torch.zeros(100, dtype=torch.long)).tolist()
    >>> low[0] < 49.5 < high[0]
    True
    """
    generator = torch.Generator().manual_seed(seed)
    resample = _Strata(targets) if groups is None else _GroupWeights(targets, groups)
    at_once = max(1, RESAMPLED_VALUES // len(targets))
    starts = range(0, num_resamples, at_once)
    blocks = [statistic(resample.counts(generator, min(at_once, num_resamples - first))) for first in starts]
    draws = torch.cat(blocks)
    tail = (1 - level) / 2
    ends = torch.nanquantile(draws.double(), torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0)
    if isinstance(resample, _Strata):
        return ends
    centre = statistic(torch.ones(1, len(targets), dtype=torch.float64)).double()
    stretch = _student(level, torch.tensor(float(resample.freedom))) / _student(level, torch.tensor(torch.inf))
    return centre + (ends - centre) * stretch


def evidence_counts(targets: Tensor, num_classes: int, groups: Tensor | None = None) -> Tensor:
    """Return what each class rests on, (classes,): the number of its groups, or of its samples without groups.

    >>> evidence_counts(torch.tensor([0, 0, 0, 1]), 3, groups=torch.tensor([5, 5, 6, 5]))
    tensor([2, 1, 0])
    """
    if groups is not None:
        targets = torch.unique(torch.stack([targets, groups]), dim=1)[0]
    return torch.bincount(targets, minlength=num_classes)


def effective_counts(targets: Tensor, num_classes: int, groups: Tensor | None = None) -> Tensor:
    """Return how many equal groups the groups of each class are worth (Kish), (classes,), in float64.

    >>> effective_counts(torch.tensor([0, 0, 0, 0, 1]), 2, groups=torch.tensor([5, 5, 6, 7, 5]))
    tensor([2.6667, 1.0000], dtype=torch.float64)
    """
    counts = torch.bincount(targets, minlength=num_classes).double()
    if groups is None:
        return counts
    pairs, sizes = torch.unique(torch.stack([targets, groups]), dim=1, return_counts=True)
    squares = torch.bincount(pairs[0], sizes.double().square(), minlength=num_classes)
    return counts.square() / squares.clamp(min=1)


def mean_interval(
    shares: Tensor,
    targets: Tensor,
    *,
    sizes: Tensor | None = None,
    class_weights: Tensor | None = None,
    level: float = 0.95,
) -> tuple[float, float]:
    """Return an interval of the mean over the classes of a share, sound also where a class has a sample or two.

    Resampling a class of one sample gives that sample again, as if nothing about it were random. Here the variance in
    a class is that of its samples with a hit and a miss added (Laplace), with Student's quantile.

    Args:
        shares: Share of right answers of each observation: 0 or 1 of a sample, something between of a group.
        targets: Class of each observation.
        sizes: Number of samples of each observation; None for one each.
        class_weights: Weight of each class that occurs, in order; None where all weigh the same.
        level: Probability of the interval.

    >>> low, high = mean_interval(torch.tensor([1, 0, 1, 1]), torch.tensor([0, 1, 2, 3]))
    >>> round(low, 2), round(high, 2)
    (0.21, 1.0)
    """
    means, squares, worth = _moments(shares, targets, sizes)
    smooth = (worth * means + 1) / (worth + 2)
    variance = (worth * squares + 1) / (worth + 2) - smooth.square()
    mean, half = _mean_and_half(means, variance, worth, class_weights, level)
    return max(0.0, mean - half), min(1.0, mean + half)


def mean_difference_interval(
    differences: Tensor,
    targets: Tensor,
    *,
    sizes: Tensor | None = None,
    class_weights: Tensor | None = None,
    level: float = 0.95,
) -> tuple[float, float]:
    """Return an interval of the mean over the classes of each class's mean difference, sound also for a sample or two.

    Few samples on which two predictors agree would seem to have no spread. So two differences are added to each class,
    one of each sign. Their square is the mean square over all classes, with one difference of 1 and one of 0 added.

    Args:
        differences: Difference of each observation: -1, 0 or 1 of a sample, something between of a group.
        targets: Class of each observation.
        sizes: Number of samples of each observation; None for one each.
        class_weights: Weight of each class that occurs, in order; None where all weigh the same.
        level: Probability of the interval.

    >>> low, high = mean_difference_interval(torch.tensor([1, 0, 0, 0]), torch.tensor([0, 1, 2, 3]))
    >>> round(low, 2), round(high, 2)
    (-0.37, 0.87)
    """
    means, squares, worth = _moments(differences, targets, sizes)
    anywhere = ((worth * squares).sum() + 1) / (worth.sum() + 2)
    variance = (worth * squares + 2 * anywhere) / (worth + 2) - (worth * means / (worth + 2)).square()
    mean, half = _mean_and_half(means, variance, worth, class_weights, level)
    return max(-1.0, mean - half), min(1.0, mean + half)


def _moments(values: Tensor, targets: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, mean square and number of equal observations that those of a class are worth, (classes that occur,)."""
    row_of = torch.unique(targets, return_inverse=True)[1]
    values, sizes = values.double(), torch.ones(len(values)).double() if sizes is None else sizes.double()
    totals = torch.bincount(row_of, sizes)
    means, squares = (torch.bincount(row_of, sizes * each) / totals for each in (values, values.square()))
    return means, squares, totals.square() / torch.bincount(row_of, sizes.square())


def _mean_and_half(
    means: Tensor, variance: Tensor, worth: Tensor, weights: Tensor | None, level: float
) -> tuple[float, float]:
    """The weighted mean of the classes, and half of its interval."""
    weights = torch.ones_like(means) if weights is None else weights.double()
    weights = weights / weights.sum()
    spread = weights.square() * variance / worth
    freedom = spread.sum().square() / (spread.square() / (worth + 1)).sum()  # Welch and Satterthwaite
    return float(weights @ means), float(_student(level, freedom) * spread.sum().sqrt())


def _student(level: float, freedom: Tensor) -> Tensor:
    """Student's quantile on each side of an interval; that of the normal distribution for infinite freedom."""
    from scipy.special import stdtrit  # on first use

    return torch.as_tensor(stdtrit(freedom.double().numpy(), (1 + level) / 2))


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


def exact_interval(hits: Tensor, totals: Tensor, level: float = 0.95) -> Tensor:
    """Return the exact binomial interval of a share, shape (2, ...) (Clopper and Pearson): never short of its level.

    Either end alone is a bound at (1 + level) / 2. Totals may be effective counts, which are no whole numbers.

    >>> exact_interval(torch.tensor([0.0, 9.0]), torch.tensor([10.0, 10.0]))
    tensor([[0.0000, 0.5550],
            [0.3085, 0.9975]], dtype=torch.float64)
    """
    from scipy.special import betaincinv

    hits, totals = torch.broadcast_tensors(hits.double(), totals.double())
    misses, tail = totals - hits, (1 - level) / 2
    some, others = hits.clamp(min=1e-12), misses.clamp(min=1e-12)  # scipy has no Beta(0, n), whose values are all 0
    low = torch.as_tensor(betaincinv(some.numpy(), (misses + 1).numpy(), tail))
    high = torch.as_tensor(betaincinv((hits + 1).numpy(), others.numpy(), 1 - tail))
    return torch.stack([low.masked_fill(hits <= 0, 0), high.masked_fill(misses <= 0, 1)])
