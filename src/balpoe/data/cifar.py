"""CIFAR-10 and CIFAR-100 from the published files for Python.

Each file is read once: its checksum is computed from the very bytes that are then unpickled, and the unpickler knows
arrays and nothing else. Files are read side by side, for reading and checksums leave Python's lock.
"""

import hashlib
import io
import os
import pickle
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.errors import UserError

__all__ = ["CIFAR_FILES", "CIFAR_PREPROCESSING", "load_cifar", "read_ahead"]

CIFAR_PREPROCESSING = Preprocessing((3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
"""With the statistics of CIFAR-10, which the field and the reference use for CIFAR-100 too."""


@dataclass(frozen=True)
class CifarFiles:
    """One of the two data sets on disk."""

    title: str
    """What torchvision calls it."""
    folder: str
    train: Mapping[str, str]
    """Files, each with its published MD5 checksum."""
    test: Mapping[str, str]
    meta: Mapping[str, str]
    labels: bytes
    """The key of the labels in a file."""
    names: bytes
    """The key of the class names."""

    def checksums(self, folder: str) -> dict[Path, str]:
        """Return the files below a folder with their checksums: training, test, and last the class names."""
        parts = {**self.train, **self.test, **self.meta}
        return {Path(folder, self.folder, name): md5 for name, md5 in parts.items()}


CIFAR_FILES = {
    "cifar10-lt": CifarFiles(
        "CIFAR10", "cifar-10-batches-py",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        {"test_batch": "40351d587109b95175f43aff81a1287e"},
        {"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
        b"labels", b"label_names",
    ),
    "cifar100-lt": CifarFiles(
        "CIFAR100", "cifar-100-python",
        {"train": "16019d7e3df5f24257cddd939b257f8d"},
        {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        {"meta": "7973b15100ade9c7d40fb424638fde48"},
        b"fine_labels", b"fine_label_names",
    ),
}  # fmt: skip
"""By name, as recipes say them."""


def load_cifar(name: str, root: str | Path | None, download: bool) -> tuple[Dataset, Dataset]:
    """Return the full training set and the test set.

    Args:
        name: "cifar10-lt" or "cifar100-lt".
        root: Folder of torchvision's files; by default the environment variable BALPOE_DATA.
        download: Whether to fetch the files when they are missing.
    """
    files, folder = CIFAR_FILES[name], _folder(root)
    if not folder:
        fetched = f"are, or fetch them: balpoe data {name} --data-root FOLDER --download"
        raise UserError(
            f"{files.title} is not bundled: say with --data-root (root=) or BALPOE_DATA where torchvision's files "
            + ("should be fetched to" if download else fetched)
        )
    if download:
        _fetch(files, folder)
    for path in files.checksums(folder):
        if not path.is_file():
            raise UserError(
                f"{path} is missing: point --data-root or BALPOE_DATA at torchvision's files, or fetch them there: "
                f"balpoe data {name} --data-root {folder} --download"
            )
    found = AHEAD.pop((name, folder), None) or _reading(files, folder)
    *parts, meta = [each.result() for each in found]
    class_names = tuple(name.decode() for name in meta[files.names])
    train, test = parts[: len(files.train)], parts[len(files.train) :]
    return _dataset(train, files.labels, class_names), _dataset(test, files.labels, class_names)


def read_ahead(name: str, root: str | Path | None) -> None:
    """Begin to read the files, if they are there; the next `load_cifar` of the same ones takes what is found.

    Args:
        name: As for `load_cifar`.
        root: As for `load_cifar`.
    """
    files, folder = CIFAR_FILES[name], _folder(root)
    if folder and all(path.is_file() for path in files.checksums(folder)):
        AHEAD[name, folder] = _reading(files, folder)


AHEAD: dict[tuple[str, str], "list[Future[dict[bytes, Any]]]"] = {}
"""Files that are being read, by name and folder of the data set."""


def _folder(root: str | Path | None) -> str:
    return os.path.abspath(found) if (found := root or os.environ.get("BALPOE_DATA")) else ""


def _reading(files: CifarFiles, folder: str) -> "list[Future[dict[bytes, Any]]]":
    """The content of each file, in threads that end when all are read."""
    pool = ThreadPoolExecutor()
    futures = [pool.submit(_read, path, md5) for path, md5 in files.checksums(folder).items()]
    pool.shutdown(wait=False)
    return futures


def _fetch(files: CifarFiles, folder: str) -> None:
    """Let torchvision fetch the files, unless they are there."""
    from torchvision import datasets

    try:
        getattr(datasets, files.title)(folder, download=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{files.title} could not be fetched into {folder}: {error}; try again, or copy the files"
        ) from error


def _read(path: Path, md5: str) -> dict[bytes, Any]:
    """The content of a file; anything but the published bytes is refused, before they are unpickled."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check it, or fetch it again") from error
    if _md5(path, content) != md5:
        raise UserError(
            f"{path} is not the published file (its checksum differs; {len(content):,} bytes): "
            "it may be cut short, so delete it and fetch it again"
        )
    found: dict[bytes, Any] = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    return found


def _md5(path: Path, content: bytes) -> str:
    """The checksum of a file's content; whoever knows that of the path already (as tests do) need not compute it."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


ARRAY_PARTS = {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}


class _ArrayUnpickler(pickle.Unpickler):
    """Makes arrays and plain values alone."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ARRAY_PARTS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of an array")


def _dataset(parts: list[dict[bytes, Any]], labels: bytes, class_names: tuple[str, ...]) -> Dataset:
    """The images of some files: rows of red, then green, then blue pixels."""
    rows = parts[0][b"data"] if len(parts) == 1 else np.concatenate([part[b"data"] for part in parts])
    targets = [label for part in parts for label in part[labels]]
    images = torch.from_numpy(rows).view(-1, *CIFAR_PREPROCESSING.size)
    return Dataset(images, torch.tensor(targets), class_names, CIFAR_PREPROCESSING)
