"""Augmentation of whole sets of uint8 pictures at once, on any device.

Each operation is a pure function of pictures and of one parameter per picture; the classes below
draw the parameters. They are applied once per epoch to all training pictures, outside the step.
Pixel for pixel the results are those of torchvision's tensor functions for the same parameters.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from balpoe.data.autoaugment import BLOCK, OPERATIONS, POLICIES, group_rows, rotate

__all__ = [
    "AUGMENTATIONS",
    "AutoAugment",
    "Crop",
    "Cutout",
    "Flip",
    "Operation",
    "Rotate",
    "crop",
    "cutout",
    "flip",
    "rotate",
]


class Operation(Protocol):
    """One step of an augmentation: draws a parameter per picture and applies it."""

    def __call__(self, images: Tensor, chance: np.random.Generator) -> Tensor:
        """Return the pictures (samples, channels, height, width), each changed by its own draw."""
        ...


@dataclass(frozen=True)
class Crop:
    """A window of the picture's size out of the picture with a black frame of `padding` pixels."""

    padding: int = 4

    def __call__(self, images: Tensor, chance: np.random.Generator) -> Tensor:
        """Return the pictures, each changed by its own draw."""
        corner = chance.integers(0, 2 * self.padding + 1, size=(2, len(images)))
        top, left = _send(corner, images)
        return crop(images, top, left, self.padding)


@dataclass(frozen=True)
class Flip:
    """Left and right swapped, in half of the pictures."""

    def __call__(self, images: Tensor, chance: np.random.Generator) -> Tensor:
        """Return the pictures, each changed by its own draw."""
        return flip(images, _send(chance.random(len(images)) < 0.5, images))


@dataclass(frozen=True)
class Rotate:
    """A rotation by up to `degrees` to either side; black corners, nearest pixels."""

    degrees: float = 15.0

    def __call__(self, images: Tensor, chance: np.random.Generator) -> Tensor:
        """Return the pictures, each changed by its own draw."""
        angles = chance.uniform(-self.degrees, self.degrees, size=len(images))
        return rotate(images, _send(angles, images))


@dataclass(frozen=True)
class AutoAugment:
    """The 25 published sub-policies for CIFAR-10 (Cubuk et al. 2019), each of two operations; grey corners."""

    fill: int = 128

    def __call__(self, images: Tensor, chance: np.random.Generator) -> Tensor:
        """Return the pictures, each changed by its own draw."""
        policy = chance.integers(0, len(POLICIES), size=len(images))
        applied = chance.random((2, len(images)))
        sign = np.where(chance.random((2, len(images))) < 0.5, -1, 1)
        rows, magnitudes, sizes = group_rows(policy, applied, sign)
        operations = [*OPERATIONS.values()] * 2  # the first step of every picture before any second one
        groups = zip(operations, _send(rows, images).split(sizes), _send(magnitudes, images).split(sizes), strict=True)
        images = images.clone()
        for operation, chosen, amounts in groups:
            for part, amount in zip(chosen.split(BLOCK), amounts.split(BLOCK), strict=True):
                images[part] = operation(images[part], amount, self.fill)
        return images


@dataclass(frozen=True)
class Cutout:
    """A black square around a random pixel, clipped at the borders."""

    size: int = 16

    def __call__(self, images: Tensor, chance: np.random.Generator) -> Tensor:
        """Return the pictures, each changed by its own draw."""
        centres = chance.integers(0, np.array(images.shape[-2:])[:, None], size=(2, len(images)))
        rows, columns = _send(centres, images)
        return cutout(images, rows, columns, self.size)


AUGMENTATIONS: dict[str, tuple[Operation, ...]] = {
    "none": (),
    "crop-flip": (Crop(), Flip()),
    "standard": (Crop(), Flip(), Rotate()),
    "autoaugment": (Crop(), Flip(), AutoAugment()),
    "autoaugment-cutout": (Crop(), Flip(), AutoAugment(), Cutout()),
}
"""By name, as recipes say them; "standard" is the reference's, with its rotation by 15 degrees."""


def crop(images: Tensor, top: Tensor, left: Tensor, padding: int) -> Tensor:
    """Return the window at (top, left) of each picture padded with zeros, in the picture's size."""
    height, width = images.shape[-2:]
    padded = F.pad(images, (padding, padding, padding, padding))
    rows = top[:, None, None] + torch.arange(height, device=images.device)[:, None]
    columns = left[:, None, None] + torch.arange(width, device=images.device)
    picture = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[picture, :, rows, columns].permute(0, 3, 1, 2).contiguous()


def flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Return the pictures mirrored where `flipped` says so."""
    return torch.where(flipped[:, None, None, None], images.flip(-1), images)


def cutout(images: Tensor, rows: Tensor, columns: Tensor, size: int) -> Tensor:
    """Return the pictures with a black square of `size` pixels a side around (row, column)."""
    height, width = images.shape[-2:]
    below = torch.arange(height, device=images.device) - (rows[:, None] - size // 2)
    right = torch.arange(width, device=images.device) - (columns[:, None] - size // 2)
    tall, wide = (below >= 0) & (below < size), (right >= 0) & (right < size)
    return images.masked_fill(tall[:, None, :, None] & wide[:, None, None, :], 0)


def _send(draws: np.ndarray, images: Tensor) -> Tensor:
    """Return the draws on the pictures' device; on a GPU without waiting for it."""
    drawn = torch.from_numpy(draws)
    return drawn.pin_memory().to(images.device, non_blocking=True) if images.is_cuda else drawn.to(images.device)
