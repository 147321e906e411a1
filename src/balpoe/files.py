"""Files that are whole or absent: write beside, sync, rename; what a path holds; where results are cached."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from balpoe.errors import UserError

__all__ = [
    "TABLE_SUFFIXES",
    "InUseError",
    "cache_folder",
    "csv_delimiter",
    "holds_features",
    "is_among",
    "is_user_data",
    "is_written_as_path",
    "locked",
    "read_json",
    "read_text",
    "write_file",
    "write_json",
    "write_text",
]

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
ARRAY_SUFFIXES = (".npz", ".npy")


class InUseError(UserError):
    """Another process works in a folder."""


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file through `write(stream)` so that a crash at any moment leaves the old one or the new one.

    A link stays, and what it leads to is written; what is there and is no file, such as /dev/null, is left alone.
    """
    path = _behind_links(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")  # two processes may write the same file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, path)
        _sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise UserError(
            f"cannot write {path}: {_reason(error)}; what was there before is kept, make room or choose another place, "
            "then run the same command again"
        ) from error


def _behind_links(path: Path) -> Path:
    """The file that is to be replaced: a rename would put a regular file in the place of a link or a device, too."""
    found, is_stream = path, False
    if os.path.islink(path):
        folder, found = os.path.realpath(path.parent), Path(os.path.realpath(path))
        # Behind /dev/stdout may be a file that the shell has opened, and goes on writing to.
        is_stream = folder == "/dev" or folder.startswith("/proc/")
    if is_stream or (os.path.lexists(found) and not os.path.isfile(found) and not os.path.isdir(found)):
        raise UserError(f"cannot write {path}: it is no ordinary file, and would become one; choose another place")
    return found


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, whole or not at all; half a character in a name becomes a question mark."""
    write_file(path, lambda stream: stream.write(text.encode(errors="replace")))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON; NaN is refused, because JSON has none."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_text(path: Path) -> str:
    """Return a file's text."""
    try:
        return path.read_text(encoding="utf-8-sig")  # with the mark that some editors put in front
    except OSError as error:
        raise UserError(f"cannot read {path}: {_reason(error)}; check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {path}: it is not UTF-8 text; check that it is the file you meant") from error


def read_json(path: Path) -> Any:
    """Return the value of a JSON file."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not valid JSON ({error}); restore it, or delete it and run the command that wrote it again"
        ) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone; the lock goes with the process, however that ends."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock", timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise InUseError(f"{folder} is in use by another process; wait for it, or choose another --name") from error
    except OSError as error:
        raise UserError(f"cannot use the folder {folder}: {_reason(error)}; choose another place") from error
    try:
        yield
    finally:
        lock.release()


def is_user_data(path: str | Path) -> bool:
    """Whether a path is a folder, or a file that images or features are described by."""
    path = Path(path)
    return path.is_dir() or (path.is_file() and path.suffix.lower() in (*TABLE_SUFFIXES, *ARRAY_SUFFIXES))


def is_among(path: str | Path, others: Iterable[str | Path]) -> bool:
    """Whether what is at a path is also at one of others, by whatever name; others are looked at only if it is there.

    >>> is_among("nowhere.csv", ["nowhere.csv"]), is_among(os.curdir, [os.path.abspath(os.curdir)])
    (False, True)
    """
    return os.path.exists(path) and any(os.path.exists(each) and os.path.samefile(path, each) for each in others)


def is_written_as_path(text: str) -> bool:
    """Whether a word can only be meant as a path: it ends in a slash, has one inside, or an ending.

    >>> [is_written_as_path(word) for word in ("photos/", "my/photos", "photos.csv", "photos")]
    [True, True, True, False]
    """
    path = Path(text)
    return text.endswith(("/", os.sep)) or len(path.parts) > 1 or bool(path.suffix)


def holds_features(path: str | Path) -> bool:
    """Whether it holds features rather than images: arrays, or a folder of them."""
    path = Path(path)
    if path.is_dir():  # beside folders of images an array is none of our business
        return any(path.glob("*.npy")) and not any(each.is_dir() for each in path.iterdir())
    return path.suffix.lower() in ARRAY_SUFFIXES


def csv_delimiter(text: str) -> str:
    """Return what separates the columns of a .csv: a comma, or the semicolon of spreadsheets where commas are decimal.

    >>> csv_delimiter("path;label"), csv_delimiter('"a;b",label'), csv_delimiter("oak;0,25")
    (';', ',', ';')
    """
    line = re.sub(r'"[^"]*"', "", text.strip().partition("\n")[0])
    return ";" if ";" in line and line.count(";") >= line.count(",") else ","


def cache_folder() -> Path:
    """Return where what takes long to compute is kept: BALPOE_CACHE, or balpoe in the user's cache."""
    if folder := os.environ.get("BALPOE_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "balpoe"


def _reason(error: OSError) -> str:
    return error.strerror.lower() if error.strerror else f"the disk may be full ({error})"


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut; not every system can open a folder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
