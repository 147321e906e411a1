"""Images in a folder that has a subfolder for each class, and perhaps one for training and one for the test above."""

import os
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from balpoe.data.loading.decode import IMAGE_SUFFIXES
from balpoe.data.user.class_names import natural_order, some_of
from balpoe.data.user.scan import PARTS, LabelledImage, ScanResult
from balpoe.errors import UserError

__all__ = ["folder_rows"]

CLUTTER = {"__macosx", "@eadir", "$recycle.bin", "thumbs.db", "desktop.ini"}
"""What systems leave in folders, in lower case; names with a leading dot are hidden anyway."""


def folder_rows(folder: str) -> ScanResult:
    """Return the images below a folder, sorted by path, with the class that the first level of subfolders names.

    Where that level is called train and test (or val, ...), it names the part, and the level below it the class.

    Args:
        folder: Path of the folder.
    """
    tree = _tree(folder)
    _check_tree(folder, tree)
    roles = {name.split("/")[0]: PARTS.get(name.split("/")[0].casefold(), "") for name in tree.images}
    if not {"train"} < set(roles.values()) - {""}:  # training and another part
        rows = [_row(folder, name) for name in tree.images]
        _check_depth(folder, rows)
        return ScanResult(rows, folder, ignored=tree.ignored, notes=_empty_notes(tree, rows, 0))
    parted = [(name, roles[name.split("/")[0]]) for name in tree.images]
    rows = [_row(folder, name, part) for name, part in parted if part]
    notes = _empty_notes(tree, rows, 1)
    if others := natural_order(top for top, part in roles.items() if not part):
        notes = (f"left out, because they are no part: {some_of(others)}", *notes)
    return ScanResult(rows, folder, ignored=tree.ignored, notes=notes)


class _Tree(NamedTuple):
    """All that lies below a folder, by names relative to it."""

    folders: list[str]
    images: list[str]
    not_files: list[str]
    """Links to nothing, pipes and devices that are called like an image."""
    ignored: int


def _tree(root: str) -> _Tree:
    """Walk through a folder, and through each real folder once, so that links in a circle come to an end.

    Links wait until all else is seen: what can be reached without a link belongs where it lies.
    """
    folders: list[str] = []
    images: list[str] = []
    not_files: list[str] = []
    ignored, seen, waiting = 0, set[tuple[int, int]](), deque([""])
    while waiting:
        folder = waiting.popleft()
        for entry in _entries(os.path.join(root, folder), seen):
            name = f"{folder}/{entry.name}" if folder else entry.name
            link = entry.is_symlink()  # of which a DirEntry answers with an error when it leads to itself
            if os.path.isdir(entry.path) if link else entry.is_dir():
                folders.append(name)
                (waiting.append if link else waiting.appendleft)(name)
            elif os.path.splitext(entry.name)[1].lower() not in IMAGE_SUFFIXES:
                ignored += 1
            else:
                is_file = os.path.isfile(entry.path) if link else entry.is_file()
                (images if is_file else not_files).append(name)
    return _Tree(folders, sorted(images), sorted(not_files), ignored)


def _entries(folder: str, seen: set[tuple[int, int]]) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in a folder and is not hidden, by name; nothing if it was seen under another name."""
    try:
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot read the folder {folder}: {reason}; fix its permissions, or move it away") from error
    yield from (entry for entry in found if entry.name[0] != "." and entry.name.lower() not in CLUTTER)


def _check_tree(folder: str, tree: _Tree) -> None:
    if tree.not_files:
        more = f" (nor are {len(tree.not_files) - 1:,} more)" if len(tree.not_files) > 1 else ""
        raise UserError(
            f"{os.path.join(folder, tree.not_files[0])} is no file, or a link to one that is not there{more}; "
            "fetch what it should be, or delete it"
        )
    if not tree.images:
        others = f" ({tree.ignored:,} other files)" if tree.ignored else ""
        raise UserError(
            f"there are no images in {folder}{others}; give a folder that has a subfolder of images for each class"
        )


def _row(folder: str, name: str, part: str = "") -> LabelledImage:
    levels = name.split("/")[1 if part else 0 :]
    if len(levels) < 2:
        raise UserError(
            f"{os.path.join(folder, name)} lies in no class; move it into a subfolder that is named after its class, "
            "or give a CSV with the columns path and label"
        )
    return LabelledImage(name, levels[0], part=part)


def _check_depth(folder: str, rows: list[LabelledImage]) -> None:
    labels = {row.label for row in rows}
    if len(labels) == 1:
        only = labels.pop()
        raise UserError(
            f"{folder} has one class only, {only!r}; add a subfolder for another, or, if the classes are the folders "
            f"in it, give {os.path.join(folder, only)}"
        )


def _empty_notes(tree: _Tree, rows: list[LabelledImage], depth: int) -> tuple[str, ...]:
    """A sentence on folders where a class should be and no image is."""
    filled = {"/".join(row.name.split("/")[: depth + 1]) for row in rows}
    parts = {name.split("/")[0] for name in filled} if depth else set()
    empty = [
        name
        for name in tree.folders
        if name.count("/") == depth and name not in filled and (not depth or name.split("/")[0] in parts)
    ]
    return (f"without an image of its own, a folder is no class: {some_of(natural_order(empty))}",) if empty else ()
