"""Tables of paths and labels: .csv, .tsv and .parquet."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from balpoe.data.user.class_names import class_name, some_of
from balpoe.data.user.scan import PARTS, LabelledImage, ScanResult
from balpoe.data.user.table_cells import open_table
from balpoe.errors import UserError

__all__ = ["table_rows"]

COLUMN_NAMES = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path"),
    "label": ("label", "class", "category", "species", "target", "label_name", "class_name"),
    "group": ("group",),
    "split": ("split", "subset"),
}
"""Names that each kind of column may have; the first that a table has is taken."""


class _Record(NamedTuple):
    place: str
    """The file, and the line or row of it."""
    values: dict[str, str]
    """Values by kind of column."""


def table_rows(path: Path, group_column: str = "") -> ScanResult:
    """Return the rows of a table, each with an existing file; relative paths are relative to the table's folder.

    Args:
        path: A .csv (with commas or semicolons), .tsv or .parquet with a column of paths and one of labels, and, if
            wanted, one of groups and one of parts ("train", "test", "val").
        group_column: Name of the column of groups; by default "group".
    """
    records = list(_records(path, group_column))
    rows, root = [_row(record) for record in records], str(path.parent)
    _check_repeats(rows)
    _check_files(rows, root)
    return ScanResult(rows, root, has_groups=bool(records) and "group" in records[0].values)


def _row(record: _Record) -> LabelledImage:
    place, values = record
    for kind in ("path", "label"):
        if not values[kind].strip():
            raise UserError(f"{place}: the {kind} is empty; fill it in, or remove the row")
    part = PARTS.get(values["split"].strip().casefold(), "") if "split" in values else ""
    if "split" in values and not part:
        raise UserError(f"{place}: the split is {values['split']!r}; known are {', '.join(PARTS)}")
    return LabelledImage(values["path"], values["label"], place, values.get("group", "").strip(), part)


def _check_repeats(rows: Sequence[LabelledImage]) -> None:
    first: dict[str, LabelledImage] = {}
    for row in rows:
        before = first.setdefault(os.path.normpath(row.name), row)
        if before is row:
            continue
        if class_name(before.label) == class_name(row.label):
            raise UserError(f"{row.place} repeats {before.place} ({row.name!r}); remove one of them")
        raise UserError(
            f"{row.place}: {row.name!r} has the label {row.label!r}, but {before.label!r} in {before.place}; "
            "remove the wrong one"
        )


def _check_files(rows: Sequence[LabelledImage], root: str) -> None:
    absent = [row for row in rows if not os.path.isfile(os.path.join(root, row.name))]
    if absent:
        more = f" (and {len(absent) - 1:,} more are missing)" if len(absent) > 1 else ""
        raise UserError(
            f"{absent[0].place}: there is no file {os.path.join(root, absent[0].name)!r}{more}; "
            "correct the path, which is relative to the table, or remove the row"
        )


def _records(path: Path, group_column: str) -> Iterator[_Record]:
    table = open_table(path)
    if not table.header:
        return
    columns = _columns(table.place, table.header, group_column)
    for place, cells in table.rows(list(columns.values())):
        yield _Record(place, {kind: _cell(place, kind, cell) for kind, cell in zip(columns, cells, strict=True)})


def _columns(place: str, header: Sequence[str], group_column: str) -> dict[str, int]:
    """Where each kind of column is."""
    names = [name.strip().casefold() for name in header]
    wanted = {**COLUMN_NAMES, "group": (group_column.strip().casefold() or "group",)}
    found = {
        kind: names.index(next(name for name in known if name in names))
        for kind, known in wanted.items()
        if not set(known).isdisjoint(names)
    }
    if group_column and "group" not in found:
        raise UserError(f"{place}: there is no column {group_column!r}, only {some_of(header, 10)}; fix --group")
    for kind in ("path", "label"):
        if kind not in found:
            raise UserError(
                f"{place}: there is no column of {kind}s, only {some_of(header, 10)}; "
                f"name it {', '.join(COLUMN_NAMES[kind][:-1])} or {COLUMN_NAMES[kind][-1]}"
            )
    return found


def _cell(place: str, kind: str, value: object) -> str:
    if value is None or value != value:  # NaN: what pandas calls missing
        return ""
    if isinstance(value, str) or (isinstance(value, int | float) and kind != "path"):
        return str(value)
    raise UserError(f"{place}: the {kind} is {type(value).__name__}, not text; save paths and labels as text")
