"""The images that somebody names, one after the other: files, folders, patterns and tables, never all in memory."""

import csv
import fnmatch
import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from balpoe.data.loading.decode import IMAGE_SUFFIXES
from balpoe.data.user.class_names import some_of
from balpoe.data.user.folders import CLUTTER
from balpoe.data.user.name_order import in_order
from balpoe.data.user.tables import COLUMN_NAMES
from balpoe.errors import UserError
from balpoe.files import csv_delimiter

__all__ = ["given_paths", "image_paths", "keyed_image_paths"]


def image_paths(inputs: Sequence[str]) -> Iterator[str]:
    """Return the paths of all images; an input that names nothing is refused at once.

    Args:
        inputs: Files; folders, of which all images are taken; patterns such as `photos/**/*.jpg`; and .csv or .tsv
            with a column of paths, which are relative to the table.
    """
    for each in inputs:
        if not os.path.lexists(each) and next(_matches(each), None) is None:
            raise UserError(f"there is nothing at {each}; give images, a folder, a pattern, or a table of paths")
    return itertools.chain.from_iterable(map(_named, given_paths(inputs)))


def given_paths(inputs: Iterable[str]) -> Iterator[str]:
    """Yield the paths that are there by the names of some inputs; a link counts, also one that leads nowhere.

    Args:
        inputs: What `image_paths` takes; in the place of a pattern comes what it stands for.
    """
    for each in inputs:
        if os.path.lexists(each):
            yield each
        else:  # What ** finds in a folder it finds by itself, too.
            yield from (path for path in in_order(_matches(each)) if "**" not in each or not os.path.isdir(path))


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
    return (path for path, _ in _table_rows(Path(each))) if _is_table(each) else iter([each])


def _matches(pattern: str) -> Iterator[str]:
    """The paths that a pattern stands for, in any order: as of `glob`, which would hold all names of a folder."""
    place, name = os.path.split(pattern)
    if not glob.has_magic(name):
        yield from glob.iglob(pattern, recursive=True)
        return
    place, name = (os.path.join(place, name), "*") if name == "**" else (place, name)
    folders: Iterable[str] = [place] if os.path.isdir(place or os.curdir) else []
    if glob.has_magic(place):
        here = [""] if set(place.split(os.sep)) == {"**"} else []  # which glob leaves out
        folders = itertools.chain(here, glob.iglob(os.path.join(place, ""), recursive=True))
    for folder in folders:
        with os.scandir(folder or os.curdir) as entries:
            for entry in entries:
                if fnmatch.fnmatch(entry.name, name) and (name.startswith(".") or not entry.name.startswith(".")):
                    yield os.path.join(folder, entry.name)


def _in_folder(folder: str) -> Iterator[str]:
    """In order of names; links to folders are not followed, so that the walk comes to an end."""
    folders: list[str] = []
    for name in in_order(_image_names(folder, folders)):
        yield os.path.join(folder, name)
    for name in sorted(folders, key=os.fsencode):
        yield from _in_folder(os.path.join(folder, name))


def _image_names(folder: str, folders: list[str]) -> Iterator[str]:
    """The names of a folder's images, in any order; those of the folders in it are added to `folders`."""
    with os.scandir(folder) as entries:
        for entry in filter(lambda each: _is_seen(each.name), entries):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif entry.is_symlink() and os.path.isdir(entry):  # entry.is_dir() would fail at a link onto itself
                continue
            elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES:
                yield entry.name


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
