"""Augmentation of whole sets of uint8 pictures at once, on any device.

Each operation is a pure function of pictures and of one parameter per picture; the classes below
draw the parameters. They are applied once per epoch to all training pictures, outside the step.
Pixel for pixel the results are those of torchvision's tensor functions for the same parameters.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import AutoAugment as PolicyTable
from torchvision.transforms import AutoAugmentPolicy
from torchvision.transforms import functional as V

__all__ = ["AUGMENTATIONS", "AutoAugment", "Crop", "Flip", "Operation", "Rotate", "crop", "flip", "rotate"]

BLOCK = 4096  # pictures rotated at once: bounds the memory of the float copy and the sampling grid


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
        top, left = torch.from_numpy(corner).to(images.device)
        return crop(images, top, left, self.padding)


@dataclass(frozen=True)
class Flip:
    """Left and right swapped, in half of the pictures."""

    def __call__(self, images: Tensor, chance: np.random.Generator) -> Tensor:
        """Return the pictures, each changed by its own draw."""
        return flip(images, torch.from_numpy(chance.random(len(images)) < 0.5).to(images.device))


@dataclass(frozen=True)
class Rotate:
    """A rotation by up to `degrees` to either side; black corners, nearest pixels."""

    degrees: float = 15.0

    def __call__(self, images: Tensor, chance: np.random.Generator) -> Tensor:
        """Return the pictures, each changed by its own draw."""
        angles = chance.uniform(-self.degrees, self.degrees, size=len(images))
        return rotate(images, torch.from_numpy(angles).to(images.device))


@dataclass(frozen=True)
class AutoAugment:
    """The 25 published sub-policies for CIFAR-10 (Cubuk et al. 2019), each of two operations; grey corners."""

    fill: int = 128

    def __call__(self, images: Tensor, chance: np.random.Generator) -> Tensor:
        """Return the pictures, each changed by its own draw."""
        policies = PolicyTable(AutoAugmentPolicy.CIFAR10).policies
        policy = chance.integers(0, len(policies), size=len(images))
        applied = chance.random((2, len(images)))
        sign = np.where(chance.random((2, len(images))) < 0.5, -1, 1)
        images = images.clone()
        for position in range(2):
            for number, sub_policy in enumerate(policies):
                name, probability, level = sub_policy[position]
                chosen = (policy == number) & (applied[position] < probability)
                for side in (1, -1):
                    rows = torch.from_numpy((chosen & (sign[position] == side)).nonzero()[0]).to(images.device)
                    if len(rows):
                        magnitude = (
                            MAGNITUDES[name][level] * (side if name in SIGNED else 1) if name in MAGNITUDES else 0.0
                        )
                        images[rows] = OPERATIONS[name](images[rows], magnitude, self.fill)
        return images


AUGMENTATIONS: dict[str, tuple[Operation, ...]] = {
    "none": (),
    "crop-flip": (Crop(), Flip()),
    "standard": (Crop(), Flip(), Rotate()),
    "autoaugment": (Crop(), Flip(), AutoAugment()),
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


def rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Return each picture turned counter-clockwise by its angle in degrees about its centre."""
    blocks = zip(images.split(BLOCK), angles.split(BLOCK), strict=True)
    return torch.cat([_rotate_block(*block) for block in blocks]) if len(images) else images


def _rotate_block(images: Tensor, angles: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    radians = angles.double() * (math.pi / 180)
    cosine, sine = radians.cos(), radians.sin()
    zero = torch.zeros_like(cosine)
    matrix = torch.stack([cosine, sine, -sine, cosine, zero, zero], dim=1).view(-1, 3, 2).float()
    # Where each pixel comes from, with the borders of the picture at -1 and 1: the very matrix product that
    # torchvision uses, so that a pixel half-way between two is rounded to the same one.
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    pixels = torch.stack([x - (width - 1) / 2, y - (height - 1) / 2, torch.ones(height, width)], dim=-1)
    sides = torch.tensor([width / 2, height / 2], device=images.device)
    grid = pixels.view(1, -1, 3).to(images.device) @ (matrix / sides)
    grid = grid.view(-1, height, width, 2)
    turned = F.grid_sample(images.float(), grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return turned.to(images.dtype)


# AutoAugment: ten levels of each operation. As float32, as torchvision has them: a grey value half-way
# between two is then rounded to the same one.
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
SIGNED = frozenset(name for name in MAGNITUDES if name not in ("Posterize", "Solarize"))


def _shear(images: Tensor, along_x: float, along_y: float, fill: int) -> Tensor:
    degrees = [math.degrees(math.atan(value)) for value in (along_x, along_y)]
    grey = [float(fill)] * images.shape[1]
    sheared: Tensor = V.affine(images, angle=0.0, translate=[0, 0], scale=1.0, shear=degrees, fill=grey, center=[0, 0])
    return sheared


def _translate(images: Tensor, along_x: float, along_y: float, fill: int) -> Tensor:
    pixels = [int(along_x * images.shape[3]), int(along_y * images.shape[2])]
    grey = [float(fill)] * images.shape[1]
    moved: Tensor = V.affine(images, angle=0.0, translate=pixels, scale=1.0, shear=[0.0, 0.0], fill=grey)
    return moved


OPERATIONS: dict[str, Callable[[Tensor, float, int], Tensor]] = {
    "ShearX": lambda images, m, fill: _shear(images, m, 0.0, fill),
    "ShearY": lambda images, m, fill: _shear(images, 0.0, m, fill),
    "TranslateX": lambda images, m, fill: _translate(images, m, 0.0, fill),
    "TranslateY": lambda images, m, fill: _translate(images, 0.0, m, fill),
    "Rotate": lambda images, m, fill: V.rotate(images, m, fill=[float(fill)] * images.shape[1]),
    "Brightness": lambda images, m, fill: V.adjust_brightness(images, 1 + m),
    "Color": lambda images, m, fill: V.adjust_saturation(images, 1 + m),
    "Contrast": lambda images, m, fill: V.adjust_contrast(images, 1 + m),
    "Sharpness": lambda images, m, fill: V.adjust_sharpness(images, 1 + m),
    "Posterize": lambda images, m, fill: V.posterize(images, int(m)),
    "Solarize": lambda images, m, fill: V.solarize(images, m),
    "AutoContrast": lambda images, m, fill: V.autocontrast(images),
    "Equalize": lambda images, m, fill: V.equalize(images),
    "Invert": lambda images, m, fill: V.invert(images),
}
"""From pictures, a signed magnitude and the grey of uncovered corners to changed pictures."""
