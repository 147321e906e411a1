"""Series: images of one thing, such as the frames of a track, found by their names and confirmed by their looks.

A random split puts frames of one track on both sides, and the test then asks for what was seen. Names suggest which
images may belong together: a folder below the class, or what stands before the last number. That alone says little
(`image_0001.jpg`), so that the images are asked: is the nearest neighbour of an image, among those of its class, in its
own group far more often than at random? Thumbnails' pixels are what they are compared by, not a network's features:
light, background and framing make a series recognisable, they cost a moment, and they are the same for every network.
"""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from balpoe.data.loading.decode import read_image
from balpoe.data.user.groups import group_numbers, matched_groups
from balpoe.data.user.neighbours import Share, nearest, neighbour_accuracy, neighbour_share

__all__ = ["Series", "candidate_patterns", "find_series", "thumbnails"]

COMMON = 0.8
"""Share of the names that a pattern must fit."""
CUTS = 3
"""Parts that are cut from the end of a name, one after the other."""
MOST_IMAGES, MOST_IN_CLASS, MOST_IN_GROUP = 4000, 100, 5
"""Images that are looked at for one pattern: so many in all, of a class, and of a group in it."""
LEAST_IMAGES = 20
"""Images that are in a group with others while their class has another group: fewer tell nothing."""
SIDE = 8
"""Pixels of a thumbnail's side: more of them know frames that moved a little less well, and take longer."""
DATE = re.compile(r"(19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d(( at |[-_. T]*)[0-2]\d[-_.:]?[0-5]\d([-_.:]?[0-5]\d\d*)?)?")
NUMBERED = re.compile(r"[^\W_]*\d[^\W_]*")

Thumbnails = Callable[[np.ndarray], np.ndarray]
"""From rows to numbers (rows, values) that are close where images look alike."""


class Series(NamedTuple):
    """Images that belong together, and what says so."""

    pattern: str
    """What finds them: the value of --group."""
    groups: int
    share: float
    """Share of the images whose nearest neighbour in their class is of their group."""
    expected: float
    """That share where groups are drawn at random."""
    with_group: float
    """Balanced accuracy of the nearest neighbour, leaving one image out."""
    without_group: float
    """The same, leaving out all images of its group."""
    images: int
    """Number of images that were looked at."""
    strong: bool
    """Whether the evidence is strong enough to ask before going on."""

    def sentence(self) -> str:
        """Return what was found and what to do about it, in one sentence.

        >>> print(Series("(.*)_", 9, 0.9, 0.05, 0.91, 0.48, 400, False).sentence())  # doctest: +ELLIPSIS
        images may come in series: by their names in 9 groups, and for 90 % of 400 images the nearest neighbour ...
        """
        flag = f"--group {shlex.quote(self.pattern)}"
        shares = (self.share, self.expected, self.with_group, self.without_group)
        own, random, with_group, without = (f"{share:.0%}".replace("%", " %") for share in shares)
        return (
            f"images {'come' if self.strong else 'may come'} in series: by their names in {self.groups:,} groups, and "
            f"for {own} of {self.images:,} images the nearest neighbour in their class is of the same group, where "
            f"{random} would be at random; a nearest-neighbour check is right for {with_group} with images of the same "
            f"group in training, and for {without} without; give {flag} to keep each group on one side, or --no-group "
            "if the images are independent"
        )


class _Candidate(NamedTuple):
    pattern: str
    groups: np.ndarray
    """Number of each image's group."""
    units: np.ndarray
    """Number of each image's group within its class."""
    labels: Sequence[str]


class _Sample(NamedTuple):
    rows: np.ndarray
    targets: np.ndarray
    features: np.ndarray


def find_series(names: Sequence[str], targets: np.ndarray, thumbnails: Thumbnails, seed: int = 0) -> Series | None:
    """Return the series that images come in; None where neither names nor looks speak for any.

    The finest pattern with evidence is taken; a coarser one, if images outside of the finer groups speak for it, too.

    Args:
        names: Paths of the images, relative to their source.
        targets: Labels from 0, (images,).
        thumbnails: What images look like.
        seed: Seed of the sample and of the permutations.
    """
    found, finer, seen = None, None, list[np.ndarray]()
    candidates = sorted(_candidates(names, targets), key=lambda candidate: -candidate.units.max())
    for candidate in candidates:
        if any(np.array_equal(units, candidate.units) for units in seen):
            continue
        seen.append(candidate.units)
        random = np.random.default_rng(seed)
        sample = _sample(candidate, targets, thumbnails, random)
        share = _share(sample, candidate, None if finer is None else finer.units[sample.rows], random)
        if not share.is_beyond_random:
            continue
        strong = share.is_strong and _is_numbered(candidate, targets)
        if found is None or strong or not found.strong:
            finer = _over_classes(candidate, candidates, sample, random)
            found = _series(finer, sample, strong, random)
    return found


def thumbnails(paths: Sequence[str]) -> np.ndarray:
    """Return the middle of each image, tiny and in colour, as a row of numbers."""
    with ThreadPoolExecutor() as pool:
        return np.stack(list(pool.map(lambda path: read_image(path, SIDE, SIDE).numpy().reshape(-1), paths)))


