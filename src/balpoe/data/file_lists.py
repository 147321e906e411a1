"""The paper's large benchmarks, ImageNet-LT, iNaturalist 2018 and Places-LT, from the files that everybody uses.

A list is a text file whose lines are a path and a label; iNaturalist also has JSON files. Only they are read here, not
the images.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.errors import UserError, unknown_name
from balpoe.files import read_json, read_text

__all__ = ["BENCHMARKS", "BenchmarkLists", "read_benchmark"]

SPOT_CHECKS = 50  # images of a list whose files are looked for: all of them take a while on a network's disk
LONGEST = 80  # characters of a wrong line in a message


class Benchmark(NamedTuple):
    """What is known of a benchmark: its files, its size, and where to get it."""

    title: str
    sizes: tuple[int, int, int]
    """Classes, training images, test images."""
    lists: Mapping[str, str]
    """The names of the lists of the parts: train, test and perhaps validation."""
    folders: tuple[str, ...]
    """Folders in the root in which the lists may lie."""
    layout: str
    """Layout of the images in the root."""
    lists_from: str
    images_from: str
    json: Mapping[str, str] = {}
    """The names of files with annotations, read in place of the lists where they are there."""


OLTR = "https://github.com/zhmiao/OpenLongTailRecognition-OLTR"
BENCHMARKS = {
    "imagenet-lt": Benchmark(
        title="ImageNet-LT",
        sizes=(1000, 115_846, 50_000),
        lists={"train": "ImageNet_LT_train.txt", "test": "ImageNet_LT_test.txt", "validation": "ImageNet_LT_val.txt"},
        folders=("", "ImageNet_LT", "data_txt/ImageNet_LT"),
        layout="train/n01440764/*.JPEG and val/n01440764/*.JPEG",
        lists_from=OLTR,
        images_from="https://image-net.org (ILSVRC2012)",
    ),
    "inaturalist2018": Benchmark(
        title="iNaturalist 2018",
        sizes=(8142, 437_513, 24_426),
        lists={"train": "iNaturalist18_train.txt", "test": "iNaturalist18_val.txt"},
        folders=("", "iNaturalist18", "data_txt/iNaturalist18"),
        layout="train_val2018/Plantae/7477/*.jpg",
        lists_from="https://github.com/visipedia/inat_comp (2018: train2018.json and val2018.json)",
        images_from="https://github.com/visipedia/inat_comp (2018)",
        json={"train": "train2018.json", "test": "val2018.json"},
    ),
    "places-lt": Benchmark(
        title="Places-LT",
        sizes=(365, 62_500, 36_500),
        lists={"train": "Places_LT_train.txt", "test": "Places_LT_test.txt", "validation": "Places_LT_val.txt"},
        folders=("", "Places_LT", "Places_LT_v2", "data_txt/Places_LT", "data_txt/Places_LT_v2"),
        layout="the paths of the lists, such as data_256/a/airfield/*.jpg and val_256/*.jpg",
        lists_from=OLTR,
        images_from="http://places2.csail.mit.edu (Places365)",
    ),
}
"""By name, as recipes say them."""


@dataclass(frozen=True, eq=False)
class BenchmarkLists:
    """The images of a benchmark and their labels."""

    train_paths: tuple[str, ...]
    train_targets: Tensor
    test_paths: tuple[str, ...]
    test_targets: Tensor
    class_names: tuple[str, ...]
    validation_paths: tuple[str, ...] = ()
    """Empty where the benchmark has no validation part, or its list is not there."""
    validation_targets: Tensor | None = None


class _Rows(NamedTuple):
    """A list as it was read."""

    file: Path
    paths: list[str]
    targets: list[int]
    unit: str = "line"

    def place(self, row: int) -> str:
        """Return where a row is, for messages."""
        return f"{self.file}, {self.unit} {row + 1}"


def read_benchmark(name: str, root: str | Path | None = None, *, check_all: bool = False) -> BenchmarkLists:
    """Return the images and labels of a benchmark.

    Lists of other sizes than the published ones, such as a subset, are taken with a warning.

    Args:
        name: "imagenet-lt", "inaturalist2018" or "places-lt".
        root: Folder that the lists' paths start from, with the lists in it or in a usual folder below; by default
            the environment variable BALPOE_DATA.
        check_all: Whether every image is looked for, not only the first, the last and some between.

    >>> read_benchmark("imagenet-lt", "nowhere")
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: ImageNet-LT: nowhere is no folder; give --data-root (root=) the one with its images
    """
    if name not in BENCHMARKS:
        raise unknown_name("benchmark", name, BENCHMARKS)
    benchmark, folder = BENCHMARKS[name], _root(BENCHMARKS[name], root)
    annotated = bool(benchmark.json) and (folder / benchmark.json["train"]).is_file()
    parts, class_names = (_read_annotations if annotated else _read_lists)(benchmark, folder)
    _check_labels(parts)
    _warn_of_sizes(benchmark, parts, len(class_names))
    for part in ("train", "test"):
        _check_images(benchmark, folder, parts[part], check_all)
    paths = {part: tuple(str(folder / path) for path in rows.paths) for part, rows in parts.items()}
    targets = {part: torch.tensor(rows.targets) for part, rows in parts.items()}
    return BenchmarkLists(
        paths["train"], targets["train"], paths["test"], targets["test"], class_names,
        paths.get("validation", ()), targets.get("validation"),
    )  # fmt: skip


def _root(benchmark: Benchmark, root: str | Path | None) -> Path:
    given = root or os.environ.get("BALPOE_DATA")
    if not given:
        raise UserError(f"{benchmark.title}: say with --data-root (root=) or BALPOE_DATA where its images are")
    if not os.path.isdir(given):
        raise UserError(f"{benchmark.title}: {given} is no folder; give --data-root (root=) the one with its images")
    return Path(given)


def _read_lists(benchmark: Benchmark, folder: Path) -> tuple[dict[str, _Rows], tuple[str, ...]]:
    found = {part: _found(folder, benchmark.folders, name) for part, name in benchmark.lists.items()}
    for part in ("train", "test"):
        if found[part] is None:
            raise _missing(benchmark, folder, benchmark.lists[part])
    parts = {part: _read_list(path) for part, path in found.items() if path is not None}
    return parts, _folder_names(parts["train"])


def _found(folder: Path, below: Sequence[str], name: str) -> Path | None:
    places = (folder / place / name for place in below)
    return next((place for place in places if place.is_file()), None)


def _missing(benchmark: Benchmark, folder: Path, file: str) -> UserError:
    return UserError(
        f"{benchmark.title}: there is no {file} in {folder} or a usual folder below; take the lists from "
        f"{benchmark.lists_from} and the images from {benchmark.images_from}, so that {folder} holds "
        f"{benchmark.layout}"
    )


def _read_list(path: Path) -> _Rows:
    """Read lines of a path, a space and a label."""
    rows = _Rows(path, [], [])
    for line in read_text(path).rstrip().split("\n"):
        words = line.rsplit(maxsplit=1)
        if len(words) != 2 or not _is_label(words[1]):
            shown = repr(line if len(line) <= LONGEST else f"{line[:LONGEST]}...")
            raise UserError(
                f"{rows.place(len(rows.paths))}: expected a path, a space and a label from 0, but got {shown}; "
                "fix the line, or fetch the list again"
            )
        rows.paths.append(words[0].strip())
        rows.targets.append(int(words[1]))
    return rows


def _is_label(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 10


def _folder_names(rows: _Rows) -> tuple[str, ...]:
    """Name each class after the folders of its first image, without the topmost and those of one letter (Places)."""
    first: dict[int, str] = {}
    for path, label in zip(rows.paths, rows.targets, strict=True):
        first.setdefault(label, path)
    labels = sorted(first)
    names = tuple("/".join(filter(_names_a_class, PurePosixPath(first[label]).parts[1:-1])) for label in labels)
    return names if len(set(names)) == len(names) else tuple(str(label) for label in labels)


def _names_a_class(folder: str) -> bool:
    return len(folder) > 1 or folder.isdigit()


def _read_annotations(benchmark: Benchmark, folder: Path) -> tuple[dict[str, _Rows], tuple[str, ...]]:
    if not (folder / benchmark.json["test"]).is_file():
        raise _missing(benchmark, folder, benchmark.json["test"])
    found = {part: _read_annotation_file(folder / name) for part, name in benchmark.json.items()}
    names = found["train"][1]
    labels = {category: label for label, category in enumerate(sorted(names))}
    parts = {part: _labelled(rows, labels) for part, (rows, _) in found.items()}
    return parts, tuple(names[category] for category in labels)


def _labelled(rows: _Rows, labels: Mapping[int, int]) -> _Rows:
    """Put labels from 0 in the place of categories."""
    for row, category in enumerate(rows.targets):
        if category not in labels:
            raise UserError(
                f"{rows.place(row)}: category {category} is not one of the training file's; fetch both again"
            )
    return rows._replace(targets=[labels[category] for category in rows.targets])


def _read_annotation_file(path: Path) -> tuple[_Rows, dict[int, str]]:
    """Read images with the identity of their category, and the categories' names."""
    value = read_json(path)
    try:
        files = {image["id"]: str(image["file_name"]) for image in value["images"]}
        names = {int(category["id"]): str(category["name"]) for category in value["categories"]}
        images = [files[annotation["image_id"]] for annotation in value["annotations"]]
        categories = [int(annotation["category_id"]) for annotation in value["annotations"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path} is not made like the annotations of iNaturalist 2018, lists of images, annotations and categories "
            f"({type(error).__name__}: {error}); fetch it again"
        ) from error
    return _Rows(path, images, categories, "annotation"), names


