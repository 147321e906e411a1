"""RandAugment (Cubuk et al. 2020): fifteen operations, and how far each goes at a level from 0 to 10.

The set and the amounts are those of timm's `rand-m10-n2-mstd0.5`, from which the reference has them: only some grow
with the level, and at level 10 solarising changes nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from balpoe.data.augment.autoaugment import sort_rows
from balpoe.data.augment.colour import (
    autocontrast,
    brightness,
    contrast,
    equalize,
    posterize,
    saturation,
    sharpness,
    solarize,
    solarize_add,
)
from balpoe.data.augment.geometry import Fill, rotate, shear, translate

__all__ = ["OPERATIONS", "RandOperation", "rand_rows"]

HIGHEST = 10.0
"""The level at which an operation goes as far as it can."""


class RandOperation(NamedTuple):
    """One of the fifteen: what it does to images, and how far it goes."""

    change: Callable[[Tensor, Tensor, Fill], Tensor]
    """From images, one float32 amount each and the colour of uncovered corners to changed images."""
    amount: Callable[[np.ndarray], np.ndarray]
    """From parts of the highest level to amounts."""
    signed: bool = False
    """Whether it goes in both directions."""


def _enhanced(part: np.ndarray) -> np.ndarray:
    return 1.8 * part - 0.9  # a factor from 0.1 to 1.9, less one


OPERATIONS = {
    "AutoContrast": RandOperation(lambda images, a, fill: autocontrast(images), np.zeros_like),
    "Equalize": RandOperation(lambda images, a, fill: equalize(images), np.zeros_like),
    "Invert": RandOperation(lambda images, a, fill: 255 - images, np.zeros_like),
    "Rotate": RandOperation(lambda images, a, fill: rotate(images, a, fill, "bilinear"), lambda part: 30 * part, True),
    "Posterize": RandOperation(lambda images, a, fill: posterize(images, a), lambda part: np.trunc(4 * part)),
    "Solarize": RandOperation(lambda images, a, fill: solarize(images, a), lambda part: np.trunc(256 * part)),
    "SolarizeAdd": RandOperation(lambda images, a, fill: solarize_add(images, a), lambda part: np.trunc(110 * part)),
    "Color": RandOperation(lambda images, a, fill: saturation(images, a), _enhanced),
    "Contrast": RandOperation(lambda images, a, fill: contrast(images, a), _enhanced),
    "Brightness": RandOperation(lambda images, a, fill: brightness(images, a), _enhanced),
    "Sharpness": RandOperation(lambda images, a, fill: sharpness(images, a), _enhanced),
    "ShearX": RandOperation(
        lambda images, a, fill: shear(images, a, 0, fill, "bilinear"), lambda part: 0.3 * part, True
    ),
    "ShearY": RandOperation(
        lambda images, a, fill: shear(images, a, 1, fill, "bilinear"), lambda part: 0.3 * part, True
    ),
    "TranslateX": RandOperation(
        lambda images, a, fill: translate(images, a * images.shape[-1], 0, fill, "bilinear"),
        lambda part: 0.45 * part,
        True,
    ),
    "TranslateY": RandOperation(
        lambda images, a, fill: translate(images, a * images.shape[-2], 1, fill, "bilinear"),
        lambda part: 0.45 * part,
        True,
    ),
}


def rand_rows(
    number: np.ndarray, taken: np.ndarray, levels: np.ndarray, sign: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return which images each operation changes, and how far, ordered by step and then as `OPERATIONS`.

    Args:
        number: Operation of each step and image (steps, samples).
        taken: Whether the step is taken (steps, samples).
        levels: Strength from 0 to 10 (steps, samples).
        sign: Direction, 1 or -1 (steps, samples).

    Returns:
        Rows, their amounts, and how many of them each operation of each step has.

    >>> rows, amounts, sizes = rand_rows(np.array([[3]]), np.array([[True]]), np.array([[5.0]]), np.array([[-1]]))
    >>> (amounts.tolist(), sizes.index(1))
    ([-15.0], 3)
    """
    operations = OPERATIONS.values()
    every = np.stack([operation.amount(levels / HIGHEST) for operation in operations])
    amounts = np.take_along_axis(every, number[None], axis=0)[0]
    signed = np.array([operation.signed for operation in operations])[number]
    return sort_rows(number, taken, amounts * np.where(signed, sign, 1), len(OPERATIONS))