def candidate_patterns(names: Sequence[str]) -> list[str]:
    r"""Return patterns that may say which images belong together, for --group; most of them say nothing.

    >>> candidate_patterns(["ash/00006_00012.ppm", "elm/00001_00003.ppm"])
    ['(.*)/', '(.*)_\\d+', '(.*)_']
    >>> candidate_patterns(["ash/patient12_frame3.png", "elm/patient2_frame1.png"])[1:3]
    ['(.*)_frame\\d+', '(.*)_']
    """
    some = names[:: max(1, len(names) // 2000)]
    stems = [name.rpartition("/")[2].rpartition(".")[0] for name in some]
    patterns = ["(.*)/"]
    before_numbers = [re.findall(r"(\D*)\d+", stem) for stem in stems]
    for cut in range(1, CUTS + 1):
        tails = Counter(tuple(texts[-cut:]) for texts in before_numbers if len(texts) > cut)
        patterns += ["(.*)" + "".join(rf"{_escaped(text)}\d+" for text in tail) for tail in _usual(tails, len(some))]
    for mark in "_-":
        patterns += [
            "(.*)" + ".*".join(mark * cut)
            for cut in range(1, CUTS + 1)
            if sum(stem.count(mark) >= cut for stem in stems) >= COMMON * len(some)
        ]
    words = Counter(word for name in some for word in set(re.findall(r"([^\W\d_]{2,}[_-]?)\d", name)))
    patterns += [rf"({word}\d+)" for word in _usual(words, len(some))]
    return list(dict.fromkeys(patterns))


def _usual(found: Counter, size: int) -> list:
    return [each for each, times in found.items() if times >= COMMON * size]


def _escaped(text: str) -> str:
    """Text as part of a pattern, without the needless backslashes of re.escape."""
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)


def _candidates(names: Sequence[str], targets: np.ndarray) -> Iterator[_Candidate]:
    """Yield the patterns that put images of a class into several groups of several images."""
    for pattern in candidate_patterns(names):
        labels = matched_groups(pattern, names)
        if sum(map(bool, labels)) < COMMON * len(names) or not _cuts_file_names(pattern, names, labels):
            continue
        groups = group_numbers(labels).numpy()
        units = np.unique(targets.astype(np.int64) * (groups.max() + 1) + groups, return_inverse=True)[1]
        size, of_class = np.bincount(units)[units], np.bincount(targets)[targets]
        telling = (size > 1) & (size < of_class)
        if telling.sum() >= max(LEAST_IMAGES, len(names) / 2):
            yield _Candidate(pattern, groups, units, labels)


def _cuts_file_names(pattern: str, names: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether what a pattern cuts off belongs to the file's name, not to a folder's."""
    if pattern == "(.*)/" or not pattern.startswith("(.*)"):
        return True
    return all(not label or label.count("/") == name.count("/") for label, name in zip(labels, names, strict=True))


def _is_numbered(candidate: _Candidate, targets: np.ndarray) -> bool:
    """Whether numbers tell groups apart, not days, on which anything may be photographed, nor words such as subclasses.

    What is left of the groups' names without dates must tell most groups apart, and without all numbers not even half.
    """
    first = np.unique(candidate.units, return_index=True)[1].tolist()
    named = [(int(targets[row]), candidate.labels[row]) for row in first]
    undated = {(target, DATE.sub("", label)) for target, label in named}
    wordy = {(target, NUMBERED.sub("", label)) for target, label in named}
    return len(wordy) <= len(named) / 2 < len(undated)


def _sample(candidate: _Candidate, targets: np.ndarray, thumbnails: Thumbnails, random: np.random.Generator) -> _Sample:
    """Some images of some groups of each class: of 100,000 images, single ones would have none of their group."""
    order = np.lexsort((random.random(candidate.units.max() + 1)[candidate.units], targets))
    units = candidate.units[order]
    starts = np.flatnonzero(np.diff(units, prepend=-1))
    classes: dict[int, list[int]] = {}
    for rows in np.split(order, starts[1:]):
        taken = classes.setdefault(int(targets[rows[0]]), [])
        if len(taken) < MOST_IN_CLASS:
            places = np.linspace(0, len(rows) - 1, min(len(rows), MOST_IN_GROUP)).round().astype(int)
            taken += np.sort(rows)[places].tolist()
    chosen: list[int] = []
    for label in random.permutation(list(classes)).tolist():
        chosen += classes[label] if len(chosen) < MOST_IMAGES else []
    rows = np.sort(np.array(chosen))
    features = thumbnails(rows).astype(np.float32)
    return _Sample(rows, targets[rows], features - features.mean(axis=0))


def _share(sample: _Sample, candidate: _Candidate, finer: np.ndarray | None, random: np.random.Generator) -> Share:
    """How often the nearest neighbour in the class, outside of the finer group, is of the candidate's group."""
    targets, below = sample.targets, np.arange(len(sample.rows)) if finer is None else finer
    neighbours = nearest(sample.features, lambda rows: (targets[rows, None] == targets) & (below[rows, None] != below))
    return neighbour_share(neighbours, candidate.units[sample.rows], targets, below, random)


def _over_classes(
    found: _Candidate, candidates: Sequence[_Candidate], sample: _Sample, random: np.random.Generator
) -> _Candidate:
    """The same groups without the class in their names, where neighbours in other classes speak for that."""
    targets = sample.targets
    for other in candidates:
        if other.groups.max() < found.groups.max() and np.array_equal(other.units, found.units):
            neighbours = nearest(sample.features, lambda rows: targets[rows, None] != targets)
            share = neighbour_share(neighbours, other.groups[sample.rows], targets, np.arange(len(targets)), random)
            return other if share.is_beyond_random else found
    return found


def _series(candidate: _Candidate, sample: _Sample, strong: bool, random: np.random.Generator) -> Series:
    groups, targets = candidate.groups[sample.rows], sample.targets
    share = _share(sample, candidate, None, random)
    several = np.bincount(np.unique(np.stack([targets, groups]), axis=1)[0])[targets] > 1
    with_group, without = (
        neighbour_accuracy(sample.features, targets, apart, several) for apart in (np.arange(len(groups)), groups)
    )
    number = int(candidate.groups.max()) + 1
    return Series(candidate.pattern, number, share.observed, share.expected, with_group, without, len(groups), strong)
