"""Features that another network or program has made, with labels: a .npz, or .npy files side by side."""

import os
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from balpoe.data.npz import read_archive
from balpoe.data.user.class_names import check_classes, class_indices, class_name, natural_order, some_of
from balpoe.errors import UserError

__all__ = ["FeaturesFile", "read_features"]

ALSO = {"X": "features", "embeddings": "features", "y": "labels", "targets": "labels"}
"""Other names of an array."""
ARRAYS = ("features", "labels", "groups", "test_features", "test_labels", "test_groups", "class_names")
NAMES = (*ARRAYS, *ALSO)
OTHERS = tuple(name for name in NAMES if ALSO.get(name, name) != "features")


@dataclass(frozen=True, eq=False)
class FeaturesFile:
    """Features with labels, and perhaps a test part.

    Args:
        features: float32 (samples, features).
        labels: Name of each sample's class.
        class_names: Names of the classes that have training samples.
        groups: Group of each sample, "" for one in no group; None where nothing is known of groups.
        test_features: float32 (test samples, features).
        test_labels: Labels of the test samples.
        test_groups: Groups of the test samples.
    """

    features: Tensor
    labels: tuple[str, ...]
    class_names: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    test_features: Tensor | None = None
    test_labels: tuple[str, ...] | None = None
    test_groups: tuple[str, ...] | None = None

    @cached_property
    def targets(self) -> Tensor:
        """The labels as places among the class names, int64."""
        return class_indices(self.labels, self.class_names)

    @cached_property
    def test_targets(self) -> Tensor | None:
        """The test labels as places among the class names."""
        return None if self.test_labels is None else class_indices(self.test_labels, self.class_names)

    def version(self) -> str:
        """Return eight hexadecimal digits that change with any value, label, group or the order of samples."""
        texts = repr((self.labels, self.class_names, self.groups, self.test_labels))  # as many as features have rows
        texts += repr(self.test_groups) if self.test_groups else ""  # or a file of before would have another version
        checksum = zlib.crc32(texts.encode())
        for features in (self.features, self.test_features):
            checksum = checksum if features is None else zlib.crc32(features.numpy().data, checksum)
        return f"{checksum:08x}"


def read_features(path: str | Path) -> FeaturesFile:
    """Return features and labels from a file that anybody may have made; nothing in it is executed.

    Args:
        path: A .npz with the arrays `features` (or `X`, `embeddings`), (samples, features); `labels` (or `y`,
            `targets`), integers or text; and, if wanted, `groups`, `test_features` with `test_labels` (and
            `test_groups`), and `class_names` (integer labels count into them). Or a file NAME.npy, with
            NAME_labels.npy or labels.npy beside it, and the other arrays likewise. Or a folder of such files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/plants.npz", features=np.eye(3), labels=[10, 9, 10])
    ...     found = read_features(f"{folder}/plants.npz")
    >>> found.class_names, found.targets
    (('9', '10'), tensor([1, 0, 1]))
    """
    path = Path(path)
    if not os.path.exists(path):
        raise UserError(f"{path} does not exist; give a .npz or .npy of features")
    arrays = read_archive(path, NAMES) if path.suffix.lower() == ".npz" else _files(path)
    try:
        return _from_arrays(_named(arrays))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _files(path: Path) -> dict[str, np.ndarray]:
    """The features of a .npy, and each other array from NAME_array.npy or array.npy beside it."""
    path = _features_of(path) if path.is_dir() else path
    arrays = {"features": _array(path)}
    for name in OTHERS:
        beside = (path.with_name(f"{path.stem}_{name}.npy"), path.with_name(f"{name}.npy"))
        if file := next((file for file in beside if file.is_file()), None):
            arrays[name] = _array(file)
    return arrays


def _features_of(folder: Path) -> Path:
    ends = tuple(f"_{name}" for name in OTHERS)
    files = [file for file in sorted(folder.glob("*.npy")) if not f"_{file.stem}".endswith(ends)]
    if len(files) != 1:
        raise UserError(
            f"{folder} has {len(files)} .npy files that may be the features; give the one that is, "
            "with NAME_labels.npy or labels.npy beside it"
        )
    return files[0]


def _array(path: Path) -> np.ndarray:
    """An array of numbers or text; mapped, so that a header that claims more than the file holds is refused."""
    try:
        with open(path, "rb") as stream:
            if stream.read(6) != b"\x93NUMPY":  # nor an archive or a pickle, which numpy would look into
                raise ValueError
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise UserError(f"cannot read {path}: {(error.strerror or str(error)).lower()}; check the path") from error
    except Exception as error:  # numpy's reader of a garbled header knows many
        raise UserError(f"{path} is not a whole .npy of numbers or text; write it again with numpy.save") from error
    if array.dtype.kind not in "fiuU":
        raise UserError(f"{path} holds {array.dtype}, not numbers or text; write it again with numpy.save")
    return array


