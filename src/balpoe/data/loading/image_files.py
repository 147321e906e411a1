"""Labelled images on disk: decoded when they are wanted, by processes of their own."""

import os
import signal
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.data.loading.decode import ResizedCrop, Source, read_crop, read_image
from balpoe.data.loading.epoch_plan import sample_rng
from balpoe.errors import UserError
from balpoe.method.priors import class_counts

__all__ = ["ImageLoader", "PictureFiles", "Samples", "decoded", "default_workers", "raw_blocks", "usable_cores"]


SECONDS_AFTER_SIGTERM = 20
"""What a process that decodes lives on for."""


class PictureFiles:
    """Image files, labels and class names: like a `Dataset`, for more than memory holds.

    Args:
        paths: Paths of the images.
        targets: Integer labels from 0, (samples,).
        class_names: A name for each class.
        preprocessing: Size that images are brought to, and the statistics that normalise them.
        digests: Digests of the files' contents, where they are known: cached features are found by them.
        groups: Number of each image's group, (samples,), which is kept whole; None where nothing is known of groups.

    >>> data = PictureFiles(["a.jpg", "b.jpg"], [1, 0], ("ash", "birch"), Preprocessing((3, 224, 224), resize=256))
    >>> len(data), data.class_counts.tolist()
    (2, [1, 1])
    """

    def __init__(
        self,
        paths: Sequence[str],
        targets: Any,
        class_names: Sequence[str],
        preprocessing: Preprocessing,
        digests: Sequence[str] = (),
        groups: Any = None,
    ) -> None:
        self.paths, self.digests = list(paths), list(digests)
        self.targets: Tensor = torch.as_tensor(targets).long()
        self.class_counts = class_counts(self.targets, len(class_names))
        self.class_names, self.preprocessing = tuple(class_names), preprocessing
        self.groups: Tensor | None = None if groups is None else torch.as_tensor(groups)
        if len(self.paths) != len(self.targets):
            raise UserError(f"there are {len(self.paths)} images but {len(self.targets)} labels")

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one raw image and its label, as torch's DataLoader wants them."""
        return decoded(self.paths[index], self.preprocessing), self.targets[index]

    def checksum(self) -> int:
        """Return a number that tells this data set from another, wherever its folder lies."""
        names = "\0".join(self.digests or (os.path.basename(path) for path in self.paths))
        return zlib.crc32(names.encode(errors="surrogatepass"), zlib.crc32(self.targets.numpy().tobytes()))

    def subset(self, indices: Tensor) -> "PictureFiles":
        """Return the given images, with the same names and preprocessing."""
        rows = indices.tolist()
        paths, digests = ([values[row] for row in rows] if values else [] for values in (self.paths, self.digests))
        groups = None if self.groups is None else self.groups[indices]
        return PictureFiles(paths, self.targets[indices], self.class_names, self.preprocessing, digests, groups)


Samples = Dataset | PictureFiles
"""What a network is trained on and measured with."""


class ImageLoader:
    """Blocks of raw images, decoded ahead by processes that stay from epoch to epoch.

    Args:
        data: Files to read.
        crop: Distribution of the part that is read in each epoch; None for the middle.
        seed: Seed of the crops.
        workers: Number of processes; 0 for this one, -1 for as many as the machine allows.
        pin: Whether the images go on to a GPU.
    """

    def __init__(
        self,
        data: PictureFiles,
        crop: ResizedCrop | None = None,
        seed: int = 0,
        workers: int = -1,
        pin: bool = False,
    ) -> None:
        self.keys = _Keys()
        workers = default_workers() if workers < 0 else workers
        settings: dict[str, Any] = {"prefetch_factor": 2, "persistent_workers": True} if workers else {}
        self.loader: DataLoader[Tensor] = DataLoader(
            _Reader(data.paths, data.preprocessing, crop, seed),  # type: ignore[arg-type]
            batch_size=None, sampler=self.keys, num_workers=workers, pin_memory=pin, worker_init_fn=_begin,
            generator=torch.Generator(), **settings,  # or each pass would draw from the one that first weights are from
        )  # fmt: skip

    def blocks(self, epoch: int, blocks: Iterable[Sequence[int]]) -> Iterator[Tensor]:
        """Yield uint8 images (rows, channels, height, width) for each block of rows, in order."""
        self.keys.values = [(epoch, list(rows)) for rows in blocks]
        try:
            for block in self.loader:
                if isinstance(block, str):
                    raise UserError(block)
                yield block
        except Exception:
            del self.loader  # its processes end with it, and not only when the error is forgotten, which knows of us
            raise


def raw_blocks(data: Samples, size: int, workers: int = -1) -> Iterator[Tensor]:
    """Yield the raw samples of a data set, in order, so many at a time."""
    if isinstance(data, Dataset):
        yield from data.images.split(size)
        return
    starts = range(0, len(data), size)
    yield from ImageLoader(data, workers=min(default_workers() if workers < 0 else workers, len(starts) - 1)).blocks(
        0, (range(start, min(start + size, len(data))) for start in starts)
    )


def usable_cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_workers() -> int:
    """Return how many processes may decode here: a processor is left to the work itself."""
    return max(1, min(usable_cores() - 1, 16))


class _Keys:
    """What the loader is to read next; torch reads it anew in each epoch."""

    def __init__(self) -> None:
        self.values: list[tuple[int, list[int]]] = []

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)


class _Reader:
    """Reads one block: what a worker process does."""

    def __init__(self, paths: list[str], preprocessing: Preprocessing, crop: ResizedCrop | None, seed: int) -> None:
        self.paths, self.preprocessing, self.crop, self.seed = paths, preprocessing, crop, seed

    def __getitem__(self, key: tuple[int, list[int]]) -> Tensor | str:
        """Return the images, or what is wrong with one: raised in a worker, it would come with the worker's trace."""
        epoch, rows = key
        try:
            return torch.stack([self._image(epoch, row) for row in rows])
        except UserError as error:
            return str(error)

    def _image(self, epoch: int, row: int) -> Tensor:
        if self.crop is None:
            return decoded(self.paths[row], self.preprocessing)
        rng, wanted = sample_rng(self.seed, epoch, "crop", row), self.preprocessing
        return read_crop(self.paths[row], wanted.size[-1], self.crop, rng, wanted.interpolation)


def _begin(worker: int) -> None:
    """Leave a Ctrl-C or a SIGTERM that reaches all processes to the one that trains: it finishes its step and saves.

    A SIGTERM may be meant for this process alone, too: it then ends a little later.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(SECONDS_AFTER_SIGTERM))


def decoded(source: Source, preprocessing: Preprocessing) -> Tensor:
    """Return an image as a network with this preprocessing is shown it, uint8 (3, height, width)."""
    side = preprocessing.size[-1]
    return read_image(source, side, preprocessing.resize or side, preprocessing.interpolation)
