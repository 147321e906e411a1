"""Which samples are held out for a test: some of every class that can spare them, and never half a group."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balpoe.data.loading.epoch_plan import rng
from balpoe.errors import UserError
from balpoe.method.intervals import LEAST_EVIDENCE

__all__ = ["evidence_lack", "some_classes", "split_rows", "validation_note", "wanted_counts", "without_evidence"]

CLASSES_NAMED = 100  # that a sentence names


def split_rows(
    targets: Tensor,
    groups: Sequence[str] | None = None,
    *,
    test_fraction: float = 0.2,
    seed: int = 0,
    together: Iterable[Sequence[int]] = (),
    names: Sequence[str] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the rows to train on and the rows to test on, each in order.

    Each class gives about `wanted_counts` to the test, and never more than half of its samples, so that it is always
    trained on. Classes in the fewest groups choose first. Groups are drawn while they fit what a class should give; a
    class of which none fits gives its smallest, if that is not more than half of it. One in a single group, or with a
    single sample, gives nothing. The same rows and the same seed give the same split; with names, some rows more, or in
    another order, leave almost all where they were: what was tested on before is not trained on now.

    Args:
        targets: Labels from 0, (samples,).
        groups: Group of each sample, which is never split; "" for a sample in no group. None where all are in none.
        test_fraction: Share of each class that the test should get, above 0 and at most 0.5.
        seed: Seed of the draw.
        together: Sets of rows that stay on one side as well, such as copies of one image.
        names: Texts, such as digests, that decide the random order of rows in no group; by default their numbers.

    >>> targets = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 2])
    >>> train, test = split_rows(targets)
    >>> torch.bincount(targets[train]), torch.bincount(targets[test])
    (tensor([5, 1, 1]), tensor([1, 1]))
    """
    if not 0 < test_fraction <= 0.5:
        raise UserError(f"test_fraction must be above 0 and at most 0.5, but is {test_fraction:g}")
    if groups is not None and len(groups) != len(targets):
        raise UserError(f"there are {len(targets)} samples but {len(groups)} groups")
    units = _units(len(targets), groups, together)
    draw = _draw(units, groups, names, seed)
    held_out = torch.from_numpy(_held_out(units, targets.numpy(), test_fraction, draw)[units])
    if not bool(held_out.any()):
        if groups is not None and len(set(groups)) == 1 and groups[0]:
            raise UserError(f"all samples are in one group, {groups[0]!r}; check --group, or give a test part")
        raise UserError(
            "no class has a sample to spare for a test: each has a single one, or most of it in a single group; "
            f"add samples,{'' if groups is None else ' check --group,'} or give a test part"
        )
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def wanted_counts(class_counts: Tensor, test_fraction: float) -> Tensor:
    """Return how many samples of each class should be tested on: the fraction, but at least one, and at most half.

    >>> wanted_counts(torch.tensor([1, 2, 3, 10, 1000]), 0.2)
    tensor([  0,   1,   1,   2, 200])
    """
    share = (class_counts.double() * test_fraction).round().long()
    return share.clamp(min=1).minimum(class_counts // 2)


def without_evidence(test_counts: Tensor, least: int = LEAST_EVIDENCE) -> Tensor:
    """Return the classes with too few test samples, or groups of them, to say anything about.

    With fewer than 4, Wilson's 95 % interval of the accuracy is wider than half of the scale whatever the outcome:
    three hits of three leave everything from 44 % upwards possible.

    Args:
        test_counts: Number of test samples, or of their groups, of each class.
        least: Number that is some evidence.

    >>> without_evidence(torch.tensor([50, 3, 0, 4]))
    tensor([1, 2])
    """
    return (test_counts < least).nonzero().flatten()


def evidence_lack(test_counts: Tensor, class_names: Sequence[str], *, grouped: bool = False) -> str:
    """Return which classes are without evidence, as text; empty if none is.

    Args:
        test_counts: Number of test samples of each class, or of test groups.
        class_names: Names of the classes.
        grouped: Whether groups are counted: a single track is one observation, however many frames it has.

    >>> evidence_lack(torch.tensor([50, 1]), ("ash", "elm"))
    'too few test samples, below 4, to say how well a class is recognised: 1 of 2 (elm (1))'
    """
    classes = without_evidence(test_counts).tolist()
    if not classes:
        return ""
    named = some_classes([f"{class_names[label]} ({int(test_counts[label])})" for label in classes])
    return (
        f"too few test {'groups' if grouped else 'samples'}, below {LEAST_EVIDENCE}, to say how well a class is "
        f"recognised: {len(classes):,} of {len(class_names):,} ({named})"
    )


def validation_note(number: int, what: str, *, tested: bool) -> str:
    """Return what becomes of a part for validation, as a sentence.

    Args:
        number: Number of its samples.
        what: What they are, such as "images".
        tested: Whether there is a test part beside it.

    >>> validation_note(20, "images", tested=False)
    'the 20 images for validation serve as the test part'
    """
    about = "are in neither training nor test, but calibrate" if tested else "serve as the test part"
    return f"the {number:,} {what} for validation {about}"


def some_classes(texts: Sequence[str]) -> str:
    """Return what is said of several classes in one sentence, of not too many.

    >>> some_classes(["ash 3", "elm 1"])
    'ash 3, elm 1'
    """
    more = f" and {len(texts) - CLASSES_NAMED:,} more" if len(texts) > CLASSES_NAMED else ""
    return ", ".join(texts[:CLASSES_NAMED]) + more


def _units(size: int, groups: Sequence[str] | None, together: Iterable[Sequence[int]]) -> np.ndarray:
    """A number for each row, the same for rows that stay on one side."""
    above = list(range(size))

    def top(row: int) -> int:
        while above[row] != row:
            above[row] = row = above[above[row]]
        return row

    rows_of = defaultdict(list)
    for row, group in enumerate(groups or ()):
        if group:
            rows_of[group].append(row)
    for rows in (*rows_of.values(), *together):
        for row in rows:
            first, second = sorted((top(rows[0]), top(row)))
            above[second] = first
    return np.unique([top(row) for row in range(size)], return_inverse=True)[1]


def _draw(units: np.ndarray, groups: Sequence[str] | None, names: Sequence[str] | None, seed: int) -> Sequence[Any]:
    """What units are drawn by, the smallest first."""
    if names is None:
        order: list[int] = rng(seed, 0, "split").permutation(int(units.max(initial=-1)) + 1).tolist()
        return order
    labels: dict[int, str] = {}
    for unit, group, name in zip(units.tolist(), groups or [""] * len(units), names, strict=True):
        label = group or name  # a group stays where it is when it grows
        labels[unit] = min(label, labels.get(unit, label))
    return [hashlib.blake2b(f"{seed} {labels[unit]}".encode()).digest() for unit in range(len(labels))]


def _held_out(units: np.ndarray, targets: np.ndarray, test_fraction: float, draw: Sequence[Any]) -> np.ndarray:
    """Whether each unit is held out."""
    counts = torch.bincount(torch.from_numpy(targets))
    contents, units_of = _contents(units, targets, len(counts))
    wanted, most, taken = wanted_counts(counts, test_fraction).tolist(), (counts // 2).tolist(), [0] * len(counts)
    held_out = np.zeros(len(contents), dtype=bool)

    def take(unit: int, limits: list[int]) -> None:
        if all(taken[label] + number <= limits[label] for label, number in contents[unit].items()):
            held_out[unit] = True
            for label, number in contents[unit].items():
                taken[label] += number

    for label in sorted(units_of, key=lambda label: (len(units_of[label]), counts[label].item(), label)):
        drawn = sorted(units_of[label], key=lambda unit: draw[unit])
        for unit in drawn:
            if taken[label] < wanted[label] and not held_out[unit]:
                take(unit, wanted)
        for unit in sorted(drawn, key=lambda unit: contents[unit][label]):
            if not taken[label]:
                take(unit, most)
    return held_out


def _contents(
    units: np.ndarray, targets: np.ndarray, num_classes: int
) -> tuple[list[dict[int, int]], dict[int, list[int]]]:
    """How many samples of which class each unit has, and which units each class has."""
    contents: list[dict[int, int]] = [{} for _ in range(int(units.max(initial=-1)) + 1)]
    units_of: dict[int, list[int]] = defaultdict(list)
    pairs, numbers = np.unique(units * num_classes + targets, return_counts=True)
    for pair, number in zip(pairs.tolist(), numbers.tolist(), strict=True):
        unit, label = divmod(pair, num_classes)
        contents[unit][label] = number
        units_of[label].append(unit)
    return contents, units_of
