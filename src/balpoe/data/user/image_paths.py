"""The images that somebody names, one after the other: files, folders, patterns and tables, never all in memory."""

import csv
import glob
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from balpoe.data.loading.decode import IMAGE_SUFFIXES
from balpoe.data.user.class_names import some_of
from balpoe.data.user.folders import CLUTTER
from balpoe.data.user.tables import COLUMN_NAMES
from balpoe.errors import UserError
from balpoe.files import csv_delimiter

__all__ = ["image_paths", "keyed_image_paths"]


def image_paths(inputs: Sequence[str]) -> Iterator[str]:
    """Return the paths of all images; an input that names nothing is refused at once.

    Args:
        inputs: Files; folders, of which all images are taken; patterns such as `photos/**/*.jpg`; and .csv or .tsv
            with a column of paths, which are relative to the table.
    """
    for each in inputs:
        if not os.path.exists(each) and next(glob.iglob(each, recursive=True), None) is None:
            raise UserError(f"there is nothing at {each}; give images, a folder, a pattern, or a table of paths")
    return itertools.chain.from_iterable(map(_named, inputs))


def keyed_image_paths(inputs: Sequence[str], keys: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the paths of all images in tables, each with its values in some further columns.

    Args:
        inputs: Files .csv or .tsv with a column of paths, which are relative to the table.
        keys: Names of the columns.
    """
    for each in inputs:
        if not os.path.isfile(each) or not _is_table(each):
            raise UserError(
                f"{each} is no table, so that nothing says {', '.join(keys)} of an image; give a .csv or .tsv"
            )
    return itertools.chain.from_iterable(_table_rows(Path(each), keys) for each in inputs)


def _is_table(path: str) -> bool:
    return Path(path).suffix.lower() in (".csv", ".tsv")


def _named(each: str) -> Iterator[str]:
    if os.path.isdir(each):
        return _in_folder(each)
    if not os.path.exists(each):
        # What ** finds in a folder it finds by itself, too.
        found = (path for path in sorted(glob.iglob(each, recursive=True)) if "**" not in each or os.path.isfile(path))
        return itertools.chain.from_iterable(map(_named, found))
    return (path for path, _ in _table_rows(Path(each))) if _is_table(each) else iter([each])


def _in_folder(folder: str) -> Iterator[str]:
    """In order of names; links to folders are not followed, so that the walk comes to an end."""
    for place, folders, files in os.walk(folder, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if _is_seen(name))
        for name in sorted(filter(_is_seen, files)):
            if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
                yield os.path.join(place, name)


def _unreadable(error: OSError) -> None:
    raise error


def _is_seen(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in CLUTTER


def _table_rows(table: Path, keys: Sequence[str] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    try:
        with open(table, encoding="utf-8-sig", newline="") as stream:
            delimiter = csv_delimiter(stream.readline()) if table.suffix.lower() == ".csv" else "\t"
            stream.seek(0)
            reader = csv.DictReader(stream, delimiter=delimiter, strict=True)
            names = {name.strip().casefold(): name for name in reader.fieldnames or ()}
            column = next((names[name] for name in COLUMN_NAMES["path"] if name in names), None)
            if column is None:
                raise UserError(f"{table}, line 1: there is no column of paths; name it {COLUMN_NAMES['path'][0]}")
            lacking = next((key for key in keys if key.strip().casefold() not in names), None)
            if lacking is not None:
                known = some_of(list(names.values()), 10)
                raise UserError(f"{table}, line 1: there is no column {lacking!r}, only {known}; add it, or fix --keys")
            for row in reader:
                if not row[column]:
                    raise UserError(
                        f"{table}, line {reader.line_num}: the path is empty; fill it in, or remove the row"
                    )
                values = tuple(row[names[key.strip().casefold()]] or "" for key in keys)
                yield os.path.join(table.parent, row[column]), values
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{table} cannot be read as a table ({error}); save it as UTF-8 with a line of headings"
        ) from error
