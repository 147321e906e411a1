"""Tables of paths and labels: .csv, .tsv and .parquet."""

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from balpoe.data.user.class_names import class_name, some_of
from balpoe.data.user.scan import PARTS, LabelledImage, ScanResult
from balpoe.errors import UserError
from balpoe.files import csv_delimiter

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
    read = _parquet if path.suffix.lower() == ".parquet" else _delimited
    records = list(read(path, group_column))
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


def _delimited(path: Path, group_column: str) -> Iterator[_Record]:
    text = _text(path)
    delimiter = csv_delimiter(text) if path.suffix.lower() == ".csv" else "\t"
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        for fields in filter(None, lines):  # an empty line says nothing
            place = f"{path}, line {lines.line_num}"
            if not header:
                header, columns = fields, _columns(place, fields, group_column)
                continue
            if len(fields) != len(header):
                raise UserError(
                    f"{place}: {len(fields)} fields where the first line has {len(header)}; put text that holds the "
                    "separator in double quotes"
                )
            yield _Record(place, {kind: fields[at] for kind, at in columns.items()})
    except csv.Error as error:
        raise UserError(f"{path}, line {lines.line_num}: {error}; check the double quotes") from error


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")  # with the mark that some editors put in front
    except OSError as error:
        raise UserError(f"cannot read {path}: {(error.strerror or str(error)).lower()}; check the path") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: this is not UTF-8 text; save the table as UTF-8") from error


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


def _parquet(path: Path, group_column: str) -> Iterator[_Record]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UserError(f"to read {path}, install pyarrow (pip install pyarrow), or save the table as .csv") from error
    try:
        with ParquetFile(path) as file:
            header = file.schema_arrow.names
            columns = _columns(str(path), header, group_column)
            table = file.read(columns=[header[at] for at in columns.values()])
            values = [table.column(header[at]).to_pylist() for at in columns.values()]
    except UserError:
        raise
    except (ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())  # on one line
        raise UserError(f"{path} is not a whole parquet file ({reason}); write it again") from error
    for number, cells in enumerate(zip(*values, strict=True), start=1):
        place = f"{path}, row {number}"
        yield _Record(place, {kind: _cell(place, kind, cell) for kind, cell in zip(columns, cells, strict=True)})


def _cell(place: str, kind: str, value: object) -> str:
    if value is None or value != value:  # NaN: what pandas calls missing
        return ""
    if isinstance(value, str) or (isinstance(value, int | float) and kind != "path"):
        return str(value)
    raise UserError(f"{place}: the {kind} is {type(value).__name__}, not text; save paths and labels as text")
