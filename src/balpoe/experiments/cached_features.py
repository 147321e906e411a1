"""Features of a frozen trunk: computed once for each image, and kept by the image's contents."""

import contextlib
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.data.loading.image_files import Samples, raw_blocks
from balpoe.data.npz import read_archive
from balpoe.errors import UserError
from balpoe.files import cache_folder, write_file
from balpoe.networks import ExpertNetwork
from balpoe.networks.memory import forward_that_fits
from balpoe.training.interrupts import Interrupt

__all__ = ["feature_data"]

FEATURES_AT_ONCE = 64  # images of one forward pass
SECONDS_BETWEEN_FILES = 5.0  # what a crash can lose; an interrupt loses nothing


def feature_data(
    network: ExpertNetwork,
    data: Samples,
    *,
    device: str = "cpu",
    workers: int = -1,
    progress: Callable[[int], object] = lambda done: None,
) -> Dataset:
    """Return a data set of the trunk's features, for `network.head()`: those of earlier calls are read, not computed.

    They are written every few seconds, and whatever ends the work.

    Args:
        network: Network with a frozen trunk.
        data: Image files whose digests are known, or images in memory, whose features are not kept.
        device: Device to compute on.
        workers: Processes that decode.
        progress: Called with the number of images whose features are there.
    """
    if isinstance(data, Dataset):
        return _features_in_memory(network, data, device, progress)
    folder = cache_folder() / "features" / _key(network, data.preprocessing)
    kept = _kept(folder)
    first_of = {digest: row for row, digest in reversed([*enumerate(data.digests)])}
    missing = [row for digest, row in first_of.items() if digest not in kept]
    progress(len(data) - len(missing))
    if missing:
        network.to(device).eval()
        part, done = data.subset(torch.tensor(missing)), 0
        with Interrupt() as interrupt, _Writer(folder) as writer:
            for features in _feature_blocks(network, part, workers, interrupt):
                digests = part.digests[done : done + len(features)]
                kept.update(zip(digests, features, strict=True))
                writer.add(digests, features)
                done += len(features)
                progress(len(features))
        network.to("cpu")
    return _of_features(torch.stack([kept[digest] for digest in data.digests]), data)


def _of_features(features: Tensor, data: Samples) -> Dataset:
    return Dataset(features, data.targets, data.class_names, Preprocessing((features.shape[1],)), data.groups)


def _features_in_memory(
    network: ExpertNetwork, data: Dataset, device: str, progress: Callable[[int], object]
) -> Dataset:
    network.to(device).eval()
    found = []
    with Interrupt() as interrupt:
        for features in _feature_blocks(network, data, 0, interrupt):
            found.append(features)
            progress(len(features))
    network.to("cpu")
    return _of_features(torch.cat(found), data)


def _feature_blocks(network: ExpertNetwork, data: Samples, workers: int, interrupt: Interrupt) -> Iterator[Tensor]:
    """Yield the trunk's features, float32 on the CPU; an interrupt ends it between two blocks."""
    device = next(network.parameters()).device

    def forward(block: Tensor) -> Tensor:
        return network.features(data.preprocessing.normalise(block.to(device))).float().cpu()

    try:
        for block in raw_blocks(data, FEATURES_AT_ONCE, workers):
            with torch.inference_mode():
                features = forward_that_fits(forward, block)
            yield features
            if interrupt.requested:
                raise KeyboardInterrupt
    except RuntimeError as error:
        if interrupt.requested:  # the signal reached the processes that decode as well, and ended them
            raise KeyboardInterrupt from error
        raise


class _Writer:
    """Features on their way into files of the cache: one every few seconds, the last one at whatever ends the work."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.written = folder, time.monotonic()
        self.digests: list[str] = []
        self.features: list[Tensor] = []

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.write()

    def add(self, digests: Sequence[str], features: Tensor) -> None:
        """Take some more."""
        self.digests += digests
        self.features.append(features)
        if time.monotonic() - self.written >= SECONDS_BETWEEN_FILES:
            self.write()

    def write(self) -> None:
        """Write what came since the last file."""
        if self.features:
            _keep(self.folder, self.digests, torch.cat(self.features))
        self.digests, self.features, self.written = [], [], time.monotonic()


def _key(network: ExpertNetwork, preprocessing: Preprocessing) -> str:
    """Tell trunks and ways to prepare images apart."""
    # The modules as well: two models may have tensors of the same shapes, and differ in padding or activation.
    checksum = zlib.crc32(f"{preprocessing}{network.trunk}".encode())
    for tensor in network.trunk.state_dict().values():
        checksum = zlib.crc32(tensor.cpu().contiguous().numpy().tobytes(), checksum)
    return f"{checksum:08x}"


def _kept(folder: Path) -> dict[str, Tensor]:
    """The features of earlier calls, by digest; a file that is damaged is as good as none."""
    kept: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.npz")):
        try:
            arrays = read_archive(path, ("digests", "features"))
            kept.update(zip(arrays["digests"].tolist(), torch.from_numpy(arrays["features"]), strict=True))
        except (UserError, KeyError, ValueError, TypeError):
            path.unlink(missing_ok=True)
    return kept


def _keep(folder: Path, digests: Sequence[str], features: Tensor) -> None:
    name = f"{zlib.crc32(''.join(digests).encode()):08x}-{len(digests)}.npz"
    with contextlib.suppress(UserError):  # nothing is lost but time: they are computed again
        write_file(folder / name, lambda stream: np.savez(stream, digests=np.array(digests), features=features.numpy()))
