"""Long-tailed class counts, and which samples they leave: the subsets that the field compares on."""

import math

import numpy as np
import torch
from torch import Tensor

from balpoe.errors import UserError, unknown_name

__all__ = [
    "PROFILES",
    "held_out_indices",
    "long_tailed_counts",
    "long_tailed_indices",
    "shifted_test_counts",
    "unused_indices",
]

PROFILES = ("exponential", "step", "pareto")


def long_tailed_counts(
    num_classes: int, largest: int, imbalance_ratio: float, profile: str = "exponential"
) -> list[int]:
    """Return how many samples each class keeps, class 0 most.

    Args:
        num_classes: Number of classes.
        largest: Number of samples of class 0.
        imbalance_ratio: Largest count over the smallest, at least 1.
        profile: "exponential", largest * ratio^(-j / (classes - 1)), or "step", all for the first
            half of the classes and largest / ratio for the second, or "pareto", a power of the rank,
            largest * (j + 1)^(-log ratio / log classes). All truncate, as the field does.

    >>> long_tailed_counts(10, 5000, 100)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """
    if not imbalance_ratio >= 1 or imbalance_ratio == float("inf"):
        meant = f"; did you mean {1 / imbalance_ratio:g}?" if 0 < imbalance_ratio < 1 else ""
        raise UserError(
            f"imbalance_ratio (largest over smallest class count) must be at least 1, but is {imbalance_ratio:g}{meant}"
        )
    if profile == "exponential":
        steps = [label / max(num_classes - 1, 1) for label in range(num_classes)]
    elif profile == "step":
        steps = [float(label >= num_classes / 2) for label in range(num_classes)]
    elif profile == "pareto":
        steps = [math.log(label + 1) / math.log(max(num_classes, 2)) for label in range(num_classes)]
    else:
        raise unknown_name("profile", profile, PROFILES)
    # Truncated with a little room: 49 * (1 / 49) is 1 only up to rounding.
    counts = [int(largest * (1 / imbalance_ratio) ** step + 1e-9) for step in steps]
    if min(counts) < 1:
        raise UserError(
            f"at imbalance_ratio {imbalance_ratio:g} class {counts.index(0)} would keep no sample of {largest}; "
            f"use a ratio of at most {largest}"
        )
    return counts


def long_tailed_indices(targets: Tensor, counts: list[int], seed: int = 0) -> Tensor:
    """Return the samples that a long-tailed subset keeps, class by class.

    The rule of the reference code and of those before it (LDAM, RIDE, SADE), so that everybody
    trains on the same images: one legacy numpy generator with seed 0 shuffles the samples of each
    class in turn, and the first ones stay. It does not depend on the training seed.

    >>> long_tailed_indices(torch.tensor([0, 1, 0, 1]), [2, 1])
    tensor([2, 0, 1])
    """
    rng = np.random.RandomState(seed)
    labels = targets.numpy()
    kept = []
    for label, count in enumerate(counts):
        samples = np.where(labels == label)[0]
        if len(samples) < count:
            raise UserError(f"class {label} has {len(samples)} samples, but {count} are to be kept")
        rng.shuffle(samples)
        kept.append(samples[:count])
    return torch.from_numpy(np.concatenate(kept))


def unused_indices(targets: Tensor, counts: list[int], per_class: int) -> Tensor:
    """Return up to `per_class` samples of each class that a long-tailed subset of these counts does not keep.

    >>> unused_indices(torch.tensor([0, 1, 0, 1]), [2, 1], per_class=1)
    tensor([3])
    """
    ordered = zip(_by_class(targets), counts, strict=True)
    return torch.cat([samples[count : count + per_class] for samples, count in ordered])


def held_out_indices(targets: Tensor, counts: list[int], per_class: int) -> tuple[Tensor, Tensor]:
    """Return the samples that a long-tailed subset keeps, and `per_class` others of each class.

    A class that has too few others gives up its last ones for training.

    >>> held_out_indices(torch.tensor([0, 1, 0, 1]), [2, 1], per_class=1)
    (tensor([2, 1]), tensor([0, 3]))
    """
    kept, held_out = [], []
    for label, (samples, count) in enumerate(zip(_by_class(targets), counts, strict=True)):
        first = min(count, len(samples) - per_class)
        if first < 1:
            raise UserError(
                f"class {label} has {len(samples)} samples: {per_class} for validation leave none to train on"
            )
        kept.append(samples[:first])
        held_out.append(samples[first : first + per_class])
    return torch.cat(kept), torch.cat(held_out)


def _by_class(targets: Tensor) -> tuple[Tensor, ...]:
    """The samples of each class, in the order in which the rule keeps them."""
    totals = torch.bincount(targets).tolist()
    classes: tuple[Tensor, ...] = long_tailed_indices(targets, totals).split(totals)
    return classes


def shifted_test_counts(class_counts: Tensor, test_counts: Tensor, imbalance_ratio: float, direction: str) -> list[int]:
    """Return how many test samples each class keeps in a shifted test set.

    Classes are ranked by training count: "forward" keeps most of the frequent ones, "backward" most of the rare.

    >>> shifted_test_counts(torch.tensor([5, 50, 500]), torch.tensor([100, 100, 100]), 4, "backward")
    [100, 50, 25]
    """
    if direction not in ("forward", "backward"):
        raise unknown_name("direction", direction, ("forward", "backward"))
    profile = long_tailed_counts(len(class_counts), int(test_counts.min()), imbalance_ratio)
    ranked = torch.argsort(class_counts, descending=True, stable=True)
    counts = torch.empty(len(class_counts), dtype=torch.long)
    counts[ranked if direction == "forward" else ranked.flip(0)] = torch.tensor(profile)
    return [int(count) for count in counts]
