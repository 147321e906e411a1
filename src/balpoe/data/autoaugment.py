"""The fourteen operations of AutoAugment (Cubuk et al. 2019), each with one magnitude per picture.

Pure functions of uint8 pictures (samples, channels, height, width), one or three channels, on any device. On a CPU
they are, pixel for pixel, torchvision's tensor functions of one picture; nothing is ever read from the device.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import AutoAugment as PolicyTable
from torchvision.transforms import AutoAugmentPolicy

__all__ = ["BLOCK", "MAGNITUDES", "OPERATIONS", "POLICIES", "SIGNED", "group_rows", "rotate"]

BLOCK = 4096  # pictures changed at once: bounds the memory of float copies, sampling grids and histograms


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
"""Of a shear pixels per pixel, of a translation sides, of a rotation degrees, of a posterisation bits that stay."""

SIGNED = frozenset(name for name in MAGNITUDES if name not in ("Posterize", "Solarize"))


def rotate(images: Tensor, angles: Tensor, fill: int = 0) -> Tensor:
    """Return each picture turned counter-clockwise by its angle in degrees about its centre."""
    # In float64, as torchvision computes it: a pixel half-way between two is then rounded to the same one.
    radians = (angles if angles.is_mps else angles.double()) * (math.pi / 180)  # Apple's GPUs have no float64
    cosine, sine = radians.cos(), radians.sin()
    zero = torch.zeros_like(cosine)
    return _resample(images, torch.stack([cosine, sine, -sine, cosine, zero, zero], dim=1).view(-1, 3, 2), fill)


def _shear(images: Tensor, slopes: Tensor, fill: int, axis: int) -> Tensor:
    """Move pixels along an axis (0: x, 1: y) in proportion to the other coordinate; the first line stays."""
    sources = _identity(slopes)
    sources[:, 1 - axis, axis] = slopes
    sources[:, 2, axis] = slopes * (images.shape[axis - 2] / 2)
    return _resample(images, sources, fill)


def _translate(images: Tensor, parts: Tensor, fill: int, axis: int) -> Tensor:
    """Move pixels along an axis (0: x, 1: y) by whole pixels, a part of the side."""
    sources = _identity(parts)
    sources[:, 2, axis] = -(parts * images.shape[-1 - axis]).trunc()
    return _resample(images, sources, fill)


def _identity(magnitudes: Tensor) -> Tensor:
    return torch.eye(3, 2, device=magnitudes.device).repeat(len(magnitudes), 1, 1)


def _resample(images: Tensor, sources: Tensor, fill: int) -> Tensor:
    """Return pictures whose pixel p is the one nearest to (x, y, 1) @ sources, both measured from the centre.

    Args:
        images: (samples, channels, height, width).
        sources: One matrix per picture (samples, 3, 2).
        fill: The grey of pixels that come from outside.
    """
    blocks = zip(images.split(BLOCK), sources.float().split(BLOCK), strict=True)
    return torch.cat([_resample_block(*block, fill) for block in blocks]) if len(images) else images


def _resample_block(images: Tensor, sources: Tensor, fill: int) -> Tensor:
    height, width = images.shape[-2:]
    y, x = torch.meshgrid(
        torch.arange(height, device=images.device) - (height - 1) / 2,
        torch.arange(width, device=images.device) - (width - 1) / 2,
        indexing="ij",
    )
    pixels = torch.stack([x, y, torch.ones_like(x)], dim=-1)
    # Half of width and height, made there: a number put into a tensor on a GPU makes the CPU wait for it.
    sides = width / 2 + torch.arange(2, device=images.device) * ((height - width) / 2)
    # With the borders of the picture at -1 and 1, and by the very matrix product that torchvision uses, again for
    # pixels half-way between two.
    grid = (pixels.view(1, -1, 3) @ (sources / sides)).view(-1, height, width, 2)
    # Outside is zero to grid_sample: with the fill subtracted, and added again, it is the fill.
    moved = F.grid_sample(images.float() - fill, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return (moved + fill).to(images.dtype)


def _blend(images: Tensor, others: Tensor, magnitudes: Tensor) -> Tensor:
    """Move each picture away from the other one by its magnitude, or towards it by a negative one."""
    amounts = magnitudes[:, None, None, None]
    return ((1 + amounts) * images - amounts * others).clamp(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).to(torch.uint8)[:, None]


def _brightness(images: Tensor, magnitudes: Tensor) -> Tensor:
    return _blend(images, images.new_zeros(()), magnitudes)


def _color(images: Tensor, magnitudes: Tensor) -> Tensor:
    # Without colour nothing is to change; blended with itself, a picture would lose a grey level here and there.
    return images if images.shape[1] == 1 else _blend(images, _grey(images), magnitudes)


def _contrast(images: Tensor, magnitudes: Tensor) -> Tensor:
    # A sum of integers, exact in float32 in whatever order (up to 256 x 256 pixels).
    return _blend(images, _grey(images).float().mean(dim=(1, 2, 3), keepdim=True), magnitudes)


def _sharpness(images: Tensor, magnitudes: Tensor) -> Tensor:
    if min(images.shape[-2:]) < 3:
        return images
    wide = images.to(torch.int16)
    lines = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    sums = lines[..., :-2] + lines[..., 1:-1] + lines[..., 2:] + 4 * wide[..., 1:-1, 1:-1]
    blurred = images.clone()  # the border has no eight neighbours and stays
    # The rounded mean of the neighbours and five times the pixel: of integers over 13, so that no tie can arise and
    # a convolution in float32, in whatever order, rounds to the same.
    blurred[..., 1:-1, 1:-1] = (sums + 6) // 13
    return _blend(images, blurred, magnitudes)


def _posterize(images: Tensor, bits: Tensor) -> Tensor:
    cleared = (8 - bits).to(torch.uint8)[:, None, None, None]
    return (images >> cleared) << cleared


def _solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    return torch.where(images >= thresholds[:, None, None, None], 255 - images, images)


def _autocontrast(images: Tensor) -> Tensor:
    lowest = images.amin(dim=(2, 3), keepdim=True).float()
    spread = images.amax(dim=(2, 3), keepdim=True).float() - lowest
    stretched = ((images - lowest) * (255 / spread.clamp(min=1))).clamp(0, 255).to(torch.uint8)
    return torch.where(spread == 0, images, stretched)


def _equalize(images: Tensor) -> Tensor:
    pixels = images.flatten(2).long()
    one = torch.ones((), dtype=torch.int32, device=images.device)
    zeros = torch.zeros(*images.shape[:2], 256, dtype=torch.int32, device=images.device)
    counts = zeros.scatter_add_(2, pixels, one.expand_as(pixels))
    below = counts.cumsum(2, dtype=torch.int32) - counts
    # All but the brightest value of a channel share 255 steps; where that leaves less than a pixel per step, it stays.
    step = below.gather(2, pixels.amax(dim=2, keepdim=True)) // 255
    table = ((below + step // 2) // step.clamp(min=1)).clamp(0, 255)
    table = torch.where(step == 0, torch.arange(256, dtype=torch.int32, device=images.device), table)
    return table.to(torch.uint8).gather(2, pixels).view_as(images)


OPERATIONS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "ShearX": lambda images, m, fill: _shear(images, m, fill, axis=0),
    "ShearY": lambda images, m, fill: _shear(images, m, fill, axis=1),
    "TranslateX": lambda images, m, fill: _translate(images, m, fill, axis=0),
    "TranslateY": lambda images, m, fill: _translate(images, m, fill, axis=1),
    "Rotate": rotate,
    "Brightness": lambda images, m, fill: _brightness(images, m),
    "Color": lambda images, m, fill: _color(images, m),
    "Contrast": lambda images, m, fill: _contrast(images, m),
    "Sharpness": lambda images, m, fill: _sharpness(images, m),
    "Posterize": lambda images, m, fill: _posterize(images, m),
    "Solarize": lambda images, m, fill: _solarize(images, m),
    "AutoContrast": lambda images, m, fill: _autocontrast(images),
    "Equalize": lambda images, m, fill: _equalize(images),
    "Invert": lambda images, m, fill: 255 - images,
}
"""From pictures, one signed float32 magnitude each and the grey of uncovered corners to changed pictures."""

POLICIES = PolicyTable(AutoAugmentPolicy.CIFAR10).policies
"""The 25 published sub-policies for CIFAR-10, each of two steps: operation, probability, level."""


def _step(name: str, probability: float, level: int | None) -> tuple[float, ...]:
    """Return one step as numbers: which operation, how often, how far, and whether in both directions."""
    magnitude = 0.0 if level is None else MAGNITUDES[name][level]
    return list(OPERATIONS).index(name), probability, magnitude, name in SIGNED


def group_rows(policy: np.ndarray, applied: np.ndarray, sign: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return which pictures each operation changes, and how far, ordered by step and then as `OPERATIONS`.

    Args:
        policy: The number of each picture's sub-policy (samples,).
        applied: A draw from 0 to 1 for each step and picture (2, samples); below its probability a step is taken.
        sign: The direction of each step, 1 or -1 (2, samples).

    Returns:
        Rows, their magnitudes, and how many of them each of the 28 operations of both steps has.
    """
    steps = np.array([[_step(*step) for step in pair] for pair in POLICIES])
    number, probability, magnitude, signed = steps.transpose(2, 1, 0)[..., policy]  # each (2, samples)
    taken = applied < probability
    last = 2 * len(OPERATIONS)  # the group of what stays as it is
    group = np.where(taken, number + len(OPERATIONS) * np.arange(2)[:, None], last).astype(np.int64)
    order = np.argsort(group, axis=None, kind="stable")[: taken.sum()]
    rows = np.broadcast_to(np.arange(len(policy)), group.shape)
    amounts = magnitude * np.where(signed, sign, 1)
    sizes = np.bincount(group[taken], minlength=last)
    return rows.ravel()[order], amounts.ravel()[order].astype(np.float32), sizes.tolist()
