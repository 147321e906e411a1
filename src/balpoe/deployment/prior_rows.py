"""Rows of weights by place and season, as somebody has written them: a column for each class, or a row for each count.

Wide: the key columns, then one column for each class. Long: the key columns, a column of classes and one of counts. A
row without its last keys stands for all of them: an empty month for the whole year, no key at all for everywhere.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from balpoe.data.user.class_names import class_name, is_missing, some_of
from balpoe.data.user.table_cells import TableCells, open_table
from balpoe.data.user.tables import COLUMN_NAMES
from balpoe.errors import UserError, unknown_name

__all__ = ["NEVER", "PriorRow", "frame_columns", "key_columns", "key_text", "prior_rows"]

NEVER = -1.0
"""Weight of a class that the table says never occurs."""
LARGEST = 1e15
"""Weights above this are no counts of anything, and those of many rows would add up to infinity."""
COUNT_NAMES = ("count", "counts", "n", "number", "weight", "share", "shares")


@dataclass(frozen=True, eq=False)
class PriorRow:
    """The weights of one place and season."""

    place: str
    """Where it is written."""
    keys: tuple[str, ...]
    """Values of the keys; fewer than there are keys where the row stands for all of the others."""
    above: str
    """What the place is in, where the table has a column for that."""
    weights: np.ndarray
    """Weight of each class, `NEVER` where it does not occur, (classes,)."""


def prior_rows(source: Any, class_names: Sequence[str], keys: Sequence[str], parent: str | None) -> list[PriorRow]:
    """Return the rows of a table of weights, each with other keys.

    Args:
        source: A .csv, .tsv or .parquet; a frame; or a mapping from keys to the weights of classes.
        class_names: Class names of the model.
        keys: Names of the key columns, the widest first.
        parent: Name of a column that says what the first key is in, if there is one.
    """
    labels = {class_name(name): label for label, name in enumerate(class_names)}
    if len(labels) < len(class_names):
        twice = next(name for label, name in enumerate(class_names) if labels[class_name(name)] != label)
        raise UserError(f"two classes are called {twice!r}, so that no table can tell them apart; rename one")
    table = _opened(source, keys)
    if not table.header:
        raise UserError(f"{table.place}: the table is empty; write {', '.join(keys)} and the classes in its first line")
    columns = [*keys] if parent is None else [*keys, parent]
    at = key_columns(table, columns)
    others = [place for place in range(len(table.header)) if place not in at]
    long = _long_columns(table, others, labels)
    read = _wide_rows(table, at, others, labels) if long is None else _long_rows(table, at, long, labels)
    rows = [_row(place, cells, weights, keys, parent) for place, cells, weights in read]
    if not rows:
        raise UserError(f"{table.place}: there is no row below the headings; add one for each place")
    return rows


def key_columns(table: TableCells, names: Sequence[str]) -> list[int]:
    """Return where the columns of some names are; case and blanks around a name do not count."""
    known = [name.strip().casefold() for name in table.header]
    for name in names:
        if name.strip().casefold() not in known:
            only = f", only {some_of(table.header, 10)}" if table.header else ""
            raise UserError(f"{table.place}: there is no column {name!r}{only}; add it, or name another")
    return [known.index(name.strip().casefold()) for name in names]


def key_text(cell: Any) -> str:
    """Return a key as text in one spelling: 5 and 5.0 of a column of numbers are alike, and so is "5".

    >>> key_text(5.0), key_text(" north "), key_text(None), key_text(float("nan"))
    ('5', 'north', '', '')
    """
    if is_missing(cell):
        return ""
    is_whole = isinstance(cell, Integral) or (isinstance(cell, Real) and float(cell).is_integer())
    return class_name(str(int(cell) if is_whole and not isinstance(cell, bool) else cell))


def frame_columns(frame: Any) -> dict[str, list[Any]] | None:
    """Return the columns of a frame (of pandas, polars, pyarrow) by name; None for what is no frame."""
    names = getattr(frame, "column_names", None) or getattr(frame, "columns", None)
    if names is None or isinstance(frame, Mapping):
        return None
    texts = [str(name) for name in names]
    if twice := [name for name, count in Counter(texts).items() if count > 1]:
        raise UserError(f"two columns are called {twice[0]!r}; rename one, or leave it out")
    return {text: _listed(frame[name]) for text, name in zip(texts, names, strict=True)}


def _listed(column: Any) -> list[Any]:
    convert = next(getattr(column, name) for name in ("to_pylist", "to_list", "tolist") if hasattr(column, name))
    return list(convert())


class _Columns:
    """Columns in memory as a table."""

    place, decimal_commas = "the table", False

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.header, self.columns = list(columns), list(columns.values())

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[str, list[Any]]]:
        values = [self.columns[at] for at in columns]
        for number, cells in enumerate(zip(*values, strict=True), start=1):
            yield f"the table, row {number}", list(cells)


def _opened(source: Any, keys: Sequence[str]) -> TableCells:
    if isinstance(source, str | Path):
        return open_table(source)
    if (columns := frame_columns(source)) is not None:
        return _Columns(columns)
    if not isinstance(source, Mapping):
        raise UserError(
            f"a table of priors is a file, a frame or a mapping from keys to weights, but is {type(source).__name__}"
        )
    return _Columns(_mapping_columns(source, keys))


def _mapping_columns(source: Mapping[Any, Any], keys: Sequence[str]) -> dict[str, list[Any]]:
    """Weights by key as columns; a class that a key does not name has weight 0."""
    if wrong := [key for key, weights in source.items() if not isinstance(weights, Mapping)]:
        raise UserError(f"the table has no mapping from classes to weights for the key {wrong[0]!r}; give one")
    names = list(dict.fromkeys(str(name) for weights in source.values() for name in weights))
    paths = [(key,) if isinstance(key, str) or not isinstance(key, Sequence) else tuple(key) for key in source]
    if wrong := [path for path in paths if len(path) != len(keys)]:
        raise UserError(f"the table has the key {wrong[0]}, but the keys are {', '.join(keys)}; give as many values")
    columns = {name: [path[place] for path in paths] for place, name in enumerate(keys)}
    return {**columns, **{name: [weights.get(name, 0) for weights in source.values()] for name in names}}


def _long_columns(table: TableCells, others: Sequence[int], labels: Mapping[str, int]) -> tuple[int, int] | None:
    """Where classes and counts are, if the table has a row for each; a class may be called "count", too."""
    names = {table.header[at].strip().casefold(): at for at in others if class_name(table.header[at]) not in labels}
    found = [next((names[each] for each in known if each in names), None) for known in (_LABELS, COUNT_NAMES)]
    return None if found[0] is None or found[1] is None else (found[0], found[1])


_LABELS = COLUMN_NAMES["label"]
_Read = Iterator[tuple[str, list[Any], np.ndarray]]


def _wide_rows(table: TableCells, at: Sequence[int], others: Sequence[int], labels: Mapping[str, int]) -> _Read:
    names = [class_name(table.header[place]) for place in others]
    for number, name in enumerate(names):
        if name not in labels:
            raise UserError(f"{table.place}, beside the keys: {unknown_name('class', name, labels)}")
        if name in names[:number]:
            raise UserError(f"{table.place}: class {name!r} has two columns; keep one of them")
    order = [labels[name] for name in names]
    for place, cells in table.rows([*at, *others]):
        weights = np.zeros(len(labels))
        values = zip(names, cells[len(at) :], strict=True)
        weights[order] = [_weight(place, name, cell, table.decimal_commas) for name, cell in values]
        yield place, cells[: len(at)], weights


def _long_rows(table: TableCells, at: Sequence[int], long: tuple[int, int], labels: Mapping[str, int]) -> _Read:
    """One row for each key; where it is first written is its place."""
    rows: dict[tuple[str, ...], tuple[str, list[Any], np.ndarray]] = {}
    known: set[tuple[tuple[str, ...], int]] = set()
    for place, cells in table.rows([*at, *long]):
        keys, name = tuple(map(key_text, cells[: len(at)])), key_text(cells[-2])
        if name not in labels:
            raise UserError(f"{place}: {unknown_name('class', name, labels)}")
        if (keys, labels[name]) in known:
            raise UserError(f"{place}: class {name!r} has a count at {_shown(keys)} already; keep one of them")
        known.add((keys, labels[name]))
        _, _, weights = rows.setdefault(keys, (place, cells[: len(at)], np.zeros(len(labels))))
        weights[labels[name]] = _weight(place, name, cells[-1], table.decimal_commas)
    yield from rows.values()


def _weight(place: str, name: str, cell: Any, decimal_commas: bool) -> float:
    value = math.nan
    if isinstance(cell, str):
        if cell.strip().casefold() == "never":
            return NEVER
        with contextlib.suppress(ValueError):
            value = float(cell.replace(",", ".") if decimal_commas else cell)
    elif not isinstance(cell, bool) and isinstance(cell, Real):
        with contextlib.suppress(OverflowError):
            value = float(cell)
    if not 0 <= value <= LARGEST:
        raise UserError(
            f"{place}: the weight of class {name!r} must be a number from 0 to {LARGEST:g} or the word never, but is "
            f"{cell!r}; fix it"
        )
    return value


def _row(place: str, cells: Sequence[Any], weights: np.ndarray, keys: Sequence[str], parent: str | None) -> PriorRow:
    values = [key_text(cell) for cell in cells]
    above = values.pop() if parent is not None else ""
    filled = next((number for number, value in enumerate(values) if not value), len(values))
    if any(values[filled:]):
        raise UserError(
            f"{place}: {keys[filled]} is empty, but a key after it is not; fill it in, or leave out all that follow it"
        )
    if (weights == NEVER).all():
        raise UserError(f"{place}: all classes are never there; give a weight to those that are")
    if not weights.any():
        raise UserError(f"{place}: all weights are zero; give the share or the count of each class, or remove the row")
    return PriorRow(place, tuple(values[:filled]), above, weights)


def _shown(keys: Sequence[str]) -> str:
    return "/".join(key for key in keys if key) or "all"
