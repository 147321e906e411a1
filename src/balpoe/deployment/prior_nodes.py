"""The rows of a table of weights with all that they are in: a tree from everywhere down to a place and season."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from balpoe.deployment.prior_rows import NEVER, PriorRow
from balpoe.deployment.shrinkage import CountTree
from balpoe.errors import UserError

__all__ = ["PriorNodes", "prior_nodes"]

Path = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class PriorNodes:
    """Nodes of the tree, parents before children; node 0 is everywhere."""

    by_keys: Mapping[Path, int]
    """Node of each key, of its first parts, and of none."""
    parent: Tensor
    level: Tensor
    row: Tensor
    """Number of the row that is about a node, -1 where there is none, (nodes,)."""
    weights: Tensor
    """What the rows say, (nodes, classes)."""
    never: Tensor
    """Classes that do not occur by what a row says of a node or of what it is in, (nodes, classes)."""

    def tree(self) -> CountTree:
        """Return the counts of each node with those of all below it."""
        counts = self.weights.clone()
        for level in range(int(self.level.max()), 0, -1):
            nodes = self.level == level
            counts.index_add_(0, self.parent[nodes], counts[nodes])
        return CountTree(counts, self.parent, self.level, self.never)

    def shares(self) -> Tensor:
        """Return the shares of each node as they are given; of one without a row the mean of those below it."""
        totals = self.weights.sum(dim=1, keepdim=True)
        given, shares = self.row >= 0, self.weights / totals.clamp(min=1e-300)
        for level in range(int(self.level.max()), 0, -1):
            nodes = ((self.level == level) & ~given[self.parent]).nonzero().flatten()
            above = self.parent[nodes]
            several = torch.bincount(above, minlength=len(shares))[above, None]
            shares.index_add_(0, above, shares[nodes] / several)
        return shares


def prior_nodes(rows: Sequence[PriorRow], parent: str | None, class_names: Sequence[str]) -> PriorNodes:
    """Return the tree of some rows.

    Args:
        rows: Rows of a table.
        parent: Name of the column that says what the first key is in, if there is one.
        class_names: Class names of the model.
    """
    regions = None if parent is None else _regions(rows, parent)
    written: dict[Path, int] = {}
    for number, row in enumerate(rows):
        path = row.keys if regions is None else _within(row, regions)
        before = written.setdefault(path, number)
        if before != number:
            raise UserError(f"{row.place} has the same keys as {rows[before].place}; keep one of them")
    paths = sorted({path[:size] for path in (*written, ()) for size in range(len(path) + 1)}, key=lambda p: (len(p), p))
    place = {path: number for number, path in enumerate(paths)}
    weights = np.zeros((len(paths), len(rows[0].weights)))
    for path, number in written.items():
        weights[place[path]] = rows[number].weights
    by_keys = place if regions is None else {path[1:]: number for path, number in place.items() if len(path) != 1}
    above = torch.tensor([place[path[:-1]] if path else -1 for path in paths])
    numbers = torch.tensor([written.get(path, -1) for path in paths])
    never = torch.from_numpy(weights == NEVER)
    level = torch.tensor([len(path) for path in paths])
    for each in range(1, int(level.max()) + 1):
        never[level == each] |= never[above[level == each]]
    nodes = PriorNodes(by_keys, above, level, numbers, torch.from_numpy(weights.clip(min=0)), never)
    _check_never(nodes, rows, class_names)
    return nodes


def _regions(rows: Sequence[PriorRow], parent: str) -> dict[str, PriorRow]:
    """The row that first says what each place is in; the others must agree."""
    found: dict[str, PriorRow] = {}
    for row in rows:
        if not row.keys:
            continue
        first = found.setdefault(row.keys[0], row)
        if not row.above or row.above != first.above:
            raise UserError(
                f"{row.place}: {parent} of {row.keys[0]!r} is {row.above!r}"
                + (f", but {first.above!r} in {first.place}; a place is in one" if row.above else "; fill it in")
            )
    return found


def _within(row: PriorRow, regions: Mapping[str, PriorRow]) -> Path:
    above = regions[row.keys[0]].above if row.keys else row.above
    return (above, *row.keys) if above else ()


def _check_never(nodes: PriorNodes, rows: Sequence[PriorRow], class_names: Sequence[str]) -> None:
    """A class that was seen at a place is not one that never occurs in what the place is in; and one class is left."""
    torn = nodes.never & (nodes.weights > 0)
    for node in (torn.any(dim=1) | nodes.never.all(dim=1)).nonzero().flatten().tolist():
        place = rows[int(nodes.row[node])].place
        if bool(torn[node].any()):
            label = int(torn[node].nonzero()[0])
            says = next(row.place for row in _rows_above(nodes, rows, node) if row.weights[label] == NEVER)
            raise UserError(
                f"{place}: class {class_names[label]!r} has a weight, but is never there by {says}, which is about a "
                "wider area; fix one of them"
            )
        raise UserError(f"{place}: all classes are never there, with what this is in; give a weight to those that are")


def _rows_above(nodes: PriorNodes, rows: Sequence[PriorRow], node: int) -> Iterator[PriorRow]:
    """Rows about what a node is in, the narrowest first."""
    while (node := int(nodes.parent[node])) >= 0:
        if int(nodes.row[node]) >= 0:
            yield rows[int(nodes.row[node])]
