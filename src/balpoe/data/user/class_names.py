"""Class names: text in one spelling, in natural order, and their numbers."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from balpoe.errors import UserError

__all__ = [
    "capitals_notes",
    "check_classes",
    "class_indices",
    "class_name",
    "is_missing",
    "natural_order",
    "some_of",
]


def class_name(text: str) -> str:
    r"""Return a name in the one spelling that classes are told apart by: Unicode's NFC, without blanks around it.

    A Mac writes é as two characters and Linux as one; both are one class.

    >>> class_name("cafe\u0301 ") == class_name("caf\u00e9")
    True
    """
    return unicodedata.normalize("NFC", text).strip()


def is_missing(cell: Any) -> bool:
    """Return whether a cell of a table is missing: None, NaN, or pandas' NA, which neither equals itself nor differs.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    try:
        return cell is None or bool(cell != cell)
    except TypeError:
        return True


def natural_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names, each once, in the order that people expect.

    >>> natural_order(["oak 10", "oak 9", "oak 10"])
    ('oak 9', 'oak 10')
    """
    return tuple(sorted(set(names), key=_natural))


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Numbers by their digits, not by their value: a name may hold more digits than Python turns into a number."""
    pieces = re.split("([0-9]+)", name)
    pieces[1::2] = [digits.lstrip("0") for digits in pieces[1::2]]
    return [(len(piece) if place % 2 else 0, piece) for place, piece in enumerate(pieces)], name


def class_indices(labels: Iterable[str], class_names: Sequence[str]) -> Tensor:
    """Return each label's place among the class names, int64.

    >>> class_indices(["oak", "ash", "oak"], ("ash", "oak"))
    tensor([1, 0, 1])
    """
    places = {name: place for place, name in enumerate(class_names)}
    return torch.tensor([places[label] for label in labels], dtype=torch.int64)


def check_classes(labels: Iterable[str], test_labels: Iterable[str], source: object) -> None:
    """Refuse training labels of a single class, and classes that only the test part has.

    Args:
        labels: Labels of the training part.
        test_labels: Labels of the test part, if there is one.
        source: File or folder, for the message.
    """
    known, tested = set(labels), set(test_labels)
    if unwritable := sorted(name for name in known | tested if not name or not name.isprintable()):
        raise UserError(
            f"{source}: the class name {unwritable[0]!r} is empty, or has characters that cannot be written; rename it"
        )
    if unknown := natural_order(tested - known):
        raise UserError(
            f"{source}: no training sample for {some_of(unknown)}, which the test part has; add some to training, "
            "or take the class out of the test part"
        )
    if len(known) == 1:
        raise UserError(f"{source} has one class only, {known.pop()!r}; a classifier needs two or more")


def capitals_notes(labels: Iterable[str]) -> list[str]:
    """Return a sentence on classes whose names differ only in capitals, if there are some: often one typed in two ways.

    Args:
        labels: Class of each sample.

    >>> capitals_notes(["Robin", "robin", "owl", "robin"])
    ["classes whose names differ only in capitals: 'Robin' (1) and 'robin' (2); if they are one, correct the labels"]
    """
    counts, alike = Counter(labels), defaultdict(list)
    for name in natural_order(counts):
        alike[name.casefold()].append(f"{name!r} ({counts[name]:,})")
    found = [" and ".join(names) for names in alike.values() if len(names) > 1]
    if not found:
        return []
    more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
    named = ", ".join(found[:3]) + more
    return [f"classes whose names differ only in capitals: {named}; if they are one, correct the labels"]


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first names and how many more there are, for a message.

    >>> some_of(["ash", "elm", "fir", "oak"])
    "'ash', 'elm', 'fir' and 1 more"
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
