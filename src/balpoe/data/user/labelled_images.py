"""Images on disk with their labels, listed from folders or a table."""

import os
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from balpoe.data.user.class_names import check_classes, class_indices, class_name, natural_order, some_of
from balpoe.data.user.folders import folder_rows
from balpoe.data.user.groups import COLUMN, NO_GROUPS, matched_groups, torn_groups
from balpoe.data.user.scan import LabelledImage, ScanResult
from balpoe.data.user.split import validation_note
from balpoe.data.user.tables import table_rows
from balpoe.errors import UserError
from balpoe.files import TABLE_SUFFIXES

__all__ = ["Listing", "read_listing"]


@dataclass(frozen=True)
class Listing:
    """Which images there are, and what each of them shows.

    Args:
        paths: Paths of the files.
        labels: Name of each one's class, in one spelling (Unicode's NFC).
        groups: Group of each, which is never split; "" for an image in no group; None where nothing is known of groups.
        parts: "train", "test" or "val" for each, the last beside a test only; None where the source has no such parts.
        places: Source of each row, for messages.
        ignored: Number of other files that were seen.
        notes: Sentences on what the user should know about the source.
        root: Folder that `version` takes paths relative to.
        class_names: Names of the classes; by default those of the labels, in natural order.

    >>> listing = Listing(("a.png", "b.png"), ("10", "9"), None, None, ("a.png", "b.png"))
    >>> listing.class_names, listing.targets
    (('9', '10'), tensor([1, 0]))
    """

    paths: tuple[str, ...]
    labels: tuple[str, ...]
    groups: tuple[str, ...] | None
    parts: tuple[str, ...] | None
    places: tuple[str, ...]
    ignored: int = 0
    notes: tuple[str, ...] = ()
    root: str = ""
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_names", self.class_names or natural_order(self.labels))

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def targets(self) -> Tensor:
        """The labels as places among the class names, int64."""
        return class_indices(self.labels, self.class_names)

    def subset(self, rows: Tensor | Sequence[int]) -> "Listing":
        """Return the given rows, with the same class names, also those that no row has any more."""
        picked = torch.as_tensor(rows, dtype=torch.int64).tolist()

        def of(values: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(values[row] for row in picked)

        return replace(
            self,
            paths=of(self.paths),
            labels=of(self.labels),
            groups=self.groups and of(self.groups),
            parts=self.parts and of(self.parts),
            places=of(self.places),
        )

    def version(self) -> str:
        """Return eight hexadecimal digits that change with the files' names, sizes, labels, groups, parts and order.

        Contents are not read, and a folder that is moved as a whole keeps its version.
        """
        checksum, nothing = 0, ("",) * len(self)
        for path, *known in zip(self.paths, self.labels, self.groups or nothing, self.parts or nothing, strict=True):
            line = "\0".join((path.removeprefix(os.path.join(self.root, "")), *known, str(_size(path))))
            checksum = zlib.crc32(f"{line}\n".encode(errors="surrogatepass"), checksum)
        return f"{checksum:08x}"


def read_listing(source: str | Path, *, group: str = "") -> Listing:
    """Return the labelled images of a folder or a table, in an order that does not depend on the file system.

    Args:
        source: A folder with a subfolder for each class (perhaps inside train/ and test/, or val/), or a .csv, .tsv or
            .parquet with the columns path and label and, if wanted, group and split.
        group: A regular expression on each file's path, relative to the source. What its first parentheses match (or
            the whole of it, without any) is the image's group; what does not match stands for itself. Or "column:NAME",
            a table's column, by default the one called group; or "none".

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("ash/1.png", "oak/2.png", "oak/deep/3.png"):
    ...         Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
    ...         Path(folder, name).touch()
    ...     read_listing(folder).labels
    ('ash', 'oak', 'oak')
    """
    found = _found(source, group.removeprefix(COLUMN) if group.startswith(COLUMN) else "")
    if not found.rows:
        raise UserError(f"{source} lists no images; add a row for each")
    rows, part_notes = _with_test(found.rows, source)
    labels, label_notes = _labels(rows)
    held_out = [row.part in ("test", "val") for row in rows]
    check_classes(
        (label for label, out in zip(labels, held_out, strict=True) if not out),
        (label for label, out in zip(labels, held_out, strict=True) if out),
        source,
    )
    groups = _groups(found, rows, group, source)
    paths = tuple(os.path.join(found.root, row.name) for row in rows)
    return Listing(
        paths,
        labels,
        groups,
        tuple(row.part for row in rows) if any(held_out) else None,
        tuple(row.place or path for row, path in zip(rows, paths, strict=True)),
        found.ignored,
        (*found.notes, *part_notes, *label_notes, *_torn_groups(groups or (), rows)),
        found.root,
    )


def _found(source: str | Path, group_column: str) -> ScanResult:
    if os.path.isdir(source):
        if group_column:
            raise UserError(f"--group {COLUMN}{group_column} is for tables, but {source} is a folder; give a pattern")
        return folder_rows(str(source))
    if not os.path.exists(source):
        raise UserError(f"{source} does not exist; give a folder of images, or a table of paths and labels")
    if Path(source).suffix.lower() not in TABLE_SUFFIXES:
        raise UserError(f"{source} is neither a folder nor a .csv, .tsv or .parquet; give one of these")
    return table_rows(Path(source), group_column)


def _with_test(rows: list[LabelledImage], source: str | Path) -> tuple[list[LabelledImage], tuple[str, ...]]:
    """The rows, of which those of validation serve as the test where there is no other."""
    counts = Counter(row.part for row in rows)
    if not counts["train"] and len(rows) > counts[""]:
        raise UserError(f"{source} has a test part but none for training; call one train, or leave the split out")
    if not counts["val"]:
        return rows, ()
    note = validation_note(counts["val"], "images", tested=counts["test"] > 0)
    if not counts["test"]:
        rows = [row._replace(part="test") if row.part == "val" else row for row in rows]
    return rows, (note,)


def _labels(rows: list[LabelledImage]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The class of each row, and a sentence if one class was spelt in two ways that look alike."""
    spellings = {row.label.strip() for row in rows}
    names = Counter(map(class_name, spellings))
    twice = natural_order(name for name, times in names.items() if times > 1)
    notes = (f"spelt in several ways that look the same, but one class each: {some_of(twice)}",) if twice else ()
    known = {row.label: class_name(row.label) for row in rows}
    return tuple(known[row.label] for row in rows), notes


def _groups(found: ScanResult, rows: list[LabelledImage], pattern: str, source: str | Path) -> tuple[str, ...] | None:
    if pattern == NO_GROUPS:
        return None
    if not pattern or pattern.startswith(COLUMN):
        return tuple(row.group for row in rows) if found.has_groups else None
    if found.has_groups:
        raise UserError(
            f"{source} has a column group, so that --group {pattern!r} is one too many; leave one of them out"
        )
    groups = matched_groups(pattern, [row.name for row in rows])
    if not any(groups):
        raise UserError(
            f"--group {pattern!r} matches no file of {source}, such as {rows[0].name!r}; change the pattern"
        )
    return groups


def _torn_groups(groups: Sequence[str], rows: list[LabelledImage]) -> list[str]:
    train, test = (
        [group for group, row in zip(groups, rows, strict=bool(groups)) if row.part in side]
        for side in (("train", ""), ("test",))
    )
    return torn_groups(train, test)


def _size(path: str) -> int:
    """A file's size; one that has gone since is told apart from an empty one."""
    try:
        return os.path.getsize(path)
    except OSError:
        return -1
