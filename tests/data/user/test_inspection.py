"""Every file is decoded once; copies, lookalikes and bad files are found; what did not change is not read again."""

import contextlib
import hashlib
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
from PIL import Image, ImageEnhance

from balpoe.data.user import inspection
from balpoe.data.user.inspection import CACHE_NAME, Inspection, difference_hash, inspect

PHOTOGRAPHS = [Path(sklearn.datasets.__file__).parent / "images" / name for name in ("china.jpg", "flower.jpg")]


@pytest.fixture
def files(tmp_path):
    """Three images that can be read, one that is cut short, and one that is absent."""
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number, suffix in enumerate(("png", "jpg", "webp")):
        values = rng.integers(0, 256, (20 + number, 30, 3), dtype=np.uint8)
        Image.fromarray(values).save(folder / f"{number}.{suffix}")
    (folder / "cut.jpg").write_bytes((folder / "1.jpg").read_bytes()[:-100])
    return [folder / name for name in ("0.png", "cut.jpg", "1.jpg", "absent.png", "2.webp")]


@pytest.fixture
def reads(monkeypatch):
    """The names of the files that are decoded from now on."""
    names = []
    read = inspection.read_thumbnail
    monkeypatch.setattr(
        inspection, "read_thumbnail", lambda path, size: (names.append(Path(path).name), read(path, size))[1]
    )
    return names


def distance(first: Inspection, second: Inspection) -> int:
    return (first.pixels ^ second.pixels).bit_count()


def test_what_is_found(files):
    found = inspect(files)
    assert [(each.width, each.height) for each in found] == [(30, 20), (0, 0), (30, 21), (0, 0), (30, 22)]
    for path, each in zip(files, found, strict=True):
        digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.exists() else ""
        assert each.digest == digest
    assert [bool(each.error) for each in found] == [False, True, False, True, False]
    assert found[1].error.startswith(f"{files[1]} is damaged (image file is truncated")
    assert found[3].error == f"cannot read {files[3]}: no such file or directory; check the path"
    assert inspect(list(map(str, files)), threads=1) == found
    assert inspect([]) == []


def test_the_hash_bit_by_bit():
    rng = np.random.default_rng(0)
    for _ in range(20):
        grey = rng.integers(0, 4, (8, 9), dtype=np.uint8)  # with equal neighbours
        bits = "".join(
            "1" if grey[row, column + 1] > grey[row, column] else "0" for row in range(8) for column in range(8)
        )
        assert difference_hash(grey) == int(bits, 2)
    assert difference_hash(np.full((8, 9), 7, dtype=np.uint8)) == 0
    assert difference_hash(np.tile(np.arange(9, dtype=np.uint8), (8, 1))) == 2**64 - 1


def test_lookalikes_have_near_hashes_and_other_images_far_ones(tmp_path):
    photograph, other = (Image.open(path) for path in PHOTOGRAPHS)
    photograph.save(tmp_path / "same.png")
    photograph.save(tmp_path / "coarse.jpg", quality=40)
    photograph.resize((201, 133)).save(tmp_path / "small.webp")
    ImageEnhance.Brightness(photograph).enhance(0.8).save(tmp_path / "dark.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    photograph.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.jpg", exif=exif)
    other.save(tmp_path / "other.jpg")
    photograph.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "mirrored.jpg")
    first, *rest = inspect([PHOTOGRAPHS[0], *sorted(tmp_path.iterdir())])
    by_name = dict(zip([path.stem for path in sorted(tmp_path.iterdir())], rest, strict=True))
    for name in ("same", "coarse", "small", "dark", "turned"):
        assert distance(first, by_name[name]) <= 4, name
        assert by_name[name].digest != first.digest
    for name in ("other", "mirrored"):
        assert distance(first, by_name[name]) >= 16, name
    assert (by_name["turned"].width, by_name["turned"].height) == photograph.size


