"""The grey values of images changed in place: brightness, contrast, saturation and the like, each by its own amount.

Pure functions of uint8 images (samples, channels, height, width), one or three channels, on any device; nothing is
ever read from the device. On a CPU they are, pixel for pixel, torchvision's tensor functions of one image.
"""

import torch
from torch import Tensor

__all__ = [
    "autocontrast",
    "brightness",
    "contrast",
    "equalize",
    "posterize",
    "saturation",
    "sharpness",
    "solarize",
    "solarize_add",
]


def brightness(images: Tensor, amounts: Tensor) -> Tensor:
    """Return the images times 1 + amount, one amount for each.

    >>> brightness(torch.full((2, 1, 1, 1), 100, dtype=torch.uint8), torch.tensor([0.5, -0.5])).flatten().tolist()
    [150, 50]
    """
    return _blend(images, images.new_zeros(()), amounts)


def saturation(images: Tensor, amounts: Tensor) -> Tensor:
    """Return the images with 1 + amount times their difference from grey.

    >>> red = torch.tensor([200, 100, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    >>> saturation(red, torch.tensor([-1.0])).flatten().tolist()
    [118, 118, 118]
    """
    # Without colour nothing is to change; blended with itself, an image would lose a grey level here and there.
    return images if images.shape[1] == 1 else _blend(images, _grey(images), amounts)


def contrast(images: Tensor, amounts: Tensor) -> Tensor:
    """Return the images with 1 + amount times their difference from their mean grey.

    >>> contrast(torch.tensor([[[[100, 200]]]], dtype=torch.uint8), torch.tensor([0.5])).flatten().tolist()
    [75, 225]
    """
    # A sum of integers, exact in float32 in whatever order (up to 256 x 256 pixels).
    return _blend(images, _grey(images).float().mean(dim=(1, 2, 3), keepdim=True), amounts)


def sharpness(images: Tensor, amounts: Tensor) -> Tensor:
    """Return the images with 1 + amount times their difference from a blurred copy; the border stays."""
    if min(images.shape[-2:]) < 3:
        return images
    wide = images.to(torch.int16)
    lines = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    sums = lines[..., :-2] + lines[..., 1:-1] + lines[..., 2:] + 4 * wide[..., 1:-1, 1:-1]
    blurred = images.clone()  # the border has no eight neighbours and stays
    # The rounded mean of the neighbours and five times the pixel: of integers over 13, so that no tie can arise and
    # a convolution in float32, in whatever order, rounds to the same.
    blurred[..., 1:-1, 1:-1] = (sums + 6) // 13
    return _blend(images, blurred, amounts)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Return the images with so many of the highest bits of each value.

    >>> posterize(torch.full((2, 1, 1, 1), 255, dtype=torch.uint8), torch.tensor([4, 0])).flatten().tolist()
    [240, 0]
    """
    cleared = (8 - bits).to(torch.uint8)[:, None, None, None]
    return (images >> cleared) << cleared


def solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    """Return the images with values from the threshold on inverted.

    >>> solarize(torch.tensor([[[[99, 100]]]], dtype=torch.uint8), torch.tensor([100])).flatten().tolist()
    [99, 155]
    """
    return torch.where(images >= thresholds[:, None, None, None], 255 - images, images)


def solarize_add(images: Tensor, amounts: Tensor) -> Tensor:
    """Return the images with an amount, of at most 128, added to values below 128.

    >>> solarize_add(torch.tensor([[[[127, 128]]]], dtype=torch.uint8), torch.tensor([100])).flatten().tolist()
    [227, 128]
    """
    return torch.where(images < 128, images + amounts.to(torch.uint8)[:, None, None, None], images)


def autocontrast(images: Tensor) -> Tensor:
    """Return the images with each channel stretched to 0 and 255.

    >>> autocontrast(torch.tensor([[[[50, 75, 150]]]], dtype=torch.uint8)).flatten().tolist()
    [0, 63, 255]
    """
    lowest = images.amin(dim=(2, 3), keepdim=True).float()
    spread = images.amax(dim=(2, 3), keepdim=True).float() - lowest
    stretched = ((images - lowest) * (255 / spread.clamp(min=1))).clamp(0, 255).to(torch.uint8)
    return torch.where(spread == 0, images, stretched)


def equalize(images: Tensor) -> Tensor:
    """Return the images with the values of each channel spread as evenly as their order allows."""
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


def _blend(images: Tensor, others: Tensor, amounts: Tensor) -> Tensor:
    """Move each image away from the other one by its amount, or towards it by a negative one."""
    amounts = amounts[:, None, None, None]
    return ((1 + amounts) * images - amounts * others).clamp(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).to(torch.uint8)[:, None]
