import os
import shutil

import pytest
import torch

from balpoe import UserError
from balpoe.data.user.labelled_images import read_listing


def fill(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


@pytest.fixture
def plants(tmp_path):
    return fill(tmp_path / "plants", "class 10/p1_a.png", "class 10/p2_a.png", "class 9/p1_b.png", "class 9/x.png")


def test_a_folder(plants):
    listing = read_listing(plants)
    assert len(listing) == 4
    assert listing.paths == tuple(
        str(plants / name) for name in ("class 10/p1_a.png", "class 10/p2_a.png", "class 9/p1_b.png", "class 9/x.png")
    )
    assert listing.places == listing.paths
    assert listing.class_names == ("class 9", "class 10")
    assert listing.targets.tolist() == [1, 1, 0, 0]
    assert listing.targets.dtype == torch.int64
    assert (listing.groups, listing.parts, listing.ignored, listing.notes) == (None, None, 0, ())


def test_a_table(tmp_path):
    fill(tmp_path, "in/a.png", "in/b.png", "c.png")
    path = tmp_path / "labels.csv"
    path.write_text("path,label,group,split\nin/b.png,2,g,train\nin/a.png,10,,train\nc.png,10,h,test\n")
    listing = read_listing(str(path))
    assert listing.paths == tuple(str(tmp_path / name) for name in ("in/b.png", "in/a.png", "c.png"))
    assert listing.places == (f"{path}, line 2", f"{path}, line 3", f"{path}, line 4")
    assert listing.class_names == ("2", "10")
    assert listing.groups == ("g", "", "h")
    assert listing.parts == ("train", "train", "test")


def test_a_subset_keeps_the_classes(plants):
    listing = read_listing(plants, group="p[0-9]")
    for rows in (torch.tensor([3, 0]), [3, 0]):
        some = listing.subset(rows)
        assert some.paths == (listing.paths[3], listing.paths[0])
        assert some.groups == ("", "p1")
        assert some.parts is None
        assert some.targets.tolist() == [0, 1]
    assert listing.subset([3]).class_names == listing.class_names
    assert listing.subset([0]).targets.tolist() == [1]
    assert len(listing.subset([])) == 0


@pytest.mark.parametrize(
    ("pattern", "groups"),
    [
        (r"p\d", ("p1", "p2", "p1", "")),
        (r"(p\d)_[ab]", ("p1", "p2", "p1", "")),
        (r"p(\d)_(.)", ("1", "2", "1", "")),
        (r"class (?:9|10)", ("class 10", "class 10", "class 9", "class 9")),
        (r"p1|(x)", ("", "", "", "x")),
        (r"^class 9/(.*)_", ("", "", "p1", "")),
    ],
)
def test_groups_by_a_pattern_on_relative_paths(plants, pattern, groups):
    assert read_listing(plants, group=pattern).groups == groups


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("p(", r"--group 'p\(' is no regular expression \(.*\); fix it"),
        ("q", r"--group 'q' matches no file of \S+plants, such as 'class 10/p1_a\.png'; change the pattern"),
        ("q*", r"--group 'q\*' matches no file"),
        ("plants", r"--group 'plants' matches no file"),  # the folder itself is not part of the names
    ],
)
def test_patterns_that_give_no_groups(plants, pattern, sentence):
    with pytest.raises(UserError, match=sentence):
        read_listing(plants, group=pattern)


def test_a_pattern_and_a_column_are_one_too_many(tmp_path):
    fill(tmp_path, "a.png", "b.png")
    (tmp_path / "t.csv").write_text("path,label,group\na.png,x,g\nb.png,y,g\n")
    with pytest.raises(UserError, match=r"t\.csv has a column group, so that --group '\.' is one too many"):
        read_listing(tmp_path / "t.csv", group=".")


def test_parts(tmp_path):
    both = fill(tmp_path / "both", "train/a/1.png", "train/b/2.png", "test/a/3.png", "val/a/4.png", "val/b/5.png")
    listing = read_listing(both)
    assert listing.parts == ("test", "train", "train", "val", "val")
    assert listing.notes == ("the 2 images for validation are in neither training nor test, but calibrate",)
    shutil.rmtree(both / "test")
    listing = read_listing(both)
    assert listing.parts == ("train", "train", "test", "test")
    assert listing.notes == ("the 2 images for validation serve as the test part",)
    fill(both, "test/c/6.png", "test/d/7.png")
    with pytest.raises(UserError, match=r"both: no training sample for 'c', 'd', which the test part has; add some"):
        read_listing(both)


def test_parts_of_a_table(tmp_path):
    fill(tmp_path, "a.png", "b.png", "c.png")
    path = tmp_path / "t.csv"
    path.write_text("path,label,split\na.png,x,train\nb.png,y,train\nc.png,y,train\n")
    assert read_listing(path).parts is None  # no test part: one has to be made
    path.write_text("path,label,split\na.png,x,test\nb.png,y,val\nc.png,y,test\n")
    with pytest.raises(UserError, match=r"t\.csv has a test part but none for training; call one train"):
        read_listing(path)


