"""Parts of a long list: complete or absent, in order, of this command alone, in constant memory."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balpoe import UserError, files
from balpoe.cli import predict_parts
from balpoe.cli.predict_parts import Parts, Share


def images(number, name="photos/{:07}.jpg"):
    return ((name.format(index), ()) for index in range(number))


def write(put, block, head):
    if head:
        put("file\n")
    for path, keys in block:
        put(f"{path}{''.join(keys)}\n")
    return {"rows": len(block), "errors": sum(path.endswith("3.jpg") for path, _ in block)}


def expected(number):
    return "".join(["file\n", *(f"{path}\n" for path, _ in images(number))])


class KilledError(BaseException):
    """The end of a process, of which nothing is tidied up."""


def dying(after):
    """The writer of a process that is killed after so many parts."""
    left = iter(range(after))

    def mortal(put, block, head):
        if next(left, None) is None:
            raise KilledError
        return write(put, block, head)

    return mortal


@settings(max_examples=30, deadline=None)
@given(
    number=st.integers(1, 40),
    rows=st.integers(1, 7),
    worlds=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=3),
)
def test_whoever_dies_whenever_the_rows_are_all_there_once_and_in_order(tmp_path_factory, number, rows, worlds):
    """Each world is one start of the command: so many processes, each killed after so many parts."""
    out = tmp_path_factory.mktemp("out") / "rows.csv"
    for world in worlds:
        started = [Parts(out, {}, Share(rank, len(world)), rows) for rank in range(len(world))]
        for parts, after in zip(started, world, strict=True):
            try:
                parts.predict(images(number), dying(after))
            except KilledError:
                continue
            assert not out.exists() or out.read_text() == expected(number)
    out.unlink(missing_ok=True)
    started = [Parts(out, {}, Share(rank, 2), rows) for rank in range(2)]
    last = [parts.predict(images(number), write) for parts in reversed(started)]
    errors = sum(index % 10 == 3 for index in range(number))
    assert [each for each in last if each] == [{"rows": number, "errors": errors}]
    assert out.read_text() == expected(number)
    assert os.listdir(out.parent) == ["rows.csv"]


def test_parts_that_are_there_are_not_written_again(tmp_path):
    out, blocks = tmp_path / "rows.csv", []

    def counting(put, block, head):
        blocks.append(block[0][0])
        return write(put, block, head)

    with pytest.raises(KilledError):
        Parts(out, {"top": 1}, rows=4).predict(images(20), dying(3))
    assert len(list((tmp_path / "rows.csv.parts").glob("part-*"))) == 3
    assert Parts(out, {"top": 1}, Share(1, 2), rows=4).predict(images(20), counting) is None
    assert blocks == ["photos/0000012.jpg"]
    Parts(out, {"top": 1}, rows=4).predict(images(20), counting)
    assert blocks == ["photos/0000012.jpg", "photos/0000016.jpg"]


@pytest.mark.parametrize("change", ["command", "list", "keys"])
def test_parts_of_another_command_or_list_are_made_anew(tmp_path, change, capsys):
    out = tmp_path / "rows.csv"
    with pytest.raises(KilledError):
        Parts(out, {"top": 1, "model": "a"}, rows=4).predict(images(20), dying(3))
    command = {"top": 1, "model": "b" if change == "command" else "a"}
    changed = [(path, ("spring",) if change == "keys" else ()) for path, _ in images(20)]
    changed = changed[1:] if change == "list" else changed
    Parts(out, command, rows=4).predict(iter(changed), write)
    assert out.read_text() == "".join(["file\n", *(f"{path}{''.join(keys)}\n" for path, keys in changed)])
    note = "is of another command, which differs in model; its parts are made anew"
    assert (note in capsys.readouterr().err) == (change == "command")
    assert os.listdir(tmp_path) == ["rows.csv"]


def test_of_two_that_find_all_parts_one_merges_and_neither_fails(tmp_path):
    """The second finds them, too, but while it copies them the first removes them."""
    out = tmp_path / "rows.csv"
    Parts(out, {}, Share(0, 2), rows=4).predict(images(20), write)
    first, second = (Parts(out, {}, Share(1, 2), rows=4) for _ in range(2))
    digests = second._write(images(20), write)

    def merged_meanwhile(counts):
        if first.folder.exists():
            assert first.predict(images(20), write) == {"rows": 20, "errors": 2}

    assert second._merged(digests, merged_meanwhile) is None
    assert out.read_text() == expected(20)
    assert os.listdir(tmp_path) == ["rows.csv"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("moment", ["predicting", "writing", "written"])
def test_a_part_that_comes_after_the_merging_is_taken_back(tmp_path, monkeypatch, rank, moment):
    """A process thought dead is at its part while another start of the command writes all of them and merges."""
    out, ended = tmp_path / "rows.csv", []

    def merge(now):
        if now == moment and not ended:
            ended.append(now)
            assert Parts(out, {}, rows=4).predict(images(20), write) == {"rows": 20, "errors": 2}

    def write_file(path, put):
        late = path.name.startswith("part-") and not ended
        files.write_file(path, (lambda stream: (put(stream), merge("writing"))) if late else put)
        if late and moment == "written":
            path = path.rename(tmp_path / path.name)  # as if it had its name in the moment after the merging
            merge("written")
            folder.mkdir()
            path.rename(folder / path.name)

    def late(put, block, head):
        merge("predicting")
        return write(put, block, head)

    folder = tmp_path / "rows.csv.parts"
    monkeypatch.setattr(predict_parts, "write_file", write_file)
    ready_later = Parts(out, {}, Share(rank, 2), rows=4)
    assert Parts(out, {}, Share(rank, 2), rows=4).predict(images(20), late) is None
    assert ended == [moment]
    assert ready_later.predict(images(20), dying(0)) is None
    assert out.read_text() == expected(20)
    assert os.listdir(tmp_path) == ["rows.csv"]


def test_a_late_process_takes_nothing_back_that_is_not_its_own(tmp_path):
    out, folder = tmp_path / "rows.csv", tmp_path / "rows.csv.parts"

    def late(put, block, head):
        Parts(out, {}, rows=4).predict(images(20), write)
        Parts(out, {}, Share(0, 2), rows=4).predict(images(20), write)  # a start after that, still at work
        return write(put, block, head)

    assert Parts(out, {}, Share(1, 2), rows=4).predict(images(20), late) is None
    assert sorted(int(part.name.split("-")[1]) for part in folder.glob("part-*")) == [0, 2, 4]


def test_processes_of_a_launch_merge_when_each_has_begun(tmp_path):
    """One that comes late finds its parts of an earlier start, rather than none of them and a merged file."""
    out, blocks = tmp_path / "rows.csv", []

    def counting(put, block, head):
        blocks.append(block)
        return write(put, block, head)

    def start(rank, launch):
        return Parts(out, {}, Share(rank, 2, launch=launch), rows=4).predict(images(20), counting)

    with pytest.raises(KilledError):
        Parts(out, {}, Share(0, 2, launch="a"), rows=4).predict(images(20), dying(1))
    assert start(1, "a") is None
    assert start(0, "b") is None
    assert start(1, "b") == {"rows": 20, "errors": 2}
    assert len(blocks) == 2 + 2
    assert out.read_text() == expected(20)
    assert os.listdir(tmp_path) == ["rows.csv"]


def test_files_of_others_in_the_folder_stay(tmp_path):
    out = tmp_path / "rows.csv"
    (tmp_path / "rows.csv.parts").mkdir()
    (tmp_path / "rows.csv.parts" / "mine.txt").write_text("mine")
    Parts(out, {}, rows=4).predict(images(20), write)
    assert os.listdir(tmp_path / "rows.csv.parts") == ["mine.txt"]


def test_an_interrupt_says_that_the_same_command_goes_on(tmp_path):
    def interrupted(put, block, head):
        raise KeyboardInterrupt

    with pytest.raises(UserError, match=r"stopped; parts of .*rows\.csv that are complete are kept"):
        Parts(tmp_path / "rows.csv", {}).predict(images(20), interrupted)
    with pytest.raises(UserError, match="the same command goes on from them"):
        Parts(tmp_path / "rows.csv", {}, Share(go_on=lambda: False)).predict(images(20), write)


def test_a_part_has_its_counts_and_its_rows(tmp_path):
    Parts(tmp_path / "rows.csv", {}, Share(1, 2), rows=4).predict(images(20), write)
    parts = sorted((tmp_path / "rows.csv.parts").glob("part-*"))
    assert [int(part.name.split("-")[1]) for part in parts] == [1, 3]
    head, *rows = parts[0].read_text().splitlines()
    counts = json.loads(head)
    assert (counts["rows"], counts["errors"]) == (4, 0)
    assert rows == [path for path, _ in images(8)][4:]


def test_ten_times_the_images_take_no_more_memory(tmp_path):
    def peak(number):
        tracemalloc.start()
        try:
            Parts(tmp_path / "rows.csv", {}).predict(images(number), write)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1_000)  # what is imported at the first use
    assert peak(25_000) < 1.2 * peak(5_000)


def test_an_image_that_has_changed_under_its_name_is_predicted_again(tmp_path):
    """By whichever process; one that does not write its part leaves the merging to the one that does."""
    out, files, blocks = tmp_path / "rows.csv", [tmp_path / f"{number}.png" for number in range(20)], []
    for file in files:
        file.write_text("one")
    listed = [(str(file), ()) for file in files]

    def contents(put, block, head):
        blocks.append(len(blocks))
        for path, _ in block:
            put(f"{Path(path).read_text()}\n")
        return {"rows": len(block), "errors": 0}

    def start(rank, world=2, rows=4):
        return Parts(out, {}, Share(rank, world), rows).predict(iter(listed), contents)

    assert start(0) is None  # parts 0, 2 and 4; then process 1 was killed
    files[9].write_text("another")
    files[0].touch()
    assert start(1) is None  # of all parts that are there now two are outdated, which are the other's
    assert start(0) == {"rows": 20, "errors": 0}
    assert out.read_text().split() == ["another" if number == 9 else "one" for number in range(20)]
    assert len(blocks) == 3 + 2 + 2
    assert not (tmp_path / "rows.csv.parts").exists()
