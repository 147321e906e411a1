"""Images turned, sheared and moved, each by an amount of its own.

Pure functions of uint8 images (samples, channels, height, width) on any device; nothing is ever read from the device.
On a CPU they are, pixel for pixel, torchvision's tensor functions of one image.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Fill", "rotate", "shear", "stretch", "translate"]

Fill = int | tuple[int, ...]
"""The colour of what comes from outside the image: one grey, or one value per channel."""


def rotate(images: Tensor, angles: Tensor, fill: Fill = 0, mode: str = "nearest") -> Tensor:
    """Return each image turned counter-clockwise by its angle in degrees about its centre.

    Args:
        images: uint8 (samples, channels, height, width).
        angles: Degrees (samples,).
        fill: Colour of the corners.
        mode: "nearest" pixel, or "bilinear" between four pixels.

    >>> rotate(torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8), torch.tensor([90.0])).tolist()
    [[[[2, 4], [1, 3]]]]
    """
    # In float64, as torchvision computes it: a pixel half-way between two is then rounded to the same one.
    radians = (angles if angles.is_mps else angles.double()) * (math.pi / 180)  # Apple's GPUs have no float64
    cosine, sine = radians.cos(), radians.sin()
    zero = torch.zeros_like(cosine)
    sources = torch.stack([cosine, sine, -sine, cosine, zero, zero], dim=1).view(-1, 3, 2)
    return _resample(images, sources, fill, mode)


def shear(images: Tensor, slopes: Tensor, axis: int, fill: Fill = 0, mode: str = "nearest") -> Tensor:
    """Return images whose pixels moved along an axis (0: x, 1: y) in proportion to the other coordinate.

    Args:
        images: uint8 (samples, channels, height, width).
        slopes: Pixels per pixel (samples,); the first line stays where it is.
        axis: Direction, 0 for x and 1 for y.
        fill: Colour of what is uncovered.
        mode: "nearest" or "bilinear".

    >>> shear(torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8), torch.tensor([0.5]), axis=0).tolist()
    [[[[1, 2], [4, 0]]]]
    """
    sources = _identity(slopes)
    sources[:, 1 - axis, axis] = slopes
    sources[:, 2, axis] = slopes * (images.shape[axis - 2] / 2)
    return _resample(images, sources, fill, mode)


def translate(images: Tensor, pixels: Tensor, axis: int, fill: Fill = 0, mode: str = "nearest") -> Tensor:
    """Return images moved along an axis (0: to the right, 1: down).

    Args:
        images: uint8 (samples, channels, height, width).
        pixels: Distances (samples,).
        axis: Direction, 0 for x and 1 for y.
        fill: Colour of what is uncovered.
        mode: "nearest" or "bilinear".

    >>> translate(torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8), torch.tensor([1.0]), axis=0).tolist()
    [[[[0, 1], [0, 3]]]]
    """
    sources = _identity(pixels)
    sources[:, 2, axis] = -pixels
    return _resample(images, sources, fill, mode)


def stretch(images: Tensor, parts: Tensor) -> Tensor:
    """Return a part of each image, stretched to the size of the image, bilinear.

    Args:
        images: uint8 (samples, channels, height, width).
        parts: Centre (x, y), width and height of each part, (samples, 4), all as shares of the image's sides.

    >>> image = torch.tensor([[[[0, 0, 4, 4]] * 4]], dtype=torch.uint8)
    >>> stretch(image, torch.tensor([[0.75, 0.5, 0.5, 1.0]]))[0, 0, 0].tolist()  # the right half
    [3, 4, 4, 4]
    """
    height, width = images.shape[-2:]
    sources = torch.zeros(len(parts), 3, 2, device=parts.device)
    sources[:, 0, 0], sources[:, 1, 1] = parts[:, 2], parts[:, 3]
    sources[:, 2, 0], sources[:, 2, 1] = (parts[:, 0] - 0.5) * width, (parts[:, 1] - 0.5) * height
    return _resample(images, sources, 0, "bilinear", beyond="border")


def _identity(amounts: Tensor) -> Tensor:
    return torch.eye(3, 2, device=amounts.device).repeat(len(amounts), 1, 1)


def _resample(images: Tensor, sources: Tensor, fill: Fill, mode: str, beyond: str = "zeros") -> Tensor:
    """Return images whose pixel p is taken from (x, y, 1) @ sources, both measured from the centre.

    Args:
        images: uint8 (samples, channels, height, width).
        sources: One matrix per image (samples, 3, 2).
        fill: Colour of pixels that come from outside.
        mode: "nearest" or "bilinear".
        beyond: "zeros" for the fill outside, "border" for the nearest pixel.
    """
    height, width = images.shape[-2:]
    y, x = torch.meshgrid(
        torch.arange(height, device=images.device) - (height - 1) / 2,
        torch.arange(width, device=images.device) - (width - 1) / 2,
        indexing="ij",
    )
    pixels = torch.stack([x, y, torch.ones_like(x)], dim=-1)
    # Half of width and height, made there: a number put into a tensor on a GPU makes the CPU wait for it.
    sides = width / 2 + torch.arange(2, device=images.device) * ((height - width) / 2)
    # With the borders of the image at -1 and 1, and by the very matrix product that torchvision uses, again for
    # pixels half-way between two.
    grid = (pixels.view(1, -1, 3) @ (sources.float() / sides)).view(-1, height, width, 2)
    # Outside is zero to grid_sample: with the fill subtracted, and added again, it is the fill.
    colour = _colour(fill, images)
    moved = F.grid_sample(images.float() - colour, grid, mode=mode, padding_mode=beyond, align_corners=False)
    return (moved + colour).round().to(images.dtype)


def _colour(fill: Fill, images: Tensor) -> Tensor:
    """Return the fill as (channels, 1, 1) or one number, made on the device of the images."""
    values = (fill,) if isinstance(fill, int) else fill[: images.shape[1]]
    return torch.cat([torch.full((1, 1, 1), float(value), device=images.device) for value in values])
