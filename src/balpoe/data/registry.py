"""The data sets by name. To add one, write its loader and an entry here; nothing else changes."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from balpoe.errors import UserError, unknown_name

if TYPE_CHECKING:
    from balpoe.data.dataset import Dataset, Preprocessing
    from balpoe.data.file_lists import BenchmarkLists
    from balpoe.data.loading.image_files import PictureFiles

__all__ = ["DATASETS", "DatasetEntry", "load_data", "load_data_and_rest", "load_files", "validation_data"]


@dataclass(frozen=True)
class DatasetEntry:
    """What is known of a data set before anything of it is read."""

    summary: str
    """One line on what it is."""
    load: str | Callable[..., Any]
    """The loader: a function, or "module:function", which is imported on first use.

    For a data set in memory: from (name, root, download) to the full training pool and the test set, each a `Dataset`.
    For image files: from (name, root) to `BenchmarkLists`, and from `imbalance_ratio` and `profile` if they are cut.
    """
    in_memory: bool
    """Whether it is held in memory, and cut to a long tail by `imbalance_ratio`."""
    files_are_cut: bool = False
    """Whether its image files are cut to a long tail, too, and not taken as published."""
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Mean and deviation of image files, where they are not the backbone's."""
    crop_share: float = 0.875
    """Side of the middle that is taken of an image file, as a part of its resized short side: 224 of 256 pixels."""
    interpolation: str = "bilinear"
    """How image files are resized: as in the reference, which trains from random weights, and not as timm's models."""

    @property
    def has_ratio(self) -> bool:
        """Whether `imbalance_ratio` and `profile` mean something for it."""
        return self.in_memory or self.files_are_cut

    def loader(self) -> Callable[..., Any]:
        """Return the function that loads it."""
        if callable(self.load):
            return self.load
        module, _, function = self.load.partition(":")
        loader: Callable[..., Any] = getattr(import_module(module), function)
        return loader


DATASETS = {
    "digits-lt": DatasetEntry("handwritten digits of 8 x 8 pixels", "balpoe.data.digits:load_digits", True),
    "cifar10-lt": DatasetEntry("CIFAR-10, 10 classes of 32 x 32 pixels", "balpoe.data.cifar:load_cifar", True),
    "cifar100-lt": DatasetEntry("CIFAR-100, 100 classes of 32 x 32 pixels", "balpoe.data.cifar:load_cifar", True),
    "tiny-imagenet-lt": DatasetEntry(
        "Tiny-ImageNet, 200 classes of 64 x 64 pixels",
        "balpoe.data.tiny_imagenet:read_tiny_imagenet",
        False,
        files_are_cut=True,
        crop_share=1.0,  # photographs of 64 pixels have none to spare
    ),
    "imagenet-lt": DatasetEntry("ImageNet-LT, 1,000 classes", "balpoe.data.file_lists:read_benchmark", False),
    "inaturalist2018": DatasetEntry(
        "iNaturalist 2018, 8,142 species",
        "balpoe.data.file_lists:read_benchmark",
        False,
        statistics=((0.466, 0.471, 0.380), (0.195, 0.194, 0.192)),  # the reference's, instead of ImageNet's
    ),
    "places-lt": DatasetEntry("Places-LT, 365 kinds of places", "balpoe.data.file_lists:read_benchmark", False),
}
"""By name, as recipes say them. Read when a name is used: an entry that is added at run time counts at once."""


def load_data(
    name: str,
    root: str | Path | None = None,
    *,
    imbalance_ratio: float = 100,
    profile: str = "exponential",
    download: bool = False,
    validation: int = 0,
) -> "tuple[Dataset, Dataset]":
    """Return the long-tailed training set and the balanced test set of a benchmark.

    Args:
        name: "cifar10-lt", "cifar100-lt", or "digits-lt" (bundled with scikit-learn).
        root: Folder with torchvision's CIFAR files; by default the environment variable BALPOE_DATA.
        imbalance_ratio: Largest over smallest class count.
        profile: "exponential", "step" or "pareto".
        download: Whether to fetch the CIFAR files when they are missing.
        validation: Number of samples of each class that are returned instead of the test set, to make choices on. They
            are samples that the long-tailed subset does not use, and, where it leaves too few, some that training goes
            without. 0 for the test set.

    >>> train, test = load_data("digits-lt", imbalance_ratio=50)
    >>> train.class_counts.tolist()
    [124, 80, 51, 33, 21, 14, 9, 5, 3, 2]
    """
    return _long_tailed(*_pool(name, root, imbalance_ratio, profile, download), validation)


