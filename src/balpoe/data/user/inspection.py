"""One pass over all image files before training begins: which can be read, how large they are, which are alike."""

import contextlib
import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from balpoe.data.loading.decode import read_thumbnail
from balpoe.data.loading.image_files import usable_cores
from balpoe.errors import UserError
from balpoe.files import read_text, write_text

__all__ = ["Inspection", "difference_hash", "inspect"]

FILES_AT_ONCE = 256  # files that wait for a thread at a time; a million of them would fill the memory

CACHE_NAME = "inspection-1.jsonl"  # counted up when an Inspection means something else than before


class Inspection(NamedTuple):
    """What was found in one image file; with an error, the other fields say nothing.

    >>> Inspection(error="x.jpg is empty; replace it or leave it out").width
    0
    """

    width: int = 0
    """Width as seen, after the turn that an EXIF entry asks for."""
    height: int = 0
    digest: str = ""
    """Digest of the file's bytes (BLAKE2b, 128 bits, hexadecimal): equal for copies of one file."""
    pixels: int = 0
    """Hash of the image as seen (64 bits, see difference_hash): alike for images that look alike."""
    error: str = ""
    """One sentence when the file cannot be read; otherwise empty."""


_Key: TypeAlias = tuple[str, int, int]  # path, bytes and time of the last change


def inspect(
    paths: Sequence[str | Path],
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
    cache: Path | None = None,
) -> list[Inspection]:
    """Return what is found in each file, all of which is decoded.

    Args:
        paths: Paths of image files.
        threads: Number of files that are read at once; by default a few more than the machine has cores.
        progress: Function called with the number of files done so far, now and then and at the end.
        cache: Folder in which results are kept, also those of an interrupted pass: what did not change since is not
            read again.

    >>> inspect(["absent.jpg"])[0].error
    'cannot read absent.jpg: no such file or directory; check the path'
    """
    kept = _read_cache(cache) if cache else {}
    before, found = len(kept), []
    try:
        with _pool(threads or min(32, usable_cores() + 4)) as pool:
            for start in range(0, len(paths), FILES_AT_ONCE):
                found += _inspect_block(pool, paths[start : start + FILES_AT_ONCE], kept)
                if progress:
                    progress(len(found))
    finally:
        if cache and len(kept) > before:
            _write_cache(cache, kept)
    return found


def difference_hash(grey: np.ndarray) -> int:
    """Return 64 bits: whether each pixel of an image, (8, 9) grey values, is brighter than its left neighbour.

    Scaling, compression and a change of brightness leave nearly all of them as they are.

    >>> f"{difference_hash(np.tile([0, 1, 0, 1, 0, 1, 0, 1, 0], (8, 1))):x}"
    'aaaaaaaaaaaaaaaa'
    """
    return int.from_bytes(np.packbits(grey[:, 1:] > grey[:, :-1]).tobytes())


@contextlib.contextmanager
def _pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that have all begun: one that an interrupt meets while it begins is not waited for, and reads on."""
    together = threading.Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        try:
            list(pool.map(lambda _: together.wait(), range(threads)))
        except BaseException:
            together.abort()
            raise
        yield pool


def _inspect_block(
    pool: ThreadPoolExecutor, paths: Sequence[str | Path], kept: dict[_Key, Inspection]
) -> list[Inspection]:
    """Take what is kept, read the rest, and keep what could be read: other files may be fixed without a trace."""

    def inspected(path: str | Path) -> Inspection:
        key = _key(path)
        if (found := kept.get(key)) is None:
            found = _inspect_file(path)
            if not found.error:
                kept[key] = found  # at once: an interrupt waits for the files that are being read, and loses none
        return found

    return list(pool.map(inspected, paths))


def _inspect_file(path: str | Path) -> Inspection:
    digest = ""
    with contextlib.suppress(OSError), open(path, "rb") as stream:  # what is wrong is said below
        digest = hashlib.file_digest(stream, functools.partial(hashlib.blake2b, digest_size=16)).hexdigest()
    try:
        (width, height), grey = read_thumbnail(path, (9, 8))
    except UserError as error:
        return Inspection(digest=digest, error=str(error))
    return Inspection(width, height, digest, difference_hash(grey))


def _key(path: str | Path) -> _Key:
    """What a result is kept under; an absent file never has one."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return "", 0, 0
    return os.path.abspath(path), status.st_size, status.st_mtime_ns


def _read_cache(folder: Path) -> dict[_Key, Inspection]:
    """The results kept in a folder; none if there is anything odd about them."""
    kept = {}
    try:
        for line in read_text(folder / CACHE_NAME).splitlines():
            path, size, changed, *found = json.loads(line)
            if [*map(type, (path, size, changed, *found))] != [str, int, int, int, int, str, int]:
                return {}
            kept[path, size, changed] = Inspection(*found)
    except (UserError, ValueError, TypeError, RecursionError):
        return {}
    return kept


def _write_cache(folder: Path, kept: dict[_Key, Inspection]) -> None:
    lines = (json.dumps([*key, *found[:-1]]) for key, found in list(kept.items()))
    with contextlib.suppress(UserError):  # a full or read-only disk costs the time of the next pass, not this one
        write_text(folder / CACHE_NAME, "".join(f"{line}\n" for line in lines))
