"""CIFAR-10 and CIFAR-100 from torchvision's files."""

import os
from pathlib import Path
from typing import Any

import torch

from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.errors import UserError

__all__ = ["CIFAR_PREPROCESSING", "load_cifar"]

CIFAR_PREPROCESSING = Preprocessing((3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
"""With the statistics of CIFAR-10, which the field and the reference use for CIFAR-100 too."""

CLASSES = {"cifar10-lt": "CIFAR10", "cifar100-lt": "CIFAR100"}
"""What torchvision calls them."""


def load_cifar(name: str, root: str | Path | None, download: bool) -> tuple[Dataset, Dataset]:
    """Return the full training set and the test set.

    Args:
        name: "cifar10-lt" or "cifar100-lt".
        root: Folder of torchvision's files; by default the environment variable BALPOE_DATA.
        download: Whether to fetch the files when they are missing.
    """
    from torchvision import datasets

    title, folder = CLASSES[name], root or os.environ.get("BALPOE_DATA")
    if not folder:
        raise UserError(
            f"{title} is not bundled: say with --data-root (root=) or BALPOE_DATA where torchvision's files "
            + ("should be fetched to" if download else "are, and add --download to fetch them there")
        )
    kind: Any = getattr(datasets, title)
    if not download:
        _check_files(kind, Path(folder))
    try:
        parts = [kind(str(folder), train=train, download=download) for train in (True, False)]
    except (OSError, RuntimeError) as error:
        raise UserError(f"{title} could not be fetched into {folder}: {error}; try again, or copy the files") from error
    train, test = (
        Dataset(
            torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous(),
            torch.tensor(part.targets),
            tuple(part.classes),
            CIFAR_PREPROCESSING,
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
