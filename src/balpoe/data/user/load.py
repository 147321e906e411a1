"""Own data: images or features at a path, looked through, split, and what there is to say about them.

`balpoe train FOLDER` is a recipe like any other, with `dataset = "own"` and the path in `data_root`. Its files are
listed (`labelled_images`), and each is looked through once (`inspection`: whether it can be read, its digest, a hash of
its looks; kept by path, size and time). Where nothing is known of groups, series are looked for (`series`). Then they
are split; copies and groups stay on one side. The checksum of it all is the recipe's `data_version`, so that changed
files make another run. The digests also find the features of a frozen trunk again: only images that were added are
computed.
"""

import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.data.loading.image_files import PictureFiles, Samples
from balpoe.data.user.class_names import capitals_notes, some_of
from balpoe.data.user.duplicates import near_pairs, same_digest
from balpoe.data.user.features import FeaturesFile, FeaturesPart, read_features
from balpoe.data.user.groups import ARRAY, COLUMN, NO_GROUPS, PATTERN, TABLE, group_notes, group_numbers, torn_groups
from balpoe.data.user.inspection import Inspection, inspect
from balpoe.data.user.labelled_images import Listing, read_listing
from balpoe.data.user.series import Series, find_series, thumbnails
from balpoe.data.user.split import evidence_lack, some_classes, split_rows, validation_note
from balpoe.errors import UserError
from balpoe.files import cache_folder, holds_features
from balpoe.method.intervals import evidence_counts
from balpoe.progress import CountProgress

__all__ = ["NAMED", "UserData", "load_user_data"]

NAMED = 10  # files that a note names


@dataclass(frozen=True, eq=False)
class UserData:
    """Somebody's data, ready to train on."""

    train: Samples
    test: Samples
    version: str
    """Changes when files, what is in them, or labels do."""
    notes: tuple[str, ...] = ()
    """Sentences on what their owner should know."""
    unreadable: tuple[str, ...] = ()
    """What is wrong with each file that was left out."""
    series: Series | None = None
    """Series that the images seem to come in, where they were looked for and nothing is known of groups."""
    validation: Samples | None = None
    """A part val beside train and test, which neither of them has; for calibration."""

    @property
    def train_groups(self) -> Tensor | None:
        """Number of each training sample's group, (samples,); None where nothing is known of groups."""
        return self.train.groups

    @property
    def test_groups(self) -> Tensor | None:
        """Number of each test sample's group."""
        return self.test.groups