def load_data_and_rest(
    name: str,
    root: str | Path | None = None,
    *,
    rest: int,
    imbalance_ratio: float = 100,
    profile: str = "exponential",
    download: bool = False,
    validation: int = 0,
) -> "tuple[Dataset, Dataset, Dataset | None]":
    """Return what `load_data` returns, and labelled samples that are in neither, if any are; files are read once.

    Args:
        name: As for `load_data`.
        root: As for `load_data`.
        rest: Largest number of further samples, all classes together.
        imbalance_ratio: As for `load_data`.
        profile: As for `load_data`.
        download: As for `load_data`.
        validation: As for `load_data`.

    >>> train, test, rest = load_data_and_rest("digits-lt", imbalance_ratio=50, rest=100)
    >>> len(train), rest.class_counts.tolist()
    (342, [4, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    pool, test, counts = _pool(name, root, imbalance_ratio, profile, download)
    used = [count + validation for count in counts]
    return *_long_tailed(pool, test, counts, validation), _further(pool, used, rest // len(counts))


def validation_data(
    name: str,
    root: str | Path | None = None,
    *,
    imbalance_ratio: float = 100,
    profile: str = "exponential",
    per_class: int = 20,
) -> "Dataset":
    """Return up to `per_class` labelled samples of each class that the training set does not use.

    They come from the pool that the long-tailed subset is drawn from, not from the test set (though one of
    CIFAR-100's is also there, under another label); a class of which the subset uses almost all has fewer, or none.
    """
    pool, _, counts = _pool(name, root, imbalance_ratio, profile, download=False)
    further = _further(pool, counts, per_class)
    if further is None:
        raise UserError(
            f"training on {name} leaves no sample at imbalance_ratio {imbalance_ratio:g}; take a larger one"
        )
    return further


def load_files(
    name: str,
    root: str | Path | None,
    preprocessing: "Preprocessing",
    *,
    imbalance_ratio: float = 100,
    profile: str = "exponential",
) -> "tuple[PictureFiles, PictureFiles, PictureFiles | None]":
    """Return the training, test and validation images of a data set in files, which are decoded when they are wanted.

    Args:
        name: Name of the data set.
        root: Folder of its files; by default the environment variable BALPOE_DATA.
        preprocessing: Preprocessing of the images.
        imbalance_ratio: Largest over smallest class count, where the files are cut to a long tail.
        profile: Profile of that tail.
    """
    from balpoe.data.loading.image_files import PictureFiles

    entry = _entry(name, in_memory=False)
    tail: dict[str, Any] = {"imbalance_ratio": imbalance_ratio, "profile": profile} if entry.files_are_cut else {}
    lists: BenchmarkLists = entry.loader()(name, root, **tail)
    train = PictureFiles(lists.train_paths, lists.train_targets, lists.class_names, preprocessing)
    test = PictureFiles(lists.test_paths, lists.test_targets, lists.class_names, preprocessing)
    if lists.validation_targets is None:
        return train, test, None
    return train, test, PictureFiles(lists.validation_paths, lists.validation_targets, lists.class_names, preprocessing)


def _long_tailed(pool: "Dataset", test: "Dataset", counts: list[int], validation: int) -> "tuple[Dataset, Dataset]":
    """What training sees of a pool, and what it is measured by."""
    from balpoe.data.long_tail import held_out_indices, long_tailed_indices

    if validation:
        kept, held_out = held_out_indices(pool.targets, counts, validation)
        return pool.subset(kept), pool.subset(held_out)
    return pool.subset(long_tailed_indices(pool.targets, counts)), test


def _further(pool: "Dataset", counts: list[int], per_class: int) -> "Dataset | None":
    """Samples of a pool beyond so many of each class; None where there are none, as without a long tail."""
    from balpoe.data.long_tail import unused_indices

    unused = unused_indices(pool.targets, counts, per_class)
    return pool.subset(unused) if len(unused) else None


def _pool(
    name: str, root: str | Path | None, imbalance_ratio: float, profile: str, download: bool
) -> "tuple[Dataset, Dataset, list[int]]":
    """The full training pool, the test set, and how many samples of each class the long tail keeps."""
    from balpoe.data.long_tail import long_tailed_counts

    pool, test = _entry(name, in_memory=True).loader()(name, root, download)
    counts = long_tailed_counts(len(pool.class_names), int(pool.class_counts.min()), imbalance_ratio, profile)
    return pool, test, counts


def _entry(name: str, in_memory: bool) -> DatasetEntry:
    known = {each: entry for each, entry in DATASETS.items() if entry.in_memory == in_memory}
    if name not in known:
        raise unknown_name("data set", name, known)
    return known[name]
