"""Tiny-ImageNet-LT: a long tail cut from Tiny-ImageNet's 100,000 photographs of 64 x 64 pixels, 200 classes.

The folder is the official one, `tiny-imagenet-200`. Classes are ranked by their sorted ids, the first being the most
frequent; images of a class are ranked by their sorted file names, and `long_tailed_indices` says which of them stay:
the rule of CIFAR-LT, so that the subset depends on nothing but names. The test set is the official validation part,
for the official test part has no labels.
"""

import os
from pathlib import Path

import torch
from torch import Tensor

from balpoe.data.file_lists import BenchmarkLists
from balpoe.data.long_tail import long_tailed_counts, long_tailed_indices, unused_indices
from balpoe.errors import UserError
from balpoe.files import read_text

__all__ = ["read_tiny_imagenet"]

FOLDER = "tiny-imagenet-200"
VALIDATION = 25  # images of a class beyond the subset, to calibrate by
LAYOUT = f"the folder {FOLDER} with wnids.txt, train/ID/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt"
FROM = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"


def read_tiny_imagenet(
    name: str, root: str | Path | None = None, *, imbalance_ratio: float = 100, profile: str = "exponential"
) -> BenchmarkLists:
    """Return the images and labels of Tiny-ImageNet-LT; images beyond the subset are its validation part.

    Args:
        name: "tiny-imagenet-lt", for messages.
        root: The folder `tiny-imagenet-200`, or the one that holds it; by default the environment variable BALPOE_DATA.
        imbalance_ratio: Largest over smallest class count.
        profile: As for `long_tailed_counts`.

    >>> read_tiny_imagenet("tiny-imagenet-lt", "nowhere")
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: tiny-imagenet-lt: there is no wnids.txt in nowhere or in tiny-imagenet-200 below; ...
    """
    folder = _folder(name, root)
    ids = sorted(read_text(folder / "wnids.txt").split())
    images = [_images(name, folder, each) for each in ids]
    paths = [path for several in images for path in several]
    targets = torch.arange(len(ids)).repeat_interleave(torch.tensor([len(several) for several in images]))
    counts = long_tailed_counts(len(ids), min(map(len, images)), imbalance_ratio, profile)
    kept, others = long_tailed_indices(targets, counts), unused_indices(targets, counts, VALIDATION)
    test_paths, test_targets = _test_part(folder, ids)
    return BenchmarkLists(
        tuple(paths[row] for row in kept.tolist()), targets[kept], test_paths, test_targets, _names(folder, ids),
        tuple(paths[row] for row in others.tolist()), targets[others],
    )  # fmt: skip


def _folder(name: str, root: str | Path | None) -> Path:
    given = root or os.environ.get("BALPOE_DATA")
    if not given:
        raise UserError(f"{name}: say with --data-root (root=) or BALPOE_DATA where {FOLDER} is")
    for place in (Path(given), Path(given, FOLDER)):
        if (place / "wnids.txt").is_file():
            return place
    raise UserError(
        f"{name}: there is no wnids.txt in {given} or in {FOLDER} below; unpack {FROM} there, which makes {LAYOUT}"
    )


def _images(name: str, folder: Path, wnid: str) -> list[str]:
    place = folder / "train" / wnid / "images"
    try:
        found = sorted(file for file in os.listdir(place) if file.endswith(".JPEG"))
    except OSError as error:
        raise UserError(f"{name}: {place} cannot be read ({error.strerror}); unpack {FROM} again") from error
    if not found:
        raise UserError(f"{name}: there is no image in {place}; unpack {FROM} again")
    return [str(place / file) for file in found]


def _test_part(folder: Path, ids: list[str]) -> tuple[tuple[str, ...], Tensor]:
    """The official validation part, whose labels stand in a table: file, id, and a box, which is not used."""
    path, labels = folder / "val" / "val_annotations.txt", {wnid: label for label, wnid in enumerate(ids)}
    files, targets = [], []
    for number, line in enumerate(read_text(path).rstrip().split("\n"), start=1):
        cells = line.split("\t")
        if len(cells) < 2 or cells[1] not in labels:
            raise UserError(f"{path}, line {number}: expected a file and an id of wnids.txt, but got {line[:80]!r}")
        files.append(str(folder / "val" / "images" / cells[0]))
        targets.append(labels[cells[1]])
    return tuple(files), torch.tensor(targets)


def _names(folder: Path, ids: list[str]) -> tuple[str, ...]:
    """What the classes are called in words.txt, or their ids where it is missing or has a name twice."""
    path = folder / "words.txt"
    if not path.is_file():
        return tuple(ids)
    rows = (line.split("\t", 1) for line in read_text(path).split("\n"))
    words = {row[0]: row[1].split(",")[0].strip() for row in rows if len(row) == 2}
    names = tuple(words.get(wnid) or wnid for wnid in ids)
    return names if len(set(names)) == len(names) else tuple(ids)
