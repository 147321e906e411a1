"""Data sets in memory: uint8 pictures or float features, labels, names, and how to normalise them."""

import functools
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balpoe.data.long_tail import long_tailed_counts, long_tailed_indices
from balpoe.errors import UserError, unknown_name
from balpoe.method.priors import class_counts

__all__ = ["DATASETS", "Dataset", "Preprocessing", "load_data", "validation_data"]


@dataclass(frozen=True)
class Preprocessing:
    """What a network's input went through: (x - mean) / std, uint8 divided by 255 first.

    `size` is the shape of one sample: (channels, height, width), or (features,). Of a picture in a file the short side
    is brought to `resize` pixels, and its middle of `size` is taken.

    >>> Preprocessing((2,), mean=(1.0, 0.0), std=(2.0, 1.0)).normalise(torch.tensor([[3.0, 4.0]]))
    tensor([[1., 4.]])
    """

    size: tuple[int, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    resize: int = 0

    def normalise(self, batch: Tensor) -> Tensor:
        """Return a batch of raw samples (batch, *size) as the floats that networks take, on its device.

        >>> Preprocessing((1, 1, 2), mean=(0.5,), std=(0.5,)).normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
        """
        if tuple(batch.shape[1:]) != self.size:
            raise UserError(f"samples of shape {self.size} were expected, but got {tuple(batch.shape[1:])}")
        mean, std = _statistics(self, batch.device, 255.0 if batch.dtype == torch.uint8 else 1.0)
        return (batch.float() - mean) / std


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
        images: uint8 pictures (samples, channels, height, width), or float features (samples, features).
        targets: Integer labels from 0, (samples,).
        class_names: One per class; by default the numbers.
        preprocessing: By default the mean and deviation of these very samples.

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
    ) -> None:
        images, targets = torch.as_tensor(images), torch.as_tensor(targets)
        self.class_counts = class_counts(targets, len(class_names) if class_names else None)
        _check_samples(images, targets)
        self.images: Tensor = images if images.dtype == torch.uint8 else images.float()
        self.targets: Tensor = targets.long()
        self.class_names = tuple(class_names or (str(label) for label in range(len(self.class_counts))))
        self.preprocessing = preprocessing or _own_statistics(self.images)

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
        return Dataset(self.images[indices], self.targets[indices], self.class_names, self.preprocessing)