def _check_labels(parts: Mapping[str, _Rows]) -> None:
    """Refuse labels that do not count from 0 without a gap in training, and others in the other parts."""
    for rows in parts.values():
        if not rows.paths:
            raise UserError(f"{rows.file} names no image; fetch it again")
    train, present = parts["train"], set(parts["train"].targets)
    last, gap = max(present), next((label for label in range(len(present)) if label not in present), None)
    if gap is not None:
        raise UserError(
            f"{train.file} has no image of label {gap} but one of label {last}; labels count from 0, and each class "
            "needs an image to train on"
        )
    for rows in parts.values():
        for row, label in enumerate(rows.targets):
            if label not in present:
                raise UserError(f"{rows.place(row)}: label {label} is not in {train.file}, which has 0 to {last}")


def _warn_of_sizes(benchmark: Benchmark, parts: Mapping[str, _Rows], num_classes: int) -> None:
    sizes = (num_classes, len(parts["train"].paths), len(parts["test"].paths))
    if sizes != benchmark.sizes:
        words = "{:,} classes, {:,} training and {:,} test images"
        warnings.warn(
            f"{benchmark.title} has {words.format(*benchmark.sizes)}, but these files have {words.format(*sizes)}: "
            "results do not compare with published ones",
            stacklevel=3,
        )


def _check_images(benchmark: Benchmark, folder: Path, rows: _Rows, check_all: bool) -> None:
    """Look for the first and the last image, and for some between."""
    step = 1 if check_all else max(1, len(rows.paths) // SPOT_CHECKS)
    last = len(rows.paths) - 1
    chosen = sorted({*range(0, last, step), last})
    absent = [row for row in chosen if not os.path.isfile(folder / rows.paths[row])]
    if absent:
        raise UserError(
            f"{rows.place(absent[0])}: there is no {folder / rows.paths[absent[0]]} (missing are {len(absent):,} of "
            f"{len(chosen):,} images looked for); take them from {benchmark.images_from}, so that {folder} holds "
            f"{benchmark.layout}"
        )
