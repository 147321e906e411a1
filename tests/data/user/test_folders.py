import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balpoe import UserError
from balpoe.data.user.folders import folder_rows


def fill(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return str(root)


def found(root, *names):
    return folder_rows(fill(root, *names))


def test_the_first_level_names_the_class_and_nested_files_belong_to_it(tmp_path):
    rows = found(tmp_path, "oak/2.JPG", "oak/deep/er/1.png", "ash/3.webp", "ash/4.Tiff").rows
    assert [(row.name, row.label, row.part) for row in rows] == [
        ("ash/3.webp", "ash", ""),
        ("ash/4.Tiff", "ash", ""),
        ("oak/2.JPG", "oak", ""),
        ("oak/deep/er/1.png", "oak", ""),
    ]


@given(st.permutations(["a/1.png", "a/b/2.png", "b/1.png", "b/10.png", "c/x/y/z.png", "a-b/1.png"]))
def test_the_order_is_that_of_the_paths_however_files_were_made(names):
    with tempfile.TemporaryDirectory() as root:
        assert [row.name for row in found(Path(root), *names).rows] == sorted(names)


def test_what_is_hidden_or_left_by_systems_is_not_seen_and_other_files_are_counted(tmp_path):
    listed = found(
        tmp_path, "a/1.png", "b/2.png", ".git/3.png", "a/.4.png", "__MACOSX/a/5.png", "a/Thumbs.db", "b/@eaDir/6.png",
        "a/readme.txt", "labels.csv", "b/7.png.part", "b/jpg",
    )  # fmt: skip
    assert [row.name for row in listed.rows] == ["a/1.png", "b/2.png"]
    assert listed.ignored == 4
    assert listed.notes == ()


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("Training", "VALIDATION"), ("train", "valid")])
def test_parts_and_below_them_the_classes(tmp_path, train, test):
    rows = found(tmp_path, f"{train}/a/1.png", f"{train}/b/x/2.png", f"{test}/b/3.png").rows
    part = "test" if test == "test" else "val"
    assert {(row.name, row.label, row.part) for row in rows} == {
        (f"{train}/a/1.png", "a", "train"),
        (f"{train}/b/x/2.png", "b", "train"),
        (f"{test}/b/3.png", "b", part),
    }


def test_folders_beside_the_parts_and_empty_ones_are_told(tmp_path):
    (tmp_path / "train" / "c").mkdir(parents=True)
    (tmp_path / "extra" / "d").mkdir(parents=True)
    listed = found(tmp_path, "train/a/1.png", "train/b/2.png", "test/a/3.png", "extra/e/4.png")
    assert len(listed.rows) == 3
    assert listed.notes == (
        "left out, because they are no part: 'extra'",
        "without an image of its own, a folder is no class: 'train/c'",
    )


def test_words_for_parts_are_classes_unless_training_and_a_test_are_there(tmp_path):
    assert {row.label for row in found(tmp_path, "train/1.png", "plane/2.png").rows} == {"train", "plane"}
    (tmp_path / "ship").mkdir()
    assert folder_rows(str(tmp_path)).notes == ("without an image of its own, a folder is no class: 'ship'",)


def test_links_in_a_circle_end(tmp_path):
    root = fill(tmp_path, "a/1.png", "b/2.png")
    os.symlink(tmp_path, tmp_path / "a" / "up")
    os.symlink(tmp_path / "b", tmp_path / "a" / "zigzag")
    os.symlink(tmp_path / "a", tmp_path / "b" / "zigzag")
    os.symlink("itself", tmp_path / "b" / "itself")
    assert [(row.name, row.label) for row in folder_rows(root).rows] == [("a/1.png", "a"), ("b/2.png", "b")]


def test_links_to_files_and_folders_elsewhere_count_but_a_real_folder_keeps_its_name(tmp_path):
    fill(tmp_path / "elsewhere", "1.png", "deep/2.png")
    root = tmp_path / "data"
    fill(root, "b/3.png", "c/4.png")
    os.symlink(tmp_path / "elsewhere", root / "b" / "more")
    os.symlink(tmp_path / "elsewhere" / "1.png", root / "c" / "copy.png")
    os.symlink(root / "c", root / "a")  # would be first by its name
    rows = folder_rows(str(root)).rows
    assert [row.name for row in rows] == ["b/3.png", "b/more/1.png", "b/more/deep/2.png", "c/4.png", "c/copy.png"]


def refuses(folder, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        folder_rows(str(folder))
    assert "\n" not in str(caught.value)


def test_links_to_nothing_are_named(tmp_path):
    fill(tmp_path, "a/1.png", "b/2.png")
    for name in ("3.png", "4.png", "5.png"):
        os.symlink("gone.png", tmp_path / "b" / name)
    refuses(tmp_path, r"b/3\.png is no file, or a link to one that is not there \(nor are 2 more\); fetch")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    fill(tmp_path, "a/1.png", "b/2.png")
    os.mkfifo(tmp_path / "b" / "3.png")
    refuses(tmp_path, r"b/3\.png is no file")


def test_folders_without_images(tmp_path):
    refuses(tmp_path, r"^there are no images in \S+; give a folder that has a subfolder of images for each class$")
    refuses(fill(tmp_path, "a/notes.txt"), r"^there are no images in \S+ \(1 other files\); ")


def test_images_without_a_class(tmp_path):
    refuses(fill(tmp_path / "flat", "1.png", "2.png"), r"flat/1\.png lies in no class; move it")
    refuses(fill(tmp_path / "stray", "a/1.png", "b/2.png", "preview.jpg"), r"stray/preview\.jpg lies in no class")
    refuses(fill(tmp_path / "kaggle", "train/1.png", "test/2.png"), r"kaggle/test/2\.png lies in no class")


def test_one_class_only(tmp_path):
    refuses(fill(tmp_path / "one", "oak/1.png"), r"one has one class only, 'oak'; add a subfolder for another")
    refuses(fill(tmp_path / "deep", "train/a/1.png", "train/b/2.png"), r"if the classes are .*, give \S+deep/train$")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is closed to this user")
def test_a_folder_that_is_closed(tmp_path):
    fill(tmp_path, "a/1.png", "b/2.png")
    (tmp_path / "b").chmod(0)
    try:
        refuses(tmp_path, r"cannot read the folder \S+b: permission denied; ")
    finally:
        (tmp_path / "b").chmod(0o700)