def load_data(
    name: str,
    root: str | Path | None = None,
    *,
    imbalance_ratio: float = 100,
    profile: str = "exponential",
    download: bool = False,
    validation: int = 0,
) -> tuple[Dataset, Dataset]:
    """Return the long-tailed training set and the balanced test set of a benchmark.

    Args:
        name: "cifar10-lt", "cifar100-lt", or "digits-lt" (bundled with scikit-learn).
        root: The folder with torchvision's CIFAR files; by default the environment variable BALPOE_DATA.
        imbalance_ratio: Largest over smallest class count.
        profile: "exponential", "step" or "pareto".
        download: Fetch the CIFAR files when they are missing.
        validation: Above 0, return so many samples of each class instead of the test set, to make choices on: samples
            that the long-tailed subset does not use, and, where it leaves too few, some that training goes without.

    >>> train, test = load_data("digits-lt", imbalance_ratio=50)
    >>> train.class_counts.tolist()
    [124, 80, 51, 33, 21, 14, 9, 5, 3, 2]
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    pool, test = DATASETS[name](root, download)
    counts = long_tailed_counts(len(pool.class_names), int(pool.class_counts.min()), imbalance_ratio, profile)
    if validation:
        kept, held_out = _split(pool, counts, validation, hold_out=True)
        return pool.subset(kept), pool.subset(held_out)
    return pool.subset(long_tailed_indices(pool.targets, counts)), test


def validation_data(
    name: str,
    root: str | Path | None = None,
    *,
    imbalance_ratio: float = 100,
    profile: str = "exponential",
    per_class: int = 20,
) -> Dataset:
    """Return up to `per_class` labelled samples of each class that the training set does not use.

    They come from the pool that the long-tailed subset is drawn from, not from the test set (though one of
    CIFAR-100's is also there, under another label); a class of which the subset uses almost all has fewer, or none.
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    pool, _ = DATASETS[name](root, False)
    counts = long_tailed_counts(len(pool.class_names), int(pool.class_counts.min()), imbalance_ratio, profile)
    return pool.subset(_split(pool, counts, per_class, hold_out=False)[1])


def _split(pool: Dataset, counts: Sequence[int], per_class: int, hold_out: bool) -> tuple[Tensor, Tensor]:
    """Samples for training, as the long-tailed rule keeps them, and up to `per_class` of each class behind them.

    With `hold_out`, a class that has too few behind gives up its last ones for training.
    """
    totals = [int(total) for total in pool.class_counts]
    classes = long_tailed_indices(pool.targets, totals).split(totals)  # each in the order in which the rule keeps it
    kept, validation = [], []
    for label, (samples, count) in enumerate(zip(classes, counts, strict=True)):
        first = min(count, max(len(samples) - per_class, 0)) if hold_out else count
        if first < 1:
            raise UserError(
                f"class {label} has {len(samples)} samples: {per_class} for validation leave none to train on"
            )
        kept.append(samples[:first])
        validation.append(samples[first : first + per_class])
    return torch.cat(kept), torch.cat(validation)


def _digits(root: str | Path | None, download: bool) -> tuple[Dataset, Dataset]:
    """Handwritten digits of 8 x 8 pixels (scikit-learn): 50 of each for the test, drawn once and for all."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(np.rint(digits.images * (255 / 16)).astype(np.uint8))[:, None]
    targets = torch.from_numpy(digits.target)
    held_out = long_tailed_indices(targets, [50] * 10, seed=1)
    rest = torch.ones(len(targets), dtype=torch.bool).index_fill(0, held_out, False)
    pool = Dataset(images[rest], targets[rest])
    return pool, Dataset(images[held_out], targets[held_out], pool.class_names, pool.preprocessing)


CIFAR_STATISTICS = Preprocessing((3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
"""Those of CIFAR-10, which the field and the reference use for CIFAR-100 too."""


def _cifar(class_name: str, root: str | Path | None, download: bool) -> tuple[Dataset, Dataset]:
    from torchvision import datasets

    folder = root or os.environ.get("BALPOE_DATA")
    if not folder:
        raise UserError(
            f"{class_name} is not bundled: say with --data-root (root=) or BALPOE_DATA where torchvision's files "
            + ("should be fetched to" if download else "are, and add --download to fetch them there")
        )
    kind: Any = getattr(datasets, class_name)
    if not download:
        _check_files(kind, Path(folder))
    try:
        parts = [kind(str(folder), train=train, download=download) for train in (True, False)]
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{class_name} could not be fetched into {folder}: {error}; try again, or copy the files"
        ) from error
    train, test = (
        Dataset(
            torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous(),
            torch.tensor(part.targets),
            tuple(part.classes),
            CIFAR_STATISTICS,
        )
        for part in parts
    )
    return train, test


def _check_files(kind: Any, root: Path) -> None:
    """Refuse anything but the published bytes, before they are unpickled."""
    from torchvision.datasets.utils import calculate_md5

    for name, md5 in [*kind.train_list, *kind.test_list, [kind.meta["filename"], kind.meta["md5"]]]:
        path = root / kind.base_folder / name
        if not path.is_file():
            raise UserError(
                f"{path} is missing: point --data-root or BALPOE_DATA at torchvision's files, or add --download"
            )
        if calculate_md5(path) != md5:
            raise UserError(
                f"{path} is not the published file (its checksum differs; {path.stat().st_size:,} bytes): "
                "it may be cut short, so delete it and fetch it again"
            )


DATASETS = {
    "digits-lt": _digits,
    "cifar10-lt": lambda root, download: _cifar("CIFAR10", root, download),
    "cifar100-lt": lambda root, download: _cifar("CIFAR100", root, download),
}
"""From the name to the full training pool and the test set."""


def _check_samples(images: Tensor, targets: Tensor) -> None:
    if len(images) != len(targets):
        raise UserError(f"there are {len(images)} samples but {len(targets)} labels")
    if not len(images):
        raise UserError("the data set is empty")
    if images.dtype == torch.uint8 and images.ndim != 4:
        raise UserError(f"pictures must have shape (samples, channels, height, width), but have {tuple(images.shape)}")
    if images.dtype != torch.uint8 and (images.ndim not in (2, 4) or not images.is_floating_point()):
        raise UserError(
            "samples must be pictures (samples, channels, height, width) or float features (samples, features), "
            f"but are {images.dtype} of shape {tuple(images.shape)}"
        )
    if images.is_floating_point() and not bool(torch.isfinite(images).all()):
        row = int((~torch.isfinite(images.flatten(1)).all(dim=1)).nonzero()[0])
        raise UserError(f"sample {row} has a feature that is NaN or infinite")


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().numpy().tobytes()


def _own_statistics(images: Tensor) -> Preprocessing:
    """Per channel of pictures, per feature of vectors; a constant feature keeps deviation 1."""
    dims = (0, 2, 3) if images.ndim == 4 else (0,)
    values = images.double() / (255 if images.dtype == torch.uint8 else 1)
    mean, std = values.mean(dim=dims), values.std(dim=dims, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    return Preprocessing(tuple(images.shape[1:]), tuple(mean.flatten().tolist()), tuple(std.flatten().tolist()))
