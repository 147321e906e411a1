"""What is found in a folder or a table, before it is checked."""

from typing import NamedTuple

__all__ = ["PARTS", "LabelledImage", "ScanResult"]

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


class LabelledImage(NamedTuple):
    """One image."""

    name: str
    """Its path, relative to the source."""
    label: str
    place: str = ""
    """Place of the row in a table; empty where the image's own path says it."""
    group: str = ""
    """Empty for an image that belongs to none."""
    part: str = ""
    """One of the values of `PARTS`, or empty."""


class ScanResult(NamedTuple):
    """What a source holds."""

    rows: list[LabelledImage]
    root: str
    """Folder that the names are relative to."""
    has_groups: bool = False
    ignored: int = 0
    """Files that are no images."""
    notes: tuple[str, ...] = ()
    """Sentences on what the user should know."""
