"""Features of a frozen trunk: computed once for each image, and kept by the image's contents."""

import contextlib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.data.loading.image_files import PictureFiles, raw_blocks
from balpoe.data.npz import read_archive
from balpoe.errors import UserError
from balpoe.files import cache_folder, write_file
from balpoe.networks import ExpertNetwork

__all__ = ["feature_data", "features_of"]

FEATURES_AT_ONCE = 64  # images of one forward pass
KEPT_TOGETHER = 2048  # images in a file of the cache: what an interrupt can lose


def feature_data(
    network: ExpertNetwork,
    data: PictureFiles,
    *,
    device: str = "cpu",
    workers: int = -1,
    progress: Callable[[int], object] = lambda done: None,
) -> Dataset:
    """Return a data set of the trunk's features, for `network.head()`: those of earlier calls are read, not computed.

    Args:
        network: Network with a frozen trunk.
        data: Images whose digests are known.
        device: Device to compute on.
        workers: Processes that decode.
        progress: Called with the number of images whose features are there.
    """
    folder = cache_folder() / "features" / _key(network, data.preprocessing)
    kept = _kept(folder)
    first_of = {digest: row for row, digest in reversed([*enumerate(data.digests)])}
    missing = [row for digest, row in first_of.items() if digest not in kept]
    progress(len(data) - len(missing))
    network.to(device).eval()
    for start in range(0, len(missing), KEPT_TOGETHER):
        rows = missing[start : start + KEPT_TOGETHER]
        part = data.subset(torch.tensor(rows))
        features = features_of(network, part, workers=workers, progress=progress)
        digests = [data.digests[row] for row in rows]
        _keep(folder, digests, features)
        kept.update(zip(digests, features, strict=True))
    network.to("cpu")
    features = torch.stack([kept[digest] for digest in data.digests])
    preprocessing = Preprocessing((features.shape[1],))
    return Dataset(features, data.targets, data.class_names, preprocessing, data.groups)


def features_of(
    network: ExpertNetwork, data: PictureFiles, *, workers: int = -1, progress: Callable[[int], object] = lambda _: None
) -> Tensor:
    """Return the trunk's features of all images, (samples, features), float32 on the CPU."""
    device = next(network.parameters()).device
    found = []
    with torch.inference_mode():
        for block in raw_blocks(data, FEATURES_AT_ONCE, workers):
            found.append(network.features(data.preprocessing.normalise(block.to(device))).float().cpu())
            progress(len(block))
    return torch.cat(found)


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