def test_copies_have_one_digest(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(PHOTOGRAPHS[0].read_bytes())
    first, second = inspect([tmp_path / "a.jpg", tmp_path / "b.jpg"])
    assert first == second


def test_names_in_any_script(files, tmp_path):
    names = ["Ächzen 梅.png", "собака.png", os.fsdecode(b"\xff\xfe.png"), "line\nbreak.png"]
    data, paths = files[0].read_bytes(), [tmp_path / name for name in names]
    for path in paths:
        path.write_bytes(data)
    for _ in range(2):
        assert set(inspect(paths, cache=tmp_path / "kept")) == set(inspect(files[:1]))


def test_progress_counts_the_files(files, monkeypatch):
    monkeypatch.setattr(inspection, "FILES_AT_ONCE", 2)
    done = []
    found = inspect(files, progress=done.append)
    assert done == [2, 4, 5]
    monkeypatch.undo()
    assert inspect(files) == found


def test_what_did_not_change_is_not_read_again(files, tmp_path, reads):
    cache = tmp_path / "a" / "b"
    first = inspect(files, cache=cache)
    assert len(reads) == 5
    reads.clear()
    assert inspect(files, cache=cache) == first
    assert sorted(reads) == ["absent.png", "cut.jpg"]  # a right that is given later leaves no trace in a file's time
    Image.new("RGB", (7, 5)).save(files[0])
    reads.clear()
    assert inspect(files[:1], cache=cache)[0][:2] == (7, 5)
    assert reads == ["0.png"]
    reads.clear()
    assert inspect(files[2:3], cache=cache) == first[2:3]
    assert not reads
    assert len((cache / CACHE_NAME).read_text().splitlines()) == 4


def test_a_change_of_the_same_size_is_seen_by_its_time(files, tmp_path, reads):
    inspect(files[:1], cache=tmp_path)
    status = files[0].stat()
    os.utime(files[0], ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    inspect(files[:1], cache=tmp_path)
    assert len(reads) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]\n" + text,
        lambda text: "{}\n" + text,
        lambda text: "7\n" + text,
        lambda text: "[" * 100_000,
        lambda text: text.replace(', "', ', 5, "', 1),
        lambda text: text.replace("[", "[true, ", 1),
        lambda text: "\0" + text,
        lambda text: "\udcff" + text,
    ],
)
def test_a_garbled_cache_is_ignored_and_mended(files, tmp_path, reads, change):
    expected = inspect(files, cache=tmp_path)
    path = tmp_path / CACHE_NAME
    path.write_bytes(change(path.read_text()).encode(errors="surrogateescape"))
    reads.clear()
    assert inspect(files, cache=tmp_path) == expected
    assert len(reads) == 5
    assert [len(json.loads(line)) for line in path.read_text().splitlines()] == [7, 7, 7]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(files, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert inspect(files, cache=tmp_path / "file") == inspect(files)


def test_an_interrupted_pass_goes_on_where_it_was(files, tmp_path, reads, monkeypatch):
    monkeypatch.setattr(inspection, "FILES_AT_ONCE", 2)

    def interrupt(done: int) -> None:
        if done > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inspect(files, cache=tmp_path, progress=interrupt)
    reads.clear()
    inspect(files, cache=tmp_path)
    assert sorted(reads) == ["2.webp", "absent.png", "cut.jpg"]


def test_a_bug_keeps_its_traceback(files, monkeypatch):
    def fail(path: object, size: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(inspection, "read_thumbnail", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        inspect(files)


def test_an_interrupt_while_threads_begin_loses_nothing(tmp_path, monkeypatch):
    """Thirty times, for it is a race: a thread that was met while it began read on, and what it read was lost."""
    paths, read = [tmp_path / f"{number}.png" for number in range(8)], inspection._inspect_file
    for path in paths:
        Image.new("L", (200, 200)).save(path)
    for turn in range(30):
        calls = []

        def stopping(path, calls=calls, last=1 + turn % 3):
            calls.append(path)
            if len(calls) == last:
                signal.raise_signal(signal.SIGINT)
            return read(path)

        monkeypatch.setattr(inspection, "_inspect_file", stopping)
        cache = tmp_path / f"cache {turn}"
        cache.mkdir()
        with contextlib.suppress(KeyboardInterrupt):
            inspection.inspect(paths, cache=cache)
        inspection.inspect(paths, cache=cache)
        assert len(calls) == len(paths)
