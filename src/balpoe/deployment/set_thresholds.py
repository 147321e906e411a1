"""Up to which score a class enters a prediction set: weighted quantiles of validation samples."""

import torch
from torch import Tensor

from balpoe.deployment.class_pools import ALL

__all__ = ["ROUNDING", "coverage_thresholds", "label_weights", "shortfall", "weight_below", "weight_needed"]

ROUNDING = 1e-12  # of sums of weights: 0.9 (n + 1) samples are enough where that is a whole number


def coverage_thresholds(
    scores: Tensor, targets: Tensor, pool_of: Tensor, alpha: float, weights: Tensor, spare: Tensor | None = None
) -> Tensor:
    """Return the score up to which each class enters a set, (classes,): infinite where no score is high enough.

    For a class y it is the least score t at which the samples of its pool with scores up to t weigh (1 - alpha) of all,
    where the new sample, if it is of class y, weighs too (Podkopaev and Ramdas 2021); with equal weights the
    ceil((n + 1)(1 - alpha))-th smallest of n.

    Args:
        scores: Scores of the validation samples' own classes, (samples,).
        targets: Labels, (samples,).
        pool_of: Number of each class's pool, (classes,); -1: the class takes all samples.
        alpha: Share that may be missed.
        weights: Weight of a sample of each class, (classes,); 0 excludes a class, infinity always includes it.
        spare: Random part of the new sample's weight that is not asked for, from 0 to 1, (classes,): of n scores, no
            whole number may be (n + 1)(1 - alpha), and so coverage is met on average instead of exceeded.

    >>> scores, targets = torch.arange(19.0), torch.zeros(19, dtype=torch.long)
    >>> coverage_thresholds(scores, targets, torch.zeros(1), 0.1, torch.ones(1))
    tensor([17.], dtype=torch.float64)
    """
    found = torch.full((len(pool_of),), -torch.inf, dtype=torch.float64)
    for pool in pool_of.unique():
        members = pool_of == pool
        values, sums = _sorted(scores, targets, _rows(pool_of, pool, targets), weights)
        needed = _needed(alpha, sums[-1], weights[members])
        if spare is not None:
            needed = needed - (spare * weights.nan_to_num(posinf=0.0))[members]
        edges = torch.cat([values.new_tensor([-torch.inf]), values, values.new_tensor([torch.inf])])
        found[members] = edges[torch.searchsorted(sums, needed)]
    return found.masked_fill_(weights == 0, -torch.inf)


def weight_below(
    new: Tensor, scores: Tensor, targets: Tensor, pool_of: Tensor, weights: Tensor, chosen: Tensor
) -> Tensor:
    """Return the weight of some validation samples of each class's pool that score lower, (samples, classes).

    Args:
        new: Scores of each class for new samples, (samples, classes).
        scores: Scores of the validation samples' own classes, (validation,).
        targets: Labels, (validation,).
        pool_of: Number of each class's pool, (classes,).
        weights: Weight of a sample of each class, (classes,).
        chosen: Whether a validation sample counts, (validation,): those that one of several networks has not seen.
    """
    found = torch.zeros(new.shape, dtype=torch.float64)
    for pool in pool_of.unique():
        members = pool_of == pool
        values, sums = _sorted(scores, targets, chosen & _rows(pool_of, pool, targets), weights)
        found[:, members] = sums[torch.searchsorted(values, new[:, members].contiguous())]
    return found


def weight_needed(targets: Tensor, pool_of: Tensor, alpha: float, weights: Tensor) -> Tensor:
    """Return the weight that validation samples must have below a score for it to stay out of sets, (classes,)."""
    found = torch.zeros(len(pool_of), dtype=torch.float64)
    for pool in pool_of.unique():
        members = pool_of == pool
        total = weights[targets[_rows(pool_of, pool, targets)]].sum()
        found[members] = _needed(alpha, total, weights[members])
    return found


def label_weights(prior: Tensor | None, shares: Tensor) -> Tensor:
    """Return the weight of a sample of each class under a label shift, prior over shares, (classes,), in float64.

    Args:
        prior: Deployment prior, (classes,); None for the class mix of the validation samples: all weights are 1.
        shares: Share of each class of the validation samples, (classes,); where it is 0 and the prior is not, the
            weight is infinite.

    >>> label_weights(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.0, 0.75]))
    tensor([2., inf, 0.], dtype=torch.float64)
    """
    if prior is None:
        return torch.ones(len(shares), dtype=torch.float64)
    return torch.where(prior > 0, prior.double() / shares.double(), 0.0)


def shortfall(prior: Tensor, counts: Tensor) -> float:
    """Return by how much coverage under a known prior may fall below 1 - alpha, as counts stand for shares.

    Given the counts n_y, imagine a further sample of each class, drawn like its others. Of the n_y + 1 samples of a
    class each is as likely the new one, so a threshold that holds prior-weighted (1 - alpha) of all of them holds as
    much of the new ones. The samples that are there lack at most sum_y prior_y / (n_y + 1) of that weight. A class
    without a sample is in every set.

    >>> shortfall(torch.tensor([0.5, 0.5]), torch.tensor([99, 49]))
    0.015
    """
    prior = prior.double() * (counts > 0)
    return float((prior / prior.sum() / (counts + 1)).sum())


def _rows(pool_of: Tensor, pool: Tensor, targets: Tensor) -> Tensor:
    """Whether a validation sample sets the threshold of a pool, (samples,)."""
    return torch.ones(len(targets), dtype=torch.bool) if int(pool) == ALL else (pool_of == pool)[targets]


def _sorted(scores: Tensor, targets: Tensor, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of some samples, lowest first, and the weight of the first 0, 1, 2, ... of them."""
    rows = rows & (weights[targets] > 0)
    values, order = scores[rows].double().sort()
    sums = weights[targets[rows]][order].double().cumsum(0)
    return values, torch.cat([sums.new_zeros(1), sums])


def _needed(alpha: float, total: Tensor, own: Tensor) -> Tensor:
    return (1 - alpha) * (total + own.double()) * (1 - ROUNDING)
