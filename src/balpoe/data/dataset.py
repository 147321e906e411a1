"""Data sets in memory: uint8 images or float features, labels, names, and how to normalise them."""

import functools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from balpoe.errors import UserError
from balpoe.method.priors import class_counts

__all__ = ["Dataset", "Preprocessing"]

RESIZED_AT_ONCE = 4096  # images: bounds the memory of what is between


@dataclass(frozen=True)
class Preprocessing:
    """What a network's input went through: (x - mean) / std, uint8 divided by 255 first.

    `size` is the shape of one sample: (channels, height, width), or (features,). The short side of an
    image in a file is brought to `resize` pixels by `interpolation` (one of Pillow's, in lower case), and its middle of
    `size` is taken.

    >>> Preprocessing((2,), mean=(1.0, 0.0), std=(2.0, 1.0)).normalise(torch.tensor([[3.0, 4.0]]))
    tensor([[1., 4.]])
    """

    size: tuple[int, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    resize: int = 0
    interpolation: str = "bilinear"

    def normalise(self, batch: Tensor) -> Tensor:
        """Return a batch of raw samples `(batch, *size)` as the floats that networks take, on its device.

        >>> Preprocessing((1, 1, 2), mean=(0.5,), std=(0.5,)).normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
        """
        if tuple(batch.shape[1:]) != self.size:
            raise UserError(f"samples of shape {self.size} were expected, but got {tuple(batch.shape[1:])}")
        mean, std = _statistics(self, batch.device, 255.0 if batch.dtype == torch.uint8 else 1.0)
        return (batch.float() - mean) / std

    def pixels(self, batch: Tensor) -> Tensor:
        """Return the uint8 images that `normalise` made these floats of; they may be of another height and width.

        >>> Preprocessing((1, 1, 2), mean=(0.5,), std=(0.5,)).pixels(torch.tensor([[[[-1.0, 1.0]]]]))
        tensor([[[[  0, 255]]]], dtype=torch.uint8)
        """
        mean, std = _statistics(self, batch.device, 255.0)
        return (batch * std + mean).round().clamp(0, 255).to(torch.uint8)


@functools.lru_cache(maxsize=16)
def _statistics(preprocessing: Preprocessing, device: torch.device, scale: float) -> tuple[Tensor, Tensor]:
    """Mean and deviation on a device, made once: a copy to a GPU in every step would make it wait.

    Computed on the CPU: what a GPU is asked for on the stream of one training, another's would not wait for.
    """
    shape = (-1,) + (1,) * (len(preprocessing.size) - 1)
    with torch.inference_mode(False):  # whoever asks first: the next one may want gradients
        mean, std = (torch.tensor(each) * scale for each in (preprocessing.mean, preprocessing.std))
        return mean.view(shape).to(device), std.view(shape).to(device)


class Dataset:
    """Samples, labels and class names; any pair of arrays makes one.

    Args:
        images: uint8 images (samples, channels, height, width), or float features (samples, features).
        targets: Integer labels from 0, (samples,).
        class_names: A name for each class; by default the numbers.
        preprocessing: Size, mean and deviation; by default those of these very samples.
        groups: Number of each sample's group, (samples,), which is kept whole; None where nothing is known of groups.

    >>> data = Dataset(torch.zeros(3, 2), [0, 1, 1])
    >>> (len(data), data.class_counts.tolist(), data.class_names)
    (3, [1, 2], ('0', '1'))
    """

    def __init__(
        self,
        images: Any,
        targets: Any,
        class_names: Sequence[str] | None = None,
        preprocessing: Preprocessing | None = None,
        groups: Any = None,
    ) -> None:
        images, targets = torch.as_tensor(images), torch.as_tensor(targets)
        self.class_counts = class_counts(targets, len(class_names) if class_names else None)
        _check_samples(images, targets)
        self.images: Tensor = images if images.dtype == torch.uint8 else images.float()
        self.targets: Tensor = targets.long()
        self.class_names = tuple(class_names or (str(label) for label in range(len(self.class_counts))))
        self.preprocessing = preprocessing or _own_statistics(self.images)
        self.groups: Tensor | None = None if groups is None else torch.as_tensor(groups)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one raw sample and its label, as torch's DataLoader wants them."""
        return self.images[index], self.targets[index]

    def checksum(self) -> int:
        """Return a number that tells this data set from another."""
        tensors = (self.targets, self.images[:: max(1, len(self) // 1000)])
        return functools.reduce(lambda number, tensor: zlib.crc32(_bytes(tensor), number), tensors, 0)

    def subset(self, indices: Tensor) -> "Dataset":
        """Return the given samples, with the same names and preprocessing."""
        groups = None if self.groups is None else self.groups[indices]
        return Dataset(self.images[indices], self.targets[indices], self.class_names, self.preprocessing, groups)

    def resized(self, preprocessing: Preprocessing) -> "Dataset":
        """Return the same images at the size of another preprocessing, which comes with it.

        Args:
            preprocessing: Size, statistics, and the way to resize: "bilinear" or "bicubic".

        >>> data = Dataset(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), [0, 1])
        >>> data.resized(Preprocessing((3, 8, 8), (0.5,), (0.5,))).images.shape
        torch.Size([2, 3, 8, 8])
        """
        if len(self.preprocessing.size) != 3:
            raise UserError(f"samples of shape {self.preprocessing.size} are no images; leave --image-size out")
        side = preprocessing.size[-2:]
        parts = [
            F.interpolate(part, side, mode=preprocessing.interpolation, antialias=True)
            for part in self.images.split(RESIZED_AT_ONCE)
        ]
        return Dataset(torch.cat(parts), self.targets, self.class_names, preprocessing, self.groups)


def _check_samples(images: Tensor, targets: Tensor) -> None:
    if len(images) != len(targets):
        raise UserError(f"there are {len(images)} samples but {len(targets)} labels")
    if not len(images):
        raise UserError("the data set is empty")
    if images.dtype == torch.uint8 and images.ndim != 4:
        raise UserError(f"images must have shape (samples, channels, height, width), but have {tuple(images.shape)}")
    if images.dtype != torch.uint8 and (images.ndim not in (2, 4) or not images.is_floating_point()):
        raise UserError(
            "samples must be images (samples, channels, height, width) or float features (samples, features), "
            f"but are {images.dtype} of shape {tuple(images.shape)}"
        )
    if images.is_floating_point() and not bool(torch.isfinite(images).all()):
        row = int((~torch.isfinite(images.flatten(1)).all(dim=1)).nonzero()[0])
        raise UserError(f"sample {row} has a feature that is NaN or infinite")


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().numpy().tobytes()


def _own_statistics(images: Tensor) -> Preprocessing:
    """Per channel of images, per feature of vectors; a constant feature keeps deviation 1."""
    dims = (0, 2, 3) if images.ndim == 4 else (0,)
    values = images.double() / (255 if images.dtype == torch.uint8 else 1)
    mean, std = values.mean(dim=dims), values.std(dim=dims, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    return Preprocessing(tuple(images.shape[1:]), tuple(mean.flatten().tolist()), tuple(std.flatten().tolist()))
