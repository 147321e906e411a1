"""Which classes share a quantile: those too rare for one of their own, or those whose scores are alike."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["ALL", "Pools", "least_samples", "own_pools", "similar_pools"]

ALL = -1  # number of a pool whose classes take the quantile of all samples
LEVELS = 0.5, 0.6, 0.7, 0.8, 0.9  # quantiles by which classes are compared, beside that of 1 - alpha
RESTARTS, STEPS = 10, 50


class Pools(NamedTuple):
    """Who shares a quantile, and the samples that set it."""

    pool_of: Tensor
    """Number of each class's pool, (classes,); `ALL` for one that takes the quantile of all samples."""
    rows: Tensor
    """Whether a sample sets quantiles, (samples,): not if it decided on the pools."""
    rare: Tensor
    """Whether a class has too few samples for a pool as the method means it, (classes,)."""


def least_samples(alpha: float) -> int:
    """Return the number of samples below which no finite threshold has coverage 1 - alpha: n with (n + 1) alpha < 1.

    >>> least_samples(0.1), least_samples(0.05)
    (9, 19)
    """
    return max(1, math.ceil(1 / alpha - 1 - 1e-9))


def own_pools(targets: Tensor, num_classes: int, alpha: float) -> Pools:
    """Return a pool for each class with enough samples, and one for the others together.

    If those have too few even together, they take the quantile of all samples.

    >>> own_pools(torch.tensor([0] * 9 + [1] * 9 + [2] * 5 + [3] * 4), 4, alpha=0.1).pool_of
    tensor([0, 1, 4, 4])
    """
    counts = torch.bincount(targets, minlength=num_classes)
    rare = counts < least_samples(alpha)
    shared = num_classes if int(counts[rare].sum()) >= least_samples(alpha) else ALL
    return Pools(torch.arange(num_classes).masked_fill(rare, shared), torch.ones(len(targets), dtype=torch.bool), rare)


def similar_pools(scores: Tensor, targets: Tensor, num_classes: int, alpha: float, seed: int = 0) -> Pools:
    """Return pools of classes whose scores are alike (clustered conformal prediction, Ding et al. 2023).

    A part of each class's samples decides who is alike, by k-means of the classes' quantiles; the rest sets the
    thresholds. Part and number of clusters follow the paper: with few samples a class, few clusters. Classes too rare
    to be compared take the quantile of all samples.

    Args:
        scores: Score of each sample's own class, (samples,).
        targets: Labels, (samples,).
        num_classes: Number of classes.
        alpha: Share of samples that sets may miss.
        seed: Seed of the split and of k-means.
    """
    generator = torch.Generator().manual_seed(seed)
    counts, least = torch.bincount(targets, minlength=num_classes), least_samples(alpha)
    typical = max(int(counts.min()), least)
    enough = int((counts >= typical).sum())
    part = enough / (75 + enough)
    clusters = int(part * typical / 2)
    comparing = _share_of_each_class(targets, part, generator)
    known = torch.bincount(targets[comparing], minlength=num_classes) >= least
    pool_of = torch.full((num_classes,), ALL)
    if clusters < 2 or int(known.sum()) < 2:
        return Pools(pool_of, torch.ones(len(targets), dtype=torch.bool), torch.zeros(num_classes, dtype=torch.bool))
    profiles = _profiles(scores[comparing], targets[comparing], known, alpha)
    weights = torch.bincount(targets[comparing], minlength=num_classes)[known].double().sqrt()
    pool_of[known] = _k_means(profiles, weights, min(clusters, len(profiles)), generator)
    left = pool_of[targets[~comparing]]
    sizes = torch.bincount(left[left != ALL], minlength=num_classes)
    pool_of[(pool_of != ALL) & (sizes[pool_of] < least)] = ALL
    return Pools(pool_of, ~comparing, pool_of == ALL)


def _share_of_each_class(targets: Tensor, part: float, generator: torch.Generator) -> Tensor:
    """Whether a sample is in a random part of its class, (samples,)."""
    order = torch.randperm(len(targets), generator=generator)
    order = order[targets[order].argsort(stable=True)]
    counts = torch.bincount(targets)
    place = torch.arange(len(targets)) - (counts.cumsum(0) - counts)[targets[order]]
    chosen = torch.empty(len(targets), dtype=torch.bool)
    chosen[order] = place < (part * counts).round()[targets[order]]
    return chosen


def _profiles(scores: Tensor, targets: Tensor, known: Tensor, alpha: float) -> Tensor:
    """Quantiles of the scores of each known class, (known classes, levels), as ranks among all scores."""
    ranks = scores.argsort().argsort().double() / len(scores)
    levels = torch.tensor([*LEVELS, 1 - alpha], dtype=torch.float64)
    return torch.stack([ranks[targets == label].quantile(levels) for label in known.nonzero().squeeze(1)])


def _k_means(points: Tensor, weights: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """The cluster of each weighted point, (points,): the best of several starts."""
    best, least = torch.zeros(len(points), dtype=torch.long), math.inf
    for _ in range(RESTARTS):
        centres = _first_centres(points, weights, clusters, generator)
        for _ in range(STEPS):
            nearest = torch.cdist(points, centres).argmin(dim=1)
            member = torch.nn.functional.one_hot(nearest, clusters).double() * weights[:, None]
            moved = (member.T @ points) / member.sum(dim=0).clamp(min=1e-300)[:, None]
            moved = torch.where(member.sum(dim=0)[:, None] > 0, moved, centres)  # an empty cluster stays
            if torch.equal(moved, centres):
                break
            centres = moved
        spread = float(weights @ (points - centres[nearest]).square().sum(dim=1))
        if spread < least:
            best, least = nearest, spread
    return best


def _first_centres(points: Tensor, weights: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Points far from each other (k-means++)."""
    chosen = [int(torch.multinomial(weights, 1, generator=generator))]
    while len(chosen) < clusters:
        far = weights * torch.cdist(points, points[chosen]).amin(dim=1).square()
        far = far if float(far.sum()) > 0 else weights  # all points coincide with a centre
        chosen.append(int(torch.multinomial(far, 1, generator=generator)))
    return points[chosen]