def _named(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays by the first of their names."""
    named: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if ALSO.get(name, name) in named:
            raise UserError(f"there are two arrays of {ALSO.get(name, name)}, one of them {name!r}; remove one")
        named[ALSO.get(name, name)] = array
    for name, others in (("features", "X or embeddings"), ("labels", "y or targets")):
        if name not in named:
            raise UserError(f"there is no array of {name}; call it {name}, {others}")
    if ("test_features" in named) != ("test_labels" in named):
        raise UserError("test_features and test_labels come together, but one of them is missing; add it")
    if "test_groups" in named and not {"groups", "test_features"} <= set(named):
        raise UserError("test_groups comes with groups and test_features, but one of them is missing; add it")
    return named


def _from_arrays(arrays: dict[str, np.ndarray]) -> FeaturesFile:
    features, names = _features(arrays, "features"), _class_names(arrays)
    labels = _labels(arrays, "labels", len(features), names)
    groups = tuple(_texts(arrays, "groups", len(features))) if "groups" in arrays else None
    test_features, test_labels, test_groups = None, None, None
    if "test_features" in arrays:
        test_features = _features(arrays, "test_features")
        test_labels = _labels(arrays, "test_labels", len(test_features), names)
        test_groups = tuple(_texts(arrays, "test_groups", len(test_features))) if "test_groups" in arrays else None
        if test_features.shape[1] != features.shape[1]:
            raise UserError(
                f"test_features has {test_features.shape[1]} features a sample and features {features.shape[1]}; "
                "make both with one network"
            )
    check_classes(labels, test_labels or (), "labels")
    known = set(labels)
    class_names = tuple(name for name in names if name in known) or natural_order(known)
    return FeaturesFile(features, labels, class_names, groups, test_features, test_labels, test_groups)


def _features(arrays: dict[str, np.ndarray], name: str) -> Tensor:
    array = arrays[name]
    if array.ndim != 2 or not array.size or array.dtype.kind == "U":
        raise UserError(
            f"{name} must be numbers of shape (samples, features), but is {array.dtype} of shape {array.shape}"
        )
    with np.errstate(over="ignore"):  # named below
        features = torch.from_numpy(array.astype(np.float32))
    wrong = ~features.isfinite().all(dim=1)
    if bool(wrong.any()):
        raise UserError(
            f"{name}: sample {int(wrong.nonzero()[0])} has a value that is NaN, infinite or too large for float32 "
            f"({int(wrong.sum()):,} such samples); remove or fix them"
        )
    return features


def _class_names(arrays: dict[str, np.ndarray]) -> tuple[str, ...]:
    if "class_names" not in arrays:
        return ()
    names = tuple(map(class_name, _texts(arrays, "class_names")))
    if len(set(names)) < len(names) or not names:
        raise UserError("class_names must be different names; give each class its own")
    return names


def _labels(arrays: dict[str, np.ndarray], name: str, size: int, class_names: tuple[str, ...]) -> tuple[str, ...]:
    texts = [class_name(text) for text in _texts(arrays, name, size)]
    if class_names and arrays[name].dtype.kind in "iu":
        texts = _counted(arrays[name], name, class_names)
    if "" in texts:
        raise UserError(f"{name}: sample {texts.index('')} has an empty label; fill it in, or remove the sample")
    if class_names and (unknown := natural_order(set(texts) - set(class_names))):
        raise UserError(f"{name} has {some_of(unknown)}, which class_names lacks; add them there")
    return tuple(texts)


def _counted(labels: np.ndarray, name: str, class_names: tuple[str, ...]) -> list[str]:
    """The names that integer labels count to."""
    wrong = np.flatnonzero((labels < 0) | (labels >= len(class_names)))
    if len(wrong):
        raise UserError(
            f"{name}: sample {wrong[0]} has the label {labels[wrong[0]]}, but class_names has {len(class_names)} "
            "names, into which labels count from 0; fix one of them"
        )
    return [class_names[label] for label in labels.tolist()]


def _texts(arrays: dict[str, np.ndarray], name: str, size: int | None = None) -> list[str]:
    """The values of an array of integers or text as text."""
    array = arrays[name]
    if array.ndim != 1 or array.dtype.kind == "f":
        raise UserError(
            f"{name} must be integers or text of shape (samples,), but is {array.dtype} of shape {array.shape}"
        )
    if size is not None and len(array) != size:
        raise UserError(f"there are {size:,} samples but {len(array):,} {name}; give one for each")
    try:
        return [str(value) for value in array.tolist()]
    except (ValueError, SystemError) as error:  # a number that is no character of Unicode
        raise UserError(f"{name} is garbled text; write it again with numpy.savez") from error
