"""AutoAugment for CIFAR-10 (Cubuk et al. 2019): fourteen operations, their magnitudes, and who undergoes which.

On a CPU the operations are, pixel for pixel, torchvision's of one image; nothing is ever read from the device.
"""

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from balpoe.data.augment.colour import (
    autocontrast,
    brightness,
    contrast,
    equalize,
    posterize,
    saturation,
    sharpness,
    solarize,
)
from balpoe.data.augment.geometry import Fill, rotate, shear, translate

__all__ = ["MAGNITUDES", "OPERATIONS", "SIGNED", "group_rows", "policies", "sort_rows"]


# Ten levels of each operation. As float32, as torchvision has them: a grey value half-way between two is then
# rounded to the same one.
def _levels(highest: float) -> list[float]:
    return [float(level) for level in torch.linspace(0.0, highest, 10)]


MAGNITUDES = {
    "ShearX": _levels(0.3),
    "ShearY": _levels(0.3),
    "TranslateX": _levels(150 / 331),
    "TranslateY": _levels(150 / 331),
    "Rotate": _levels(30.0),
    "Brightness": _levels(0.9),
    "Color": _levels(0.9),
    "Contrast": _levels(0.9),
    "Sharpness": _levels(0.9),
    "Posterize": [8.0 - round(level / (9 / 4)) for level in range(10)],
    "Solarize": _levels(255.0)[::-1],
}
"""A shear in pixels per pixel, a translation in sides, a rotation in degrees, a posterisation in bits that stay."""

SIGNED = frozenset(name for name in MAGNITUDES if name not in ("Posterize", "Solarize"))

OPERATIONS: dict[str, Callable[[Tensor, Tensor, Fill], Tensor]] = {
    "ShearX": lambda images, m, fill: shear(images, m, 0, fill),
    "ShearY": lambda images, m, fill: shear(images, m, 1, fill),
    "TranslateX": lambda images, m, fill: translate(images, (m * images.shape[-1]).trunc(), 0, fill),
    "TranslateY": lambda images, m, fill: translate(images, (m * images.shape[-2]).trunc(), 1, fill),
    "Rotate": rotate,
    "Brightness": lambda images, m, fill: brightness(images, m),
    "Color": lambda images, m, fill: saturation(images, m),
    "Contrast": lambda images, m, fill: contrast(images, m),
    "Sharpness": lambda images, m, fill: sharpness(images, m),
    "Posterize": lambda images, m, fill: posterize(images, m),
    "Solarize": lambda images, m, fill: solarize(images, m),
    "AutoContrast": lambda images, m, fill: autocontrast(images),
    "Equalize": lambda images, m, fill: equalize(images),
    "Invert": lambda images, m, fill: 255 - images,
}
"""From images, one signed float32 magnitude each and the colour of uncovered corners to changed images."""


@functools.cache
def policies() -> list[tuple[tuple[str, float, int | None], ...]]:
    """Return the 25 published sub-policies for CIFAR-10, each of two steps: operation, probability, level."""
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy  # takes seconds, and not all data are images

    return AutoAugment(AutoAugmentPolicy.CIFAR10).policies  # type: ignore[no-any-return]


def _step(name: str, probability: float, level: int | None) -> tuple[float, ...]:
    """Return one step as numbers: which operation, how often, how far, and whether in both directions."""
    magnitude = 0.0 if level is None else MAGNITUDES[name][level]
    return list(OPERATIONS).index(name), probability, magnitude, name in SIGNED


def group_rows(policy: np.ndarray, applied: np.ndarray, sign: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return which images each operation changes, and how far, ordered by step and then as `OPERATIONS`.

    Args:
        policy: Number of each image's sub-policy (samples,).
        applied: Draw from 0 to 1 for each step and image (2, samples); below its probability a step is taken.
        sign: Direction of each step, 1 or -1 (2, samples).

    Returns:
        Rows, their magnitudes, and how many of them each of the 28 operations of both steps has.
    """
    steps = np.array([[_step(*step) for step in pair] for pair in policies()])
    number, probability, magnitude, signed = steps.transpose(2, 1, 0)[..., policy]  # each (2, samples)
    return sort_rows(number, applied < probability, magnitude * np.where(signed, sign, 1), len(OPERATIONS))


def sort_rows(
    number: np.ndarray, taken: np.ndarray, amounts: np.ndarray, num_operations: int
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return which images each operation changes, and how far, ordered by step and then by operation.

    Args:
        number: Operation of each step and image (steps, samples).
        taken: Whether the step is taken (steps, samples).
        amounts: Size of each change (steps, samples).
        num_operations: Number of operations to choose from.

    Returns:
        Rows, their amounts, and how many of them each operation of each step has.

    >>> rows, amounts, sizes = sort_rows(np.array([[1, 0, 1]]), np.array([[True, True, True]]), np.ones((1, 3)), 2)
    >>> (rows.tolist(), sizes)
    ([1, 0, 2], [1, 2])
    """
    steps, samples = number.shape
    last = steps * num_operations  # the group of what stays as it is
    group = np.where(taken, number + num_operations * np.arange(steps)[:, None], last).astype(np.int64)
    order = np.argsort(group, axis=None, kind="stable")[: taken.sum()]
    rows = np.broadcast_to(np.arange(samples), group.shape)
    sizes = np.bincount(group[taken], minlength=last)
    return rows.ravel()[order], amounts.ravel()[order].astype(np.float32), sizes.tolist()
