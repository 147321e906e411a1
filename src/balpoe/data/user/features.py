"""Features that another network or program has made, with labels: a .npz, or .npy files side by side."""

import os
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from balpoe.data.npz import read_archive
from balpoe.data.user.class_names import check_classes, class_indices, class_name, natural_order, some_of
from balpoe.errors import UserError

__all__ = ["FeaturesFile", "FeaturesPart", "read_features"]

ALSO = {
    "X": "features", "embeddings": "features", "y": "labels", "targets": "labels",
    "X_test": "test_features", "y_test": "test_labels", "X_val": "val_features", "y_val": "val_labels",
}  # fmt: skip
"""Other names of an array."""
PARTS = "test", "val"
ARRAYS = (
    "features", "labels", "groups", "class_names",
    *(f"{part}_{array}" for part in PARTS for array in ("features", "labels", "groups")),
)  # fmt: skip
NAMES = (*ARRAYS, *ALSO)
OTHERS = tuple(name for name in NAMES if ALSO.get(name, name) != "features")


@dataclass(frozen=True, eq=False)
class FeaturesPart:
    """Features with labels, for training, test or validation.

    Args:
        features: float32 (samples, features).
        labels: Name of each sample's class.
        groups: Group of each sample, "" for one in no group; None where nothing is known of groups.
    """

    features: Tensor
    labels: tuple[str, ...]
    groups: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, rows: Tensor) -> "FeaturesPart":
        """Return the given samples."""
        groups = self.groups and tuple(self.groups[row] for row in rows.tolist())
        return FeaturesPart(self.features[rows], tuple(self.labels[row] for row in rows.tolist()), groups)


@dataclass(frozen=True, eq=False)
class FeaturesFile:
    """Features with labels, and perhaps a test part, and one for validation beside it.

    Args:
        train: Samples to train on, or to split where there is no test part.
        class_names: Names of the classes that have training samples.
        test: Samples of the test part.
        validation: Samples that are in neither.
    """

    train: FeaturesPart
    class_names: tuple[str, ...]
    test: FeaturesPart | None = None
    validation: FeaturesPart | None = None

    def targets(self, part: FeaturesPart) -> Tensor:
        """Return a part's labels as places among the class names, int64."""
        return class_indices(part.labels, self.class_names)

    def without_groups(self) -> "FeaturesFile":
        """Return the same samples, each for itself."""
        parts = (part and replace(part, groups=None) for part in (self.test, self.validation))
        return FeaturesFile(replace(self.train, groups=None), self.class_names, *parts)

    def version(self) -> str:
        """Return eight hexadecimal digits that change with any value, label, group or the order of samples."""
        train, test = self.train, self.test
        # As it was before validation and groups of the test were read: a file without them keeps its version.
        texts = repr((train.labels, self.class_names, train.groups, test and test.labels))
        texts += repr(test.groups) if test and test.groups else ""
        texts += repr((self.validation.labels, self.validation.groups)) if self.validation else ""
        checksum = zlib.crc32(texts.encode())
        for part in filter(None, (train, test, self.validation)):
            checksum = zlib.crc32(part.features.numpy().data, checksum)
        return f"{checksum:08x}"


def read_features(path: str | Path) -> FeaturesFile:
    """Return features and labels from a file that anybody may have made; nothing in it is executed.

    Args:
        path: A .npz with the arrays `features` (or `X`, `embeddings`), (samples, features); `labels` (or `y`,
            `targets`), integers or text; and, if wanted, `groups`, `test_features` with `test_labels` (or `X_test` with
            `y_test`; and `test_groups`), the same with `val`, and `class_names` (integer labels count into them). Or a
            file NAME.npy, with NAME_labels.npy or labels.npy beside it, and the other arrays likewise. Or a folder of
            such files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/plants.npz", features=np.eye(3), labels=[10, 9, 10])
    ...     found = read_features(f"{folder}/plants.npz")
    >>> found.class_names, found.targets(found.train)
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
    for part in PARTS:
        features, labels, groups = (f"{part}_{array}" for array in ("features", "labels", "groups"))
        if (features in named) != (labels in named):
            raise UserError(f"{features} and {labels} come together, but one of them is missing; add it")
        if groups in named and not {"groups", features} <= set(named):
            raise UserError(f"{groups} comes with groups and {features}, but one of them is missing; add it")
    return named


def _from_arrays(arrays: dict[str, np.ndarray]) -> FeaturesFile:
    names = _class_names(arrays)
    train = _part(arrays, "", names)
    test, validation = (_part(arrays, f"{part}_", names) if f"{part}_features" in arrays else None for part in PARTS)
    for name, part in zip(PARTS, (test, validation), strict=True):
        if part and part.features.shape[1] != train.features.shape[1]:
            raise UserError(
                f"{name}_features has {part.features.shape[1]} features a sample and features "
                f"{train.features.shape[1]}; make both with one network"
            )
        check_classes(train.labels, part.labels if part else (), "labels")
    known = set(train.labels)
    class_names = tuple(name for name in names if name in known) or natural_order(known)
    return FeaturesFile(train, class_names, test, validation)


def _part(arrays: dict[str, np.ndarray], prefix: str, class_names: tuple[str, ...]) -> FeaturesPart:
    features = _features(arrays, f"{prefix}features")
    labels = _labels(arrays, f"{prefix}labels", len(features), class_names)
    groups = f"{prefix}groups"
    return FeaturesPart(features, labels, tuple(_texts(arrays, groups, len(features))) if groups in arrays else None)


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
