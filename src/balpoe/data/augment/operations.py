"""Augmentation of whole sets or batches of uint8 images at once, on any device.

Each operation is a pure function of images and of one parameter per image; the classes below draw the parameters
and apply them: to a data set on the device once per epoch, to streamed images batch by batch, always outside the
step. Pixel for pixel the results are those of torchvision's tensor functions for the same parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from balpoe.data.augment import autoaugment, randaugment
from balpoe.data.augment.colour import brightness, contrast, saturation
from balpoe.data.augment.geometry import rotate, stretch
from balpoe.data.transfer import to_device

__all__ = [
    "AUGMENTATIONS",
    "CROPS_WHILE_DECODING",
    "AlternatingFlip",
    "AutoAugment",
    "ColourJitter",
    "Crop",
    "Cutout",
    "Flip",
    "Operation",
    "RandAugment",
    "Rotate",
    "SmallAtFirst",
    "StretchedCrop",
    "crop",
    "cutout",
    "flip",
    "rotate",
]

# Images of 32 x 32 pixels, or as many pixels of larger ones, that are changed at once: bounds the memory of float
# copies, sampling grids and histograms.
AUGMENTED_AT_ONCE = 4096


class Operation(ABC):
    """One step of an augmentation: draws parameters for each image, and applies them.

    Whoever holds some of the images draws for all and applies a part of the draws, `draw[..., rows]`.

    >>> images, rng = torch.arange(8, dtype=torch.uint8).view(4, 1, 1, 2), np.random.default_rng(1)
    >>> (flipped,) = Flip().draw(4, (1, 2), rng)
    >>> flipped.tolist(), Flip().apply(images[1::2], flipped[1::2]).flatten(1).tolist()
    ([False, False, True, False], [[2, 3], [6, 7]])
    """

    @abstractmethod
    def draw(self, count: int, size: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return the parameters of so many images, arrays whose last axis is the image.

        Args:
            count: Number of images.
            size: Their height and width.
            rng: Generator of the draws.
        """

    @abstractmethod
    def apply(self, images: Tensor, *draws: np.ndarray) -> Tensor:
        """Return the images (samples, channels, height, width), each changed by its own draw."""

    def in_epoch(self, epoch: int) -> "tuple[Operation, int]":
        """Return what is done in an epoch, and the number of the epoch whose draws it is done with: its own.

        Args:
            epoch: Number of the epoch, from 0.
        """
        return self, epoch

    def __call__(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the images, each changed by its own draw from `rng`."""
        return self.apply(images, *self.draw(len(images), images.shape[-2:], rng))


@dataclass(frozen=True)
class Crop(Operation):
    """A window of the image's size out of the image with a black frame of `padding` pixels."""

    padding: int = 4

    def draw(self, count: int, size: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return the window's row and column (2, samples)."""
        return (rng.integers(0, 2 * self.padding + 1, size=(2, count)),)

    def apply(self, images: Tensor, *draws: np.ndarray) -> Tensor:
        """Return the windows."""
        top, left = _send(draws[0], images)
        return crop(images, top, left, self.padding)


@dataclass(frozen=True)
class StretchedCrop(Operation):
    """A part of random area and shape, stretched to the size of the image: a resized crop of images in memory.

    Args:
        scale: Least and greatest share of the image's area.
        ratio: Least and greatest width over height.
    """

    scale: tuple[float, float] = (0.3, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def draw(self, count: int, size: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return centre (x, y), width and height (4, samples), as shares of the sides; none beyond the image."""
        least, greatest = np.log(self.ratio)
        area, shape = rng.uniform(*self.scale, size=count), np.exp(rng.uniform(least, greatest, size=count))
        sides = np.minimum(np.sqrt(np.stack([area * shape, area / shape])), 1)
        centres = sides / 2 + rng.random((2, count)) * (1 - sides)
        return (np.concatenate([centres, sides]).astype(np.float32),)

    def apply(self, images: Tensor, *draws: np.ndarray) -> Tensor:
        """Return the parts."""
        block = _block(images)
        parts = zip(images.split(block), _send(draws[0].T.copy(), images).split(block), strict=True)
        return torch.cat([stretch(*part) for part in parts]) if len(images) else images


@dataclass(frozen=True)
class Flip(Operation):
    """Left and right swapped, in half of the images."""

    def draw(self, count: int, size: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return which images are swapped (samples,)."""
        return (rng.random(count) < 0.5,)

    def apply(self, images: Tensor, *draws: np.ndarray) -> Tensor:
        """Return the images, some of them mirrored."""
        return flip(images, _send(draws[0], images))


@dataclass(frozen=True)
class AlternatingFlip(Flip):
    """Left and right swapped in every second epoch, of half of the images in the even ones (Jordan 2024).

    Of two epochs each image is seen once in either orientation; by chance half of them would be seen twice in one.

    Args:
        mirrored: Whether the images that were drawn are those that stay as they are.
    """

    mirrored: bool = False

    def in_epoch(self, epoch: int) -> tuple[Operation, int]:
        """Return the flip of the others in odd epochs, with the draws of the first epoch."""
        return AlternatingFlip(mirrored=epoch % 2 == 1), 0

    def draw(self, count: int, size: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return which images are swapped (samples,)."""
        (flipped,) = super().draw(count, size, rng)
        return (flipped ^ self.mirrored,)


@dataclass(frozen=True)
class SmallAtFirst(Operation):
    """Images of fewer pixels in the first epochs: their steps are cheaper.

    Args:
        pixels: Pixels a side, in these.
        epochs: How many there are.
    """

    pixels: int
    epochs: int

    def in_epoch(self, epoch: int) -> tuple[Operation, int]:
        """Return what shrinks images, in the first epochs, and then what leaves them as they are."""
        return (self if epoch < self.epochs else SmallAtFirst(pixels=0, epochs=0)), epoch

    def draw(self, count: int, size: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return nothing: all images are treated alike."""
        return ()

    def apply(self, images: Tensor, *draws: np.ndarray) -> Tensor:
        """Return the images in that size."""
        if not self.pixels or not len(images):
            return images
        side, parts = (self.pixels, self.pixels), images.split(_block(images))
        small = [F.interpolate(part.float(), side, mode="bilinear", antialias=True) for part in parts]
        return torch.cat(small).round_().to(images.dtype)


@dataclass(frozen=True)
class Rotate(Operation):
    """A rotation by up to `degrees` to either side; black corners, nearest pixels."""

    degrees: float = 15.0

    def draw(self, count: int, size: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return the angles (samples,)."""
        return (rng.uniform(-self.degrees, self.degrees, size=count),)

    def apply(self, images: Tensor, *draws: np.ndarray) -> Tensor:
        """Return the images, turned."""
        block = _block(images)
        parts = zip(images.split(block), _send(draws[0], images).split(block), strict=True)
        return torch.cat([rotate(*part) for part in parts]) if len(images) else images


@dataclass(frozen=True)
class AutoAugment(Operation):
    """The 25 published sub-policies for CIFAR-10 (Cubuk et al. 2019), each of two operations; grey corners."""

    fill: int = 128

    def draw(self, count: int, size: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return the sub-policy (samples,), and for its two steps a number from 0 to 1 and a direction (2, samples)."""
        policy = rng.integers(0, len(autoaugment.policies()), size=count)
        applied = rng.random((2, count))
        return policy, applied, _signs((2, count), rng)

    def apply(self, images: Tensor, *draws: np.ndarray) -> Tensor:
        """Return the images after both steps, the first step of every image before any second one."""
        operations = [*autoaugment.OPERATIONS.values()] * 2
        return _change(images, operations, *autoaugment.group_rows(*draws), self.fill)


@dataclass(frozen=True)
class RandAugment(Operation):
    """A few of fifteen operations, any of them, each applied or not (Cubuk et al. 2020; as in timm).

    Args:
        steps: Largest number of operations on an image.
        level: Mean strength, from 0 to 10.
        deviation: Standard deviation of the strength, before it is clipped to 0 and 10.
        probability: Probability of a step.
        fill: Colour of uncovered corners.
    """

    steps: int = 2
    level: float = 10.0
    deviation: float = 0.5
    probability: float = 0.5
    fill: tuple[int, ...] = (124, 116, 104)

    def draw(self, count: int, size: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return which operation each step is, whether it is taken, its level and its direction (steps, samples)."""
        shape = (self.steps, count)
        number = rng.integers(0, len(randaugment.OPERATIONS), size=shape)
        taken = rng.random(shape) < self.probability
        levels = rng.normal(self.level, self.deviation, shape).clip(0, randaugment.HIGHEST)
        return number, taken, levels, _signs(shape, rng)

    def apply(self, images: Tensor, *draws: np.ndarray) -> Tensor:
        """Return the images after all steps, the first step of every image before any second one."""
        operations = [operation.change for operation in randaugment.OPERATIONS.values()] * self.steps
        return _change(images, operations, *randaugment.rand_rows(*draws), self.fill)


@dataclass(frozen=True)
class ColourJitter(Operation):
    """Brightness, contrast and saturation changed by up to so much, in random order."""

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4

    def draw(self, count: int, size: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return the number of the order (samples,), and three factors (3, samples)."""
        most = np.array([[self.brightness], [self.contrast], [self.saturation]])
        order = rng.integers(0, len(ORDERS), size=count)
        return order, rng.uniform(np.maximum(1 - most, 0), 1 + most, size=(3, count)).astype(np.float32)

    def apply(self, images: Tensor, *draws: np.ndarray) -> Tensor:
        """Return the images with the factors of each applied in its order."""
        order, factors = draws
        rows, sizes = np.argsort(order, kind="stable"), np.bincount(order, minlength=len(ORDERS))
        # Less one while still float32: exact for factors from 0.5 to 2, so that one more gives the factor again.
        amounts = (factors - np.float32(1)).T[rows]
        return _change(images, [partial(_jitter, each) for each in ORDERS], rows, amounts, sizes.tolist())


@dataclass(frozen=True)
class Cutout(Operation):
    """A black square around a random pixel, clipped at the borders."""

    size: int = 16

    def draw(self, count: int, size: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return the centre's row and column (2, samples)."""
        return (rng.integers(0, np.array(size)[:, None], size=(2, count)),)

    def apply(self, images: Tensor, *draws: np.ndarray) -> Tensor:
        """Return the images, each with its square."""
        rows, columns = _send(draws[0], images)
        return cutout(images, rows, columns, self.size)


ORDERS = tuple(permutations(enumerate((brightness, contrast, saturation))))
"""The six orders of colour jitter, each of three changes and where their amounts are."""

AUGMENTATIONS: dict[str, tuple[Operation, ...]] = {
    "none": (),
    "crop-flip": (Crop(), Flip()),
    "standard": (Crop(), Flip(), Rotate()),
    "autoaugment": (Crop(), Flip(), AutoAugment()),
    "autoaugment-cutout": (Crop(), Flip(), AutoAugment(), Cutout()),
    "resized-crop": (Flip(),),
    "imagenet": (Flip(), ColourJitter()),
    "randaugment": (Flip(), ColourJitter(), RandAugment()),
}
"""By name, as recipes say them; "standard" is the reference's for CIFAR, with its rotation by 15 degrees."""

CROPS_WHILE_DECODING = frozenset({"resized-crop", "imagenet", "randaugment"})
"""Augmentations that begin with a random part of the image, which is all that is decoded of it."""


def crop(images: Tensor, top: Tensor, left: Tensor, padding: int) -> Tensor:
    """Return the window at (top, left) of each image padded with zeros, in the image's size."""
    height, width = images.shape[-2:]
    padded = F.pad(images, (padding, padding, padding, padding))
    rows = top[:, None, None] + torch.arange(height, device=images.device)[:, None]
    columns = left[:, None, None] + torch.arange(width, device=images.device)
    image = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[image, :, rows, columns].permute(0, 3, 1, 2).contiguous()


def flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Return the images mirrored where `flipped` says so."""
    return torch.where(flipped[:, None, None, None], images.flip(-1), images)


def cutout(images: Tensor, rows: Tensor, columns: Tensor, size: int) -> Tensor:
    """Return the images with a black square of `size` pixels a side around (row, column)."""
    height, width = images.shape[-2:]
    below = torch.arange(height, device=images.device) - (rows[:, None] - size // 2)
    right = torch.arange(width, device=images.device) - (columns[:, None] - size // 2)
    tall, wide = (below >= 0) & (below < size), (right >= 0) & (right < size)
    return images.masked_fill(tall[:, None, :, None] & wide[:, None, None, :], 0)


def _jitter(order: Sequence[tuple[int, Callable[[Tensor, Tensor], Tensor]]], images: Tensor, amounts: Tensor) -> Tensor:
    for column, change in order:
        images = change(images, amounts[:, column])
    return images


def _change(
    images: Tensor,
    operations: Sequence[Callable[..., Tensor]],
    rows: np.ndarray,
    amounts: np.ndarray,
    sizes: list[int],
    *settings: object,
) -> Tensor:
    """Return the images after each operation in turn has changed its rows, so many of them, by their amounts."""
    images, block = images.clone(), _block(images)
    groups = zip(operations, _send(rows, images).split(sizes), _send(amounts, images).split(sizes), strict=True)
    for operation, chosen, amount in groups:
        for part, each in zip(chosen.split(block), amount.split(block), strict=True):
            if len(part):
                images[part] = operation(images[part], each, *settings)
    return images


def _block(images: Tensor) -> int:
    """How many of these images are changed at once."""
    return max(1, AUGMENTED_AT_ONCE * 32 * 32 // max(1, images.shape[-2:].numel()))


def _signs(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(shape) < 0.5, -1, 1)


def _send(draws: np.ndarray, images: Tensor) -> Tensor:
    """Return the draws on the images' device."""
    return to_device(torch.from_numpy(draws), images.device)