def test_a_column_of_groups_can_be_named_or_left_alone(tmp_path):
    fill(tmp_path, "x/000.png", "x/001.png", "y/000.png", "y/001.png")
    rows = ["path,label,Patient, group", "x/000.png,x,7,g", "x/001.png,x,7,h", "y/000.png,y,,g", "y/001.png,y,8,g"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    assert read_listing(tmp_path / "t.csv").groups == ("g", "h", "g", "g")
    assert read_listing(tmp_path / "t.csv", group="column:patient").groups == ("7", "7", "", "8")
    assert read_listing(tmp_path / "t.csv", group="none").groups is None
    with pytest.raises(
        UserError, match=r"t\.csv, line 1: there is no column 'person', only 'path', 'label', 'Patient'"
    ):
        read_listing(tmp_path / "t.csv", group="column:person")
    with pytest.raises(UserError, match=r"--group column:patient is for tables, but .* is a folder"):
        read_listing(tmp_path, group="column:patient")


def test_groups_on_both_sides_of_given_parts_are_told(tmp_path):
    root = fill(tmp_path, "train/a/p1.png", "train/b/p2.png", "test/a/p2.png", "test/b/p3.png", "test/b/q.png")
    assert read_listing(root, group="p.").notes == (
        "in training and in the test, which flatters the test: groups 'p2'",
    )
    assert read_listing(root, group="p1").notes == ()


def test_one_name_typed_in_two_ways_is_one_class(tmp_path):
    decomposed, composed = "cafe\u0301", "caf\u00e9"
    root = fill(tmp_path, f"{decomposed}/1.png", f"{composed}/2.png", "木/3.png", "Ελιά/4.png", "زيتون/5.png")
    listing = read_listing(root)
    assert listing.class_names == (composed, "Ελιά", "زيتون", "木")
    assert sorted(listing.labels).count(composed) == 2
    assert listing.notes == (f"spelt in several ways that look the same, but one class each: '{composed}'",)
    assert all(os.path.isfile(path) for path in listing.paths)


def test_sources_that_hold_nothing_to_train_on(tmp_path):
    def refuses(source, sentence):
        with pytest.raises(UserError, match=sentence):
            read_listing(source)

    refuses(tmp_path / "none", r"none does not exist; give a folder of images, or a table of paths and labels")
    refuses("a\0b", "does not exist")
    refuses(fill(tmp_path, "a.xlsx") / "a.xlsx", r"a\.xlsx is neither a folder nor a \.csv, \.tsv or \.parquet")
    for text in ("", "\n", "path,label\n"):
        (tmp_path / "t.csv").write_text(text)
        refuses(tmp_path / "t.csv", r"t\.csv lists no images; add a row for each")
    (tmp_path / "a.png").touch()
    (tmp_path / "t.csv").write_text("path,label\na.png,oak\n")
    refuses(tmp_path / "t.csv", r"t\.csv has one class only, 'oak'; a classifier needs two or more")
    refuses(fill(tmp_path / "parts", "train/a/1.png", "test/a/2.png"), r"parts has one class only, 'a'")


def test_the_version_follows_what_is_there_but_not_where(plants, tmp_path):
    version = read_listing(plants).version()
    assert len(version) == 8
    assert int(version, 16) >= 0
    assert read_listing(f"{plants}/").version() == version
    assert read_listing(os.path.relpath(plants)).version() == version
    shutil.copytree(plants, tmp_path / "moved")
    moved = tmp_path / "moved"
    assert read_listing(moved).version() == version
    seen = [version, read_listing(moved, group="p.").version()]
    (moved / "class 9/x.png").write_bytes(b"xx")
    seen.append(read_listing(moved).version())
    os.rename(moved / "class 9/x.png", moved / "class 9/y.png")
    seen.append(read_listing(moved).version())
    os.rename(moved / "class 9/y.png", moved / "class 10/y.png")
    seen.append(read_listing(moved).version())
    fill(moved, "class 9/z.png")
    seen.append(read_listing(moved).version())
    (moved / "class 9/z.png").unlink()
    assert read_listing(moved).version() == seen[-2]
    assert len(set(seen)) == len(seen)
    assert read_listing(moved).subset([1, 0]).version() != read_listing(moved).subset([0, 1]).version()


def test_the_version_of_a_table_moves_with_it(tmp_path):
    folder = fill(tmp_path / "one", "a.png", "b.png")
    (folder / "t.csv").write_text("path,label\na.png,x\nb.png,y\n")
    version = read_listing(folder / "t.csv").version()
    (folder / "t.csv").write_text("path,label,note\na.png,x,\nb.png,y,hm\n")
    assert read_listing(folder / "t.csv").version() == version
    os.rename(folder, tmp_path / "two")
    assert read_listing(tmp_path / "two" / "t.csv").version() == version
    listing = read_listing(tmp_path / "two" / "t.csv")
    (tmp_path / "two" / "a.png").unlink()
    assert listing.version() != version


def test_many_classes_are_listed_in_the_order_of_their_numbers(tmp_path, monkeypatch):
    for label in range(1500):
        folder = tmp_path / str(label)
        folder.mkdir()
        (folder / "1.png").touch()
    scandir, read = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda folder: read.append(folder) or scandir(folder))
    listing = read_listing(tmp_path)
    assert len(read) < 3 * 1500  # work that grows with the classes, not with their pairs
    assert listing.class_names == tuple(map(str, range(1500)))
    assert sorted(listing.targets.tolist()) == list(range(1500))
