"""A tree of labels from rows or edges, or what is wrong with them, in a sentence that names the row."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.deployment.csv_lines import csv_lines
from balpoe.errors import UserError

__all__ = ["ROOT", "LabelTree", "read_tree", "tree_of_parents", "tree_of_rows"]

ROOT = "any"
EDGES = ["label", "parent"]  # headings of a file that has the tree edge by edge

_Row = tuple[str, list[str]]
"""Where it stands, and its cells from the class upwards."""


class LabelTree(NamedTuple):
    """The fields of `balpoe.Taxonomy`, which says what they are."""

    class_names: tuple[str, ...]
    levels: tuple[str, ...]
    labels: tuple[str, ...]
    parents: Tensor
    level_of: Tensor


def read_tree(path: Path, class_names: Sequence[str] | None) -> LabelTree:
    """Return the tree in a .csv, for `Taxonomy.read`."""
    lines = csv_lines(path)
    if len(lines) < 2:
        raise UserError(f"{path} has no classes; write the headings class,genus,... and a line for each class")
    (first, headings), rows = lines[0], lines[1:]
    if twice := [name for place, name in enumerate(headings) if name in headings[:place] or not name]:
        raise UserError(f"{first}: the heading {twice[0]!r} is empty or there twice; give each level one name")
    for where, cells in rows:
        if len(cells) != len(headings):
            raise UserError(f"{where}: there are {len(cells)} columns, but {len(headings)} headings; fix the line")
    if [heading.lower() for heading in headings] == EDGES:
        return _of_edges([(where, cells[0], cells[1]) for where, cells in rows], class_names, str(path))
    return _built(rows, headings, class_names, str(path))


def tree_of_rows(rows: Iterable[Sequence[str]], levels: Sequence[str], class_names: Sequence[str] | None) -> LabelTree:
    """Return the tree of rows, for `Taxonomy.from_rows`."""
    numbered = [
        (f"row {number}", ["" if cell is None else str(cell).strip() for cell in row])
        for number, row in enumerate(rows)
    ]
    for where, cells in numbered:
        if len(cells) != len(levels):
            raise UserError(f"{where} of the tree has {len(cells)} labels, but there are {len(levels)} levels")
    return _built(numbered, levels, class_names, "the tree")


def tree_of_parents(parents: Mapping[str, str], class_names: Sequence[str] | None) -> LabelTree:
    """Return the tree of labels and what is above each, for `Taxonomy.from_parents`."""
    edges = [(f"label {child!r}", str(child), str(parent)) for child, parent in parents.items()]
    return _of_edges(edges, class_names, "the tree")


def _of_edges(edges: Sequence[tuple[str, str, str]], class_names: Sequence[str] | None, source: str) -> LabelTree:
    """The tree of (where, label, the label above it); an empty one is the root."""
    above: dict[str, str] = {}
    for where, label, parent in edges:
        if not label:
            raise UserError(f"{where}: there is no label; write one")
        if label in above:
            raise UserError(f"{where}: label {label!r} has {above[label]!r} above it already; keep one of them")
        above[label] = parent
    if not above:
        raise UserError(f"{source} has no classes; write what is above each")
    places = {label: where for where, label, _ in edges}
    paths = {label: _path(label, above, places) for label in above}
    below = {parent: where for where, _, parent in reversed(edges)}
    names = [label for label in above if label not in below] if class_names is None else list(class_names)
    for name in names:
        if name in below:
            raise UserError(
                f"{below[name]}: class {name!r} has another label below it, but classes are leaves; add one for it"
            )
        if name not in above:
            raise UserError(f"{source}: class {name!r} is missing from the tree; add what is above it")
    leaves = [paths[name] for name in names]
    height = max(map(len, leaves))
    rows = [(f"class {path[0]!r}", [path[0], *[""] * (height - len(path)), *path[1:]]) for path in leaves]
    return _built(rows, ["class", *(f"level {level}" for level in range(height - 1, 0, -1))], class_names, source)


def _path(name: str, above: Mapping[str, str], places: Mapping[str, str]) -> list[str]:
    """A label and all above it."""
    path = [name]
    while parent := above.get(path[-1], ""):
        if parent in path:
            loop = " > ".join([*path[path.index(parent) :], parent])
            raise UserError(f"{places[parent]}: {parent!r} is above itself ({loop}); a tree has no loop")
        path.append(parent)
    return path


def _built(rows: Sequence[_Row], levels: Sequence[str], class_names: Sequence[str] | None, source: str) -> LabelTree:
    by_class: dict[str, _Row] = {}
    for where, cells in rows:
        if not cells[0]:
            raise UserError(f"{where}: there is no class; write its name first")
        if cells[0] in by_class:
            raise UserError(
                f"{where}: class {cells[0]!r} has a row already ({by_class[cells[0]][0]}); keep one of them"
            )
        by_class[cells[0]] = (where, cells)
    if not by_class:
        raise UserError(f"{source} has no classes; give a row for each")
    names = list(by_class) if class_names is None else list(class_names)
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise UserError(f"{source}: two classes are called {twice[0]!r}; give each a name of its own")
    missing = [name for name in names if name not in by_class]
    if missing:
        others = f" (nor have {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UserError(f"{source}: class {missing[0]!r} has no row{others}; add what it belongs to")
    above = _checked_parents([by_class[name] for name in names], levels)
    level_of = {label: level for level, label in above}
    labels = [*names, *(label for level in range(1, len(levels)) for at, label in above if at == level), ROOT]
    number = {label: place for place, label in enumerate(labels)}
    parents = [number[above[level_of[label], label][0]] for label in labels[:-1]]
    heights = [level_of[label] for label in labels[:-1]]
    return LabelTree(
        tuple(names),
        tuple(levels),
        tuple(labels),
        torch.tensor([*parents, len(labels) - 1]),
        torch.tensor([*heights, len(levels)]),
    )


def _checked_parents(rows: Sequence[_Row], levels: Sequence[str]) -> dict[tuple[int, str], tuple[str, str]]:
    """What is above each label, by level and label, and where that was said."""
    above: dict[tuple[int, str], tuple[str, str]] = {}
    seen: dict[str, tuple[int, str]] = {}
    for where, cells in rows:
        path = [(level, cell) for level, cell in enumerate(cells) if cell]
        for (level, label), parent in zip(path, [*(cell for _, cell in path[1:]), ROOT], strict=True):
            if label == ROOT:
                raise UserError(f"{where}: {ROOT!r} is what the root is called; give the label another name")
            other, place = seen.setdefault(label, (level, where))
            if other != level:
                raise UserError(
                    f"{where}: label {label!r} is a {levels[level]} here, but a {levels[other]} in {place}; give each "
                    "level names of its own"
                )
            known, place = above.setdefault((level, label), (parent, where))
            if known != parent:
                raise UserError(
                    f"{where}: {levels[level]} {label!r} belongs to {parent!r} here, but to {known!r} in {place}; fix "
                    "one of them"
                )
    return above
