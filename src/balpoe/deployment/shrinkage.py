"""Shares of places with few counts, shrunk towards what is known of the places around them.

A tree of Dirichlet priors: the shares of a node are drawn around those of its parent, and the root's around the uniform
ones. With n counts of a node its posterior mean is (counts + strength * parent) / (n + strength). The strength of a
level is the one under which the counts of each of its nodes are most likely, given its ancestors *without* these counts
(the Dirichlet-multinomial likelihood, held out): counts that had a part in their parent would praise it too much.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["CountTree", "fit_strengths", "shrunk_shares"]

STRENGTHS = 0.5, 1e6  # half a sample at least, so that no class is excluded because nobody has seen it
GRID = 30
BLOCK_VALUES = 2**21  # counts that are looked at together


@dataclass(frozen=True, eq=False)
class CountTree:
    """Counts of places and of what they are in, parents before children.

    Args:
        counts: Counts of each node and all below it, (nodes, classes), in float64.
        parent: Number of each node's parent, (nodes,); that of the root, node 0, is -1.
        level: Distance of each node from the root, (nodes,).
        never: Classes that do not occur at a node, (nodes, classes); what a parent says holds for its children, too.
    """

    counts: Tensor
    parent: Tensor
    level: Tensor
    never: Tensor

    @property
    def depth(self) -> int:
        """How many levels there are."""
        return int(self.level.max()) + 1


def shrunk_shares(tree: CountTree, strengths: tuple[float, ...]) -> Tensor:
    """Return the posterior mean of each node's shares, (nodes, classes), in float64.

    Args:
        tree: Counts.
        strengths: How many counts the parent is worth, one a level from the root.

    >>> counts = torch.tensor([[3.0, 1.0], [3.0, 1.0]], dtype=torch.float64)
    >>> tree = CountTree(counts, torch.tensor([-1, 0]), torch.tensor([0, 1]), torch.zeros(2, 2, dtype=torch.bool))
    >>> shrunk_shares(tree, (4.0, 4.0))  # (3 + 2) / 8, then (3 + 4 * 0.625) / 8
    tensor([[0.6250, 0.3750],
            [0.6875, 0.3125]], dtype=torch.float64)
    """
    shares = torch.empty_like(tree.counts)
    for level, strength in enumerate(strengths):
        nodes = (tree.level == level).nonzero().flatten()
        around = _uniform(tree, nodes) if level == 0 else shares[tree.parent[nodes]]
        shares[nodes] = _posterior_mean(tree.counts[nodes], _allowed(around, tree.never[nodes]), strength)
    return shares


def fit_strengths(tree: CountTree) -> tuple[float, ...]:
    """Return the strength of each level, from the root, under which held-out counts are most likely.

    >>> apart = torch.tensor([[40.0, 40.0], [40.0, 0.0], [0.0, 40.0]], dtype=torch.float64)
    >>> alike = torch.tensor([[40.0, 40.0], [20.0, 20.0], [20.0, 20.0]], dtype=torch.float64)
    >>> about = torch.tensor([-1, 0, 0]), torch.tensor([0, 1, 1]), torch.zeros(3, 2, dtype=torch.bool)
    >>> [fit_strengths(CountTree(counts, *about))[1] > 100 for counts in (apart, alike)]
    [False, True]
    """
    strengths: tuple[float, ...] = ()
    for level in range(tree.depth):
        nodes = (tree.level == level).nonzero().flatten()
        blocks = nodes.split(max(1, BLOCK_VALUES // tree.counts.shape[1]))
        parts = [_seen(tree, block, strengths) for block in blocks]
        counts, means = (torch.cat(each) for each in zip(*parts, strict=True))
        strengths = (*strengths, _best_strength(tree.counts[nodes].sum(dim=1), counts, means))
    return strengths


def _seen(tree: CountTree, nodes: Tensor, strengths: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """The counts above zero of some nodes of one level, and the shares that their ancestors would give these."""
    own = tree.counts[nodes]
    lineage: list[Tensor] = []
    ancestor = tree.parent[nodes]
    for _ in strengths:
        lineage.insert(0, ancestor)
        ancestor = tree.parent[ancestor]
    mean = _uniform(tree, nodes)
    for each, strength in zip(lineage, strengths, strict=True):
        others = (tree.counts[each] - own).clamp(min=0)  # rounding
        mean = _posterior_mean(others, _allowed(mean, tree.never[each]), strength)
    mean, above = _allowed(mean, tree.never[nodes]), own > 0
    return own[above], mean[above]


def _best_strength(totals: Tensor, counts: Tensor, means: Tensor) -> float:
    """The strength with the largest Dirichlet-multinomial likelihood: of a grid first, for there may be several peaks.

    A class without counts has the same factor for every strength, and is left out.
    """
    from scipy.optimize import minimize_scalar

    def loss(log_strength: float) -> float:
        strength = torch.tensor(math.exp(log_strength), dtype=torch.float64)
        rows = torch.lgamma(strength) - torch.lgamma(strength + totals)
        cells = torch.lgamma(strength * means + counts) - torch.lgamma(strength * means)
        return -float(rows.sum() + cells.sum())

    low, high = map(math.log, STRENGTHS)
    grid = [low + (high - low) * step / (GRID - 1) for step in range(GRID)]
    best = min(range(GRID), key=lambda place: loss(grid[place]))
    bounds = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    return math.exp(float(minimize_scalar(loss, bounds=bounds, options={"xatol": 1e-4}).x))


def _posterior_mean(counts: Tensor, around: Tensor, strength: float) -> Tensor:
    return (counts + strength * around) / (counts.sum(dim=1, keepdim=True) + strength)


def _allowed(shares: Tensor, never: Tensor) -> Tensor:
    """The shares without classes that do not occur."""
    shares = shares.masked_fill(never, 0)
    return shares / shares.sum(dim=1, keepdim=True)


def _uniform(tree: CountTree, nodes: Tensor) -> Tensor:
    classes = tree.counts.shape[1]
    return torch.full((len(nodes), classes), 1 / classes, dtype=torch.float64)