def load_user_data(
    path: str | Path,
    preprocessing: Preprocessing | None = None,
    *,
    group: str = "",
    test_fraction: float = 0.2,
    skip_unreadable: bool = False,
    look_for_series: bool = False,
    progress: bool = False,
) -> UserData:
    """Return the training and the test part of own data: those that it comes with, or a split that spares rare classes.

    Args:
        path: A folder with a subfolder for each class, a .csv, .tsv or .parquet of paths and labels, or features (.npz,
            .npy).
        preprocessing: Size that images are brought to; by default 224 pixels.
        group: A pattern on file names: what it finds (a patient, say) is never split. "column:NAME" for a table's
            column; "none" where samples are independent, whatever the data say of groups.
        test_fraction: Share that is held out where the data have no test part.
        skip_unreadable: Whether to go on without files that are not whole images.
        look_for_series: Whether to look for series where nothing is said of groups.
        progress: Whether to show how many files are looked through.
    """
    if holds_features(path):
        if group not in ("", NO_GROUPS):
            raise UserError(f"--group {group!r} is a pattern on file names; give features an array groups instead")
        found = read_features(path)
        return _user_features(found.without_groups() if group == NO_GROUPS else found, test_fraction)
    preprocessing = preprocessing or Preprocessing((3, 224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256)
    listing = read_listing(path, group=group)
    with CountProgress("looking through the files", len(listing), progress) as count:
        inspections = inspect(listing.paths, progress=count.reach, cache=cache_folder() / "inspections")
    notes = [*listing.notes]
    notes += [f"left out, because they are no images: {listing.ignored:,} files"] if listing.ignored else []
    unreadable = tuple(inspection.error for inspection in inspections if inspection.error)
    listing, inspections = _readable(listing, inspections, skip_unreadable)
    notes += [f"left out, because they cannot be read: {len(unreadable):,} files"] if unreadable else []
    notes += [f"left out: {error}" for error in unreadable[:NAMED]]
    unknown = listing.groups is None and group != NO_GROUPS
    series = _series(listing) if look_for_series and unknown else None
    digests = [inspection.digest for inspection in inspections]
    copies = same_digest(digests)
    train, test, validation = _parts(listing, digests, copies, test_fraction)
    apart = set(validation.tolist())
    copies = [rest for rows in copies if len(rest := [row for row in rows if row not in apart]) > 1]
    _check_classes(listing.targets[train], listing.class_names)
    notes += _copy_notes(listing, copies, test) + _near_notes(listing, inspections, train, test, hint=unknown)
    groups = None if listing.groups is None else group_numbers(listing.groups)
    files = PictureFiles(listing.paths, listing.targets, listing.class_names, preprocessing, digests, groups)
    said_by = PATTERN if group and not group.startswith(COLUMN) else TABLE
    notes += group_notes(listing.groups, listing.targets, listing.class_names, said_by) if listing.groups else []
    notes += capitals_notes(listing.labels) + _evidence_notes(files.subset(test))
    version = f"{zlib.crc32(''.join((listing.version(), *digests)).encode()):08x}"
    measured, held_out = files.subset(test), files.subset(validation) if len(validation) else None
    return UserData(files.subset(train), measured, version, tuple(notes), unreadable, series, held_out)


def _series(listing: Listing) -> Series | None:
    """The series that training images come in, if names and looks say so."""
    rows = [row for row in range(len(listing)) if listing.parts is None or listing.parts[row] == "train"]
    paths = [listing.paths[row] for row in rows]
    names = [path.removeprefix(os.path.join(listing.root, "")) for path in paths]
    return find_series(names, listing.targets[rows].numpy(), lambda chosen: thumbnails([paths[row] for row in chosen]))


def _user_features(found: FeaturesFile, test_fraction: float) -> UserData:
    groups, notes = found.train.groups, []
    if found.validation:
        notes.append(validation_note(len(found.validation), "samples", tested=found.test is not None))
    notes += group_notes(groups, found.targets(found.train), found.class_names, ARRAY) if groups else []
    parts = _feature_parts(found, test_fraction)
    notes += torn_groups(parts[0].groups or (), parts[1].groups or ())
    _check_classes(found.targets(parts[0]), found.class_names)
    train, test, *validation = _numbered(found, parts)
    notes += capitals_notes([label for part in parts for label in part.labels]) + _evidence_notes(test)
    return UserData(train, test, found.version(), tuple(notes), validation=validation[0] if validation else None)


def _feature_parts(found: FeaturesFile, test_fraction: float) -> list[FeaturesPart]:
    """Training, test and, beside these, validation: what the file has, or a split."""
    train = found.train
    if parts := [part for part in (found.test, found.validation) if part]:
        return [train, *parts]
    digests = [hashlib.blake2b(row.tobytes()).hexdigest() for row in train.features.numpy()]
    rows = split_rows(
        found.targets(train), train.groups, test_fraction=test_fraction, together=same_digest(digests), names=digests
    )
    return [train.subset(each) for each in rows]


def _numbered(found: FeaturesFile, parts: Sequence[FeaturesPart]) -> list[Dataset]:
    """The parts with numbers for classes and groups, all of them normalised as the first is."""
    numbers = group_numbers([group for part in parts for group in part.groups or ()])
    groups = numbers.split([len(part.groups or ()) for part in parts])
    preprocessing = Dataset(parts[0].features, found.targets(parts[0])).preprocessing
    return [
        Dataset(part.features, found.targets(part), found.class_names, preprocessing, each if part.groups else None)
        for part, each in zip(parts, groups, strict=True)
    ]


def _readable(listing: Listing, inspections: list[Inspection], skip: bool) -> tuple[Listing, list[Inspection]]:
    """The rows whose images are whole, if others may be left out."""
    errors = [inspection.error for inspection in inspections if inspection.error]
    if not errors:
        return listing, inspections
    more = f" and {len(errors) - 1:,} more, which balpoe data names" if len(errors) > 1 else ""
    if not skip:
        raise UserError(f"{errors[0]} (--skip-unreadable goes on without it{more})")
    whole = [row for row, inspection in enumerate(inspections) if not inspection.error]
    if not whole:
        raise UserError(f"no image can be read: {errors[0]}")
    return listing.subset(whole), [inspections[row] for row in whole]


def _parts(
    listing: Listing, digests: Sequence[str], copies: Sequence[Sequence[int]], test_fraction: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of training, test and validation; copies of one image stay on one side of a split that is made here."""
    if listing.parts is None:
        train, test = split_rows(
            listing.targets, listing.groups, test_fraction=test_fraction, together=copies, names=digests
        )
        return train, test, torch.zeros(0, dtype=torch.int64)
    places = {
        name: [row for row, part in enumerate(listing.parts) if part == name] for name in ("train", "test", "val")
    }
    train, test, validation = (torch.tensor(rows, dtype=torch.int64) for rows in places.values())
    return train, test, validation


def _check_classes(targets: Tensor, class_names: Sequence[str]) -> None:
    missing = torch.bincount(targets, minlength=len(class_names)) == 0
    if bool(missing.any()):
        names = some_of([class_names[label] for label in missing.nonzero().flatten().tolist()])
        raise UserError(f"there is no training sample of {names}; add some, or remove the class")


def _copy_notes(listing: Listing, copies: Sequence[Sequence[int]], test: Tensor) -> list[str]:
    paths, held_out, notes = listing.paths, set(test.tolist()), []
    if copies:
        pairs = _some([f"{paths[rows[1]]} is {paths[rows[0]]}" for rows in copies])
        notes.append(f"copies of another file: {sum(map(len, copies)) - len(copies):,} ({pairs})")
    torn = [rows for rows in copies if len({listing.labels[row] for row in rows}) > 1]
    if torn:
        pairs = _some([f"{paths[rows[0]]} and {paths[rows[-1]]}" for rows in torn])
        notes.append(f"the same image in more than one class, so that a label is wrong: {len(torn):,} ({pairs})")
    across = [_sides(rows, held_out) for rows in copies if 0 < len(held_out.intersection(rows)) < len(rows)]
    if across:
        pairs = _some([f"{paths[b]} is {paths[a]} of training" for a, b in across], NAMED)
        notes.append(f"the same image in training and in the test, which flatters: {len(across):,} ({pairs})")
    return notes


def _near_notes(
    listing: Listing, inspections: Sequence[Inspection], train: Tensor, test: Tensor, hint: bool
) -> list[str]:
    hashes = np.array([int(inspection.pixels) for inspection in inspections], dtype=np.uint64)
    digests = [inspection.digest for inspection in inspections]
    rows = ((int(train[a]), int(test[b])) for a, b in near_pairs(hashes[train.numpy()], hashes[test.numpy()]).tolist())
    pairs = [(a, b) for a, b in rows if digests[a] != digests[b]]
    if not pairs:
        return []
    named = _some([f"{listing.paths[b]} and {listing.paths[a]}" for a, b in pairs])
    advice = "; if they are series of one thing, give --group" if hint else ""
    return [f"almost the same image in training and in the test: {len(pairs):,} ({named}){advice}"]


def _sides(rows: Sequence[int], held_out: set[int]) -> tuple[int, int]:
    """A row of training and one of the test among rows of one image."""
    return next(row for row in rows if row not in held_out), next(row for row in rows if row in held_out)


def _evidence_notes(test: Samples) -> list[str]:
    """Which classes the test says nothing about, or too little."""
    grouped = test.groups is not None
    counts = evidence_counts(test.targets, len(test.class_names), test.groups)
    untested = [test.class_names[label] for label in (counts == 0).nonzero().flatten().tolist()]
    notes = [evidence_lack(counts, test.class_names, grouped=grouped)]
    if grouped and untested:
        notes.append(f"classes without a test group, of which nothing is measured: {some_classes(untested)}")
    return list(filter(None, notes))


def _some(names: Sequence[str], most: int = 3) -> str:
    """The first of some phrases, which are not to be quoted as names are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
