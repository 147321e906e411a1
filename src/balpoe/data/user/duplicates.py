"""Images that are there twice: the same file, or nearly the same image."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

__all__ = ["near_pairs", "same_digest"]

BITS = 64
MOST_COMPARISONS = 2**20
"""Comparisons held in memory."""


def same_digest(digests: Sequence[str]) -> list[list[int]]:
    """Return the rows of each digest that occurs more than once; an empty digest is nobody's.

    >>> same_digest(["f3", "07", "f3", "", ""])
    [[0, 2]]
    """
    rows: dict[str, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests):
        if digest:
            rows[digest].append(row)
    return [same for same in rows.values() if len(same) > 1]


def near_pairs(hashes_a: np.ndarray, hashes_b: np.ndarray, distance: int = 4) -> np.ndarray:
    """Return, for each row of b that has one within a distance, the nearest row of a: (pairs, 2), a then b.

    Of equally near rows the first. One pair for each row of b, not all of them: a thousand copies of one image would
    make a million. Two hashes that differ in at most d bits agree in at least one of d + 1 bands of bits, so that only
    hashes with a band in common are compared. A hash of zeros or of ones comes from an image without structure, says
    nothing, and is left out.

    Args:
        hashes_a: Hashes of one set of images, uint64.
        hashes_b: Hashes of another set.
        distance: Largest number of bits in which near ones differ.

    >>> near_pairs(np.array([0b1111, 0b1000], dtype=np.uint64), np.array([0, 0b1110], dtype=np.uint64), distance=1)
    array([[0, 1]])
    """
    a, row_of = np.unique(hashes_a, return_index=True)
    b, of_row = np.unique(hashes_b, return_inverse=True)
    told_a, told_b = _tells(a), _tells(b)
    nearest = np.full(len(b), -1, dtype=np.int64)
    nearest[told_b] = _nearest(a[told_a], row_of[told_a], b[told_b], distance)
    rows = nearest[of_row.reshape(-1)]
    found = np.flatnonzero(rows >= 0)
    return np.stack([rows[found], found], axis=1)


def _tells(hashes: np.ndarray) -> np.ndarray:
    return ~np.isin(hashes, np.array([0, 2**BITS - 1], dtype=np.uint64))


def _nearest(a: np.ndarray, row_of: np.ndarray, b: np.ndarray, distance: int) -> np.ndarray:
    """The row of the hash of a that is nearest to each of b, or -1; hashes are different ones."""
    beyond = (distance + 1) << 32
    best = np.full(len(b), beyond, dtype=np.int64)  # the distance above, the row below: the least is the nearest
    candidates = [_candidates(*bands) for bands in zip(_bands(a, distance + 1), _bands(b, distance + 1), strict=True)]
    candidates.sort(key=lambda found: int(found[2].sum()))
    for done, (order, start, count) in enumerate(candidates):
        # Whatever is nearer than `done` bits has had one of the bands before in common: who has found such a one rests.
        count = np.where(best >> 32 < done, 0, count)
        for rows in _pieces(count):
            first = np.cumsum(count[rows]) - count[rows]
            which = order[np.arange(count[rows].sum()) + np.repeat(start[rows] - first, count[rows])]
            apart = np.bitwise_count(a[which] ^ np.repeat(b[rows], count[rows])).astype(np.int64)
            best[rows] = np.minimum(best[rows], np.minimum.reduceat((apart << 32) + row_of[which], first))
    return np.where(best < beyond, best & (2**32 - 1), -1)


def _candidates(band_a: np.ndarray, band_b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows of a in the order of their band, and where in it those of each row of b begin, and how many they are."""
    order = np.argsort(band_a, kind="stable")
    start = np.searchsorted(band_a[order], band_b, side="left")
    return order, start, np.searchsorted(band_a[order], band_b, side="right") - start


def _bands(hashes: np.ndarray, number: int) -> Iterator[np.ndarray]:
    """Yield a hash's bits in so many bands."""
    edges = [BITS * band // number for band in range(number + 1)]
    for low, high in itertools.pairwise(edges):
        yield (hashes >> np.uint64(low)) & np.uint64((1 << (high - low)) - 1)


def _pieces(count: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows that have something to compare, so many at a time that the comparisons fit into memory."""
    rows = np.flatnonzero(count)
    piece = np.cumsum(count[rows]) // MOST_COMPARISONS
    yield from (part for part in np.split(rows, np.flatnonzero(np.diff(piece)) + 1) if len(part))
