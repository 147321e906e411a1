"""Groups of samples that belong together: how they are found and numbered, and what there is to say of them."""

import itertools
import re
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from balpoe.data.user.class_names import natural_order, some_of
from balpoe.data.user.split import some_classes
from balpoe.errors import UserError
from balpoe.method.intervals import evidence_counts

__all__ = [
    "ARRAY",
    "COLUMN",
    "NO_GROUPS",
    "PATTERN",
    "TABLE",
    "group_notes",
    "group_numbers",
    "matched_groups",
    "torn_groups",
]

NO_GROUPS = "none"
"""What a recipe says instead of a pattern where there are no groups; --no-group on the command line."""
COLUMN = "column:"
"""Beginning of what a recipe says instead of a pattern where a table's column has the groups."""
PATTERN, TABLE, ARRAY = "--group", "the table's column of groups", "the array groups"
"""What says the groups, in a sentence on what is to be checked."""


def matched_groups(pattern: str, names: Sequence[str]) -> tuple[str, ...]:
    r"""Return what a pattern finds in each name: its first parentheses, or all of it without any; "" for nothing.

    >>> matched_groups(r"(.*)_\d+", ["ash/00006_00012.ppm", "ash/old.ppm"])
    ('ash/00006', '')
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--group {pattern!r} is no regular expression ({error}); fix it") from error
    matches = (expression.search(name) for name in names)
    return tuple(match[min(expression.groups, 1)] or "" if match else "" for match in matches)


def group_numbers(groups: Sequence[str]) -> Tensor:
    """Return a number for each sample, the same for those of one group; one in no group has a number of its own.

    >>> group_numbers(["b", "", "a", "b", ""])
    tensor([1, 2, 0, 1, 3])
    """
    known = {group: number for number, group in enumerate(sorted({group for group in groups if group}))}
    own = itertools.count(len(known))
    return torch.tensor([known[group] if group else next(own) for group in groups], dtype=torch.int64)


def group_notes(
    groups: Sequence[str], targets: Tensor, class_names: Sequence[str], said_by: str = PATTERN
) -> list[str]:
    """Return sentences: how many groups each class has, and what is odd about them.

    Args:
        groups: Group of each sample, "" for none.
        targets: Labels from 0, (samples,).
        class_names: Names of the classes.
        said_by: What says the groups: `PATTERN` on file names, `TABLE` or `ARRAY`.
    """
    numbers, named = group_numbers(groups), {group for group in groups if group}
    counts = evidence_counts(targets, len(class_names), numbers)
    each = some_classes([f"{name} {count:,}" for name, count in zip(class_names, counts.tolist(), strict=True)])
    notes = [f"groups, which stay on one side of every split: {len(named):,} ({each})"]
    if alone := sum(not group for group in groups):
        notes.append(f"samples in no group, each of which stands for itself: {alone:,}")
    if len(named) == 1:
        notes.append(f"one group only, {some_of(list(named))}: it tells nothing apart; check {said_by}")
    elif len(named) == len(groups) - alone:
        notes.append(f"no group has a second sample, so that nothing is kept together; check {said_by}")
    pairs = sorted({(group, target) for group, target in zip(groups, targets.tolist(), strict=True) if group})
    joining = sorted({first for (first, _), (second, _) in itertools.pairwise(pairs) if first == second})
    if joining and len(named) > 1:
        by_name = "--group '(.*)_' keeps the folder in the group"
        advice = by_name if said_by == PATTERN else f"make them unique in {said_by}"
        notes.append(
            f"groups that join several classes: {len(joining):,} of {len(named):,} ({some_of(joining)}); right for one "
            f"patient or place with several labels, wrong for numbers that begin anew in each class: {advice}"
        )
    return notes


def torn_groups(train: Iterable[str], test: Iterable[str]) -> list[str]:
    """Return a sentence on the groups that training and test share, if they do.

    >>> torn_groups(["a", "b", ""], ["b", ""])
    ["in training and in the test, which flatters the test: groups 'b'"]
    """
    torn = natural_order((set(train) & set(test)) - {""})
    return [f"in training and in the test, which flatters the test: groups {some_of(torn)}"] if torn else []
