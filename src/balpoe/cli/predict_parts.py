"""A long list of images, predicted in parts: each is complete or absent, and the same command goes on where it stopped.

Part k holds the rows of a fixed number of images. Its name has a digest of the command and of the images' names, so
that what another command, another model or another list has left is never taken for it; its first line has one of the
files' sizes and times, so that an image that has changed since is predicted again. Processes need not talk: each walks
the whole list, writes every world-th part, and whoever finds all parts there, and that all processes have begun, merges
them. One that was thought dead and comes after that takes its part back.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from balpoe.errors import UserError, show_warning
from balpoe.files import read_json, write_file, write_json
from balpoe.progress import CountProgress

__all__ = ["ROWS_IN_PART", "Parts", "Share", "in_blocks"]

ROWS_IN_PART = 512  # a multiple of what goes through the network at once, so that parts change no batch
DIGEST_SIZE = 8
COMMAND = "command.json"
BEGUN = "begun-"  # empty files, by launch and rank
FILES = "files"  # in a part's first line: the state of its images

Counts = dict[str, Any]
"""What is known of the rows of a part: "rows", "errors" and whatever the caller adds, as JSON has it."""
Image = tuple[str, tuple[str, ...]]
WriteRows = Callable[[Callable[[str], object], Sequence[Image], bool], Counts]
"""Put the rows of some images, after a heading or without; return what is known of them."""
_Value = TypeVar("_Value")


class Share(NamedTuple):
    """This process among those that share the images."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """Number on its machine."""
    go_on: Callable[[], bool] = lambda: True
    """Whether to begin another part."""
    merges: bool = True
    """Whether it merges all parts if it finds them there at its end."""
    launch: str = ""
    """What a launcher calls this start of all processes: parts are merged when each of them has begun, lest one that
    comes late makes its share anew. Empty where that cannot be."""
    others: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    """The other processes, where this one starts them: it is left when they have ended."""


class Parts:
    r"""The parts of a file, in a folder beside it.

    Args:
        out: File that they are merged into.
        command: Description of the command, as JSON has it.
        share: This process among several.
        rows: Number of images of a part.

    >>> import tempfile
    >>> def write(put, images, head):
    ...     put("".join([*(["file\n"] if head else []), *(f"{path}\n" for path, _ in images)]))
    ...     return {"rows": len(images), "errors": 0}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     parts = Parts(Path(folder, "out.csv"), {"top": 1}, rows=2)
    ...     parts.predict(((name, ()) for name in "abc"), write)
    ...     Path(folder, "out.csv").read_text()
    {'rows': 3, 'errors': 0}
    'file\na\nb\nc\n'
    """

    def __init__(
        self, out: Path, command: Mapping[str, Any], share: Share | None = None, rows: int = ROWS_IN_PART
    ) -> None:
        self.out, self.command, self.share, self.rows = out, dict(command), share or Share(), rows
        self.folder = out.with_name(f"{out.name}.parts")
        self.before = _state(out)
        self.outdated: dict[Path, str] = {}
        self.digest = _digest(json.dumps([self.command, rows], sort_keys=True, default=str))
        begun = f"{BEGUN}{_digest(self.share.launch).hex()}"
        self.begun = [self.folder / f"{begun}-{rank}" for rank in range(self.share.world if self.share.launch else 0)]

    def predict(
        self, images: Iterable[Image], write: WriteRows, each: Callable[[Counts], object] = lambda counts: None
    ) -> Counts | None:
        """Write this process's parts, and merge all if they are there; return all counts, or None before that.

        Args:
            images: All images, the same for every process.
            write: Writer of rows.
            each: Called with the counts of each part when they are merged.
        """
        try:
            if self.begun:
                write_file(self.begun[self.share.rank], lambda stream: None)
            with self.share.others():
                digests = self._write(images, write)
            return self._merged(digests, each) if self.share.merges else None
        except KeyboardInterrupt:
            raise UserError(
                f"stopped; parts of {self.out} that are complete are kept, and the same command goes on from them"
            ) from None

    def _write(self, images: Iterable[Image], write: WriteRows) -> bytes:
        """Write this process's parts that are not there; return the digests of all, or none where all are merged."""
        rank, world, digests = self.share.rank, self.share.world, bytearray()
        earlier = self._names()  # of parts of earlier starts: others are as new as their images
        with CountProgress("predicting", 0, show=not rank) as count:
            for number, block in enumerate(in_blocks(images, self.rows)):
                digest = _digest(json.dumps(block))
                digests += digest  # all that is kept of a part
                path = self._path(number, digest)
                wrong = path.name in earlier and not _holds(path, files := _files_state(block))
                if number % world != rank:
                    if wrong:
                        self.outdated[path] = files
                    continue
                if not self.share.go_on():
                    raise KeyboardInterrupt
                if self._is_merged():  # the others found all parts there before this process was ready
                    return b""
                if (wrong or not path.exists()) and not self._kept(number, path, block, write):
                    return b""
                count(len(block))
        return bytes(digests)

    def _is_merged(self) -> bool:
        """Whether the file is another one than at the start: a process that has all parts has merged them."""
        return _state(self.out) != self.before

    def _kept(self, number: int, path: Path, block: Sequence[Image], write: WriteRows) -> bool:
        """Write a part; whether it is still wanted then: one that comes after the merging is taken back.

        Asked after the part has its name. So either the one that merges finds it when it removes all parts, or the file
        has changed before it is asked.
        """
        try:
            if not number:
                self._describe()
            self._write_part(path, block, write, head=not number)
        except UserError:  # whoever merges removes the folder under it
            if not self._is_merged():
                raise
        if self._is_merged():
            path.unlink(missing_ok=True)
            self._remove_folder()
            return False
        return True

    def _names(self) -> frozenset[str]:
        """What lies in the folder."""
        try:
            return frozenset(os.listdir(self.folder))
        except FileNotFoundError:
            return frozenset()

    def _path(self, number: int, digest: bytes) -> Path:
        return self.folder / f"part-{number:08}-{self.digest.hex()}-{digest.hex()}"

    def _paths(self, digests: bytes) -> Iterator[Path]:
        """All parts, in order."""
        for number, start in enumerate(range(0, len(digests), DIGEST_SIZE)):
            yield self._path(number, digests[start : start + DIGEST_SIZE])

    def _write_part(self, path: Path, block: Sequence[Image], write: WriteRows, head: bool) -> None:
        """The counts and the images' state as JSON on a line, then the rows."""
        texts: list[str] = []
        files = _files_state(block)  # before they are read: a later change is then one
        counts = {**write(texts.append, block, head), FILES: files}
        text = "".join((json.dumps(counts), "\n", *texts))
        write_file(path, lambda stream: stream.write(text.encode(errors="replace")))

    def _merged(self, digests: bytes, each: Callable[[Counts], object]) -> Counts | None:
        # Asked after this process's last part is there: of several that end, the last one finds all.
        if not digests or not all(path.exists() for path in itertools.chain(self._paths(digests), self.begun)):
            return None
        if not all(_holds(path, files) for path, files in self.outdated.items()):  # theirs to write, and to merge then
            return None
        total: Counts = {"rows": 0, "errors": 0}

        def copy(stream: IO[bytes]) -> None:
            for path in self._paths(digests):
                with _opened(path) as part:
                    counts = json.loads(part.readline())
                    each(counts)
                    total.update({key: total[key] + counts[key] for key in total})
                    shutil.copyfileobj(part, stream)

        try:
            write_file(self.out, copy)
        except _GoneError:  # another process has merged them in this moment
            return None
        self._remove(digests)
        return total

    def _describe(self) -> None:
        """Keep what the command is; say so if another one has left parts here."""
        path = self.folder / COMMAND
        if path.exists():
            before = read_json(path)
            before = before if isinstance(before, dict) else {}
            now = json.loads(json.dumps(self.command, default=str))
            differ = [key for key in {**now, **before} if now.get(key) != before.get(key)]
            if differ:
                show_warning(
                    f"{self.folder} is of another command, which differs in {', '.join(sorted(differ))}; its parts are "
                    "made anew"
                )
        write_json(path, self.command)

    def _remove(self, digests: bytes) -> None:
        """Remove the parts, those of earlier commands and of killed processes, too; nobody else's files."""
        with contextlib.suppress(OSError):
            for path in self._paths(digests):
                path.unlink(missing_ok=True)
            for name in self._names():
                if name.removeprefix(".").startswith(("part-", BEGUN, COMMAND)):
                    (self.folder / name).unlink(missing_ok=True)
            self._remove_folder()

    def _remove_folder(self) -> None:
        """Remove the folder, unless there is more in it than the description of a command."""
        with contextlib.suppress(OSError):
            if self._names() == {COMMAND}:
                (self.folder / COMMAND).unlink(missing_ok=True)
            self.folder.rmdir()


class _GoneError(Exception):
    """A part that was there is not there any more."""


def _opened(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except FileNotFoundError as error:
        raise _GoneError from error


def _state(path: Path) -> tuple[int, int] | None:
    """What tells a file from the one that it replaces; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino


def _files_state(block: Sequence[Image]) -> str:
    """A digest of the size and the time of each image's file, which another file under its name changes."""
    return _digest(json.dumps([_size_and_time(path) for path, _ in block])).hex()


def _size_and_time(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns


def _holds(part: Path, files: str) -> bool:
    """Whether a part is of images in this state."""
    try:
        with open(part, "rb") as stream:
            return bool(json.loads(stream.readline()).get(FILES) == files)
    except (FileNotFoundError, ValueError):
        return False


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:DIGEST_SIZE]


def in_blocks(values: Iterable[_Value], size: int) -> Iterator[tuple[_Value, ...]]:
    """Yield values in tuples of `size`, the last one perhaps shorter.

    >>> list(in_blocks("abc", 2))
    [('a', 'b'), ('c',)]
    """
    values = iter(values)
    while block := tuple(itertools.islice(values, size)):
        yield block
