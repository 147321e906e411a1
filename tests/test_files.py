import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from balpoe import UserError
from balpoe.files import is_among, locked, read_json, read_text, write_file, write_json, write_text


def test_what_is_written_is_read_back(tmp_path):
    write_json(tmp_path / "deep" / "a.json", {"name": "Größe", "values": [1, 2.5, None]})
    assert read_json(tmp_path / "deep" / "a.json") == {"name": "Größe", "values": [1, 2.5, None]}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.json"]


def test_nan_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_failure_at_any_step_keeps_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(stream):
        stream.write(b"ne")
        if step == "write":
            full()

    if step != "write":
        monkeypatch.setattr(os, step, full)
    with pytest.raises(
        UserError, match=r"cannot write .*a\.txt: no space left on device; what was there before is kept"
    ):
        write_file(path, write)
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_device(tmp_path):
    """A real full disk: the file beside is a link to the device that is always full."""
    (tmp_path / f".a.txt.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match="no space left on device"):
        write_text(tmp_path / "a.txt", "new")
    assert not (tmp_path / "a.txt").exists()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_text(tmp_path / "file" / "a.txt", "text")


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path):
    (tmp_path / "store").mkdir()
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(tmp_path / "middle" / name)
    (tmp_path / "middle").symlink_to("store")
    (tmp_path / "store" / "old").write_text("old")
    for name in ("old", "new"):  # the second leads to what is not there yet
        write_text(tmp_path / name, "text")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "store" / name).read_text() == "text"
    assert len(list((tmp_path / "store").iterdir())) == 2


def test_what_is_no_ordinary_file_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "link", "loop"):
        with pytest.raises(UserError, match=rf"cannot write \S+{name}: it is no ordinary file"):
            write_text(tmp_path / name, "text")
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system has no /proc")
def test_a_file_that_the_shell_has_opened_is_left_alone(tmp_path):
    with open(tmp_path / "log", "w") as stream:  # as /dev/stdout leads to it
        with pytest.raises(UserError, match="it is no ordinary file"):
            write_text(Path(f"/proc/self/fd/{stream.fileno()}"), "rows")
        stream.write("said before")
    assert (tmp_path / "log").read_text() == "said before"


def test_a_file_is_among_others_by_any_of_its_names(tmp_path):
    (tmp_path / "a").write_text("")
    (tmp_path / "link").symlink_to("a")
    assert is_among(tmp_path / "link", [tmp_path / "gone", tmp_path / "a"])
    assert not is_among(tmp_path / "link", [tmp_path / "gone", tmp_path])
    assert not is_among(tmp_path / "gone", iter(lambda: 1 / 0, None))  # others are not looked at


def test_reading_what_is_not_there_or_not_right(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*a\.txt: no such file"):
        read_text(tmp_path / "a.txt")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        read_json(tmp_path / "b.json")
    (tmp_path / "c.json").write_text('{"cut": [1, 2')
    with pytest.raises(UserError, match=r"c\.json is not valid JSON"):
        read_json(tmp_path / "c.json")


def test_a_folder_is_locked_for_one_process_at_a_time(tmp_path):
    code = (
        "import sys; from pathlib import Path; from balpoe.files import locked\n"
        "try:\n    with locked(Path(sys.argv[1])): print('got it')\n"
        "except ValueError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with locked(tmp_path):
        inside = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "in use by another process" in inside
    assert after == "got it\n"
