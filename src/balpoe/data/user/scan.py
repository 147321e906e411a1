"""A labelled picture as it is found in a folder or a table, before it is checked."""

from typing import NamedTuple

__all__ = ["PARTS", "Found", "Row"]

PARTS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
}
"""What people call the parts of a data set, in lower case."""


class Row(NamedTuple):
    """One picture."""

    name: str
    """Its path, relative to the source."""
    label: str
    place: str = ""
    """Where the row is, if not in the picture's own path."""
    group: str = ""
    """Empty for a picture that belongs to none."""
    part: str = ""
    """One of the values of `PARTS`, or empty."""


class Found(NamedTuple):
    """What a source holds."""

    rows: list[Row]
    root: str
    """What the names are relative to."""
    has_groups: bool = False
    ignored: int = 0
    """Files that are no pictures."""
    notes: tuple[str, ...] = ()
    """What the user should know, a sentence each."""
