import shutil

import numpy as np
import pytest
import torch

from balpoe import UserError
from balpoe.data.user.load import cache_folder, load_user_data
from images import picture, picture_folder, track_folder

COUNTS = {"ash": 20, "birch": 10, "cedar": 4, "date": 1}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    return picture_folder(tmp_path / "trees", COUNTS)


def notes(found):
    return "\n".join(found.notes)


def test_a_split_that_spares_rare_classes(folder):
    found = load_user_data(folder)
    assert found.train.class_names == ("ash", "birch", "cedar", "date")
    assert found.train.class_counts.tolist() == [16, 8, 3, 1]
    assert found.test.class_counts.tolist() == [4, 2, 1, 0]
    assert not set(found.train.paths) & set(found.test.paths)
    assert "too few test samples, below 4, to say how well a class is recognised: 3 of 4" in notes(found)
    assert "(birch (2), cedar (1), date (0))" in notes(found)


def test_the_same_files_have_the_same_split_and_version_wherever_they_lie(folder, tmp_path):
    before = load_user_data(folder)
    moved = load_user_data(shutil.copytree(folder, tmp_path / "elsewhere"))
    assert moved.version == before.version
    assert [path.split("/")[-2:] for path in moved.test.paths] == [path.split("/")[-2:] for path in before.test.paths]
    picture(0, 99).save(folder / "ash" / "new.png")
    assert load_user_data(folder).version != before.version


def test_parts_that_the_data_come_with(tmp_path):
    picture_folder(tmp_path / "set" / "train", COUNTS)
    picture_folder(tmp_path / "set" / "test", {"ash": 3, "birch": 3, "cedar": 3, "date": 3}, first=100)
    found = load_user_data(tmp_path / "set")
    assert found.train.class_counts.tolist() == [20, 10, 4, 1]
    assert found.test.class_counts.tolist() == [3, 3, 3, 3]


def test_a_test_image_that_is_in_training_is_named(tmp_path):
    root = tmp_path / "set"
    picture_folder(root / "train", COUNTS)
    picture_folder(root / "test", dict.fromkeys(COUNTS, 2), first=100)
    shutil.copy(root / "train" / "ash" / "005.png", root / "test" / "ash" / "copy.png")
    text = notes(load_user_data(root))
    assert "the same image in training and in the test, which flatters: 1 (" in text
    assert f"{root}/test/ash/copy.png is {root}/train/ash/005.png of training" in text


def test_copies_stay_on_one_side_of_a_split_that_is_made_here(folder):
    for number in range(8):
        shutil.copy(folder / "ash" / f"{number:03}.png", folder / "ash" / f"copy-{number}.png")
    found = load_user_data(folder)
    digests = set(found.train.digests) & set(found.test.digests)
    assert not digests
    assert "copies of another file: 8 (" in notes(found)


def test_one_image_in_two_classes_is_told(folder):
    shutil.copy(folder / "ash" / "000.png", folder / "birch" / "000-again.png")
    assert "in more than one class, so that a label is wrong: 1 (" in notes(load_user_data(folder))


def test_images_that_look_like_one_of_training_are_counted(tmp_path):
    root = tmp_path / "set"
    picture_folder(root / "train", COUNTS)
    picture_folder(root / "test", dict.fromkeys(COUNTS, 2), first=100)
    lighter = np.asarray(picture(0, 3)).astype(int) + 9
    from PIL import Image

    Image.fromarray(lighter.clip(0, 255).astype(np.uint8)).save(root / "test" / "ash" / "lighter.png")
    text = notes(load_user_data(root))
    assert "almost the same image in training and in the test: " in text
    assert "lighter.png" in text
    assert "give --group" in text


def test_a_group_is_never_split(tmp_path):
    root = tmp_path / "set"
    for label, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for animal in range(6):
            for view in range(4):
                picture(label, 10 * animal + view).save(root / name / f"{name}{animal}-view{view}.png")
    found = load_user_data(root, group=r"(\w+)-view")
    animals = [{path.rpartition("/")[2].partition("-")[0] for path in part.paths} for part in (found.train, found.test)]
    assert not animals[0] & animals[1]
    assert animals[1]


def test_unreadable_files_are_named_and_refused_unless_skipped(folder):
    whole = (folder / "ash" / "003.png").read_bytes()
    (folder / "ash" / "003.png").write_bytes(whole[: len(whole) // 2])
    (folder / "birch" / "note.jpg").write_text("no image")
    with pytest.raises(UserError, match=r"003\.png is damaged .*--skip-unreadable goes on without it and 1 more"):
        load_user_data(folder)
    found = load_user_data(folder, skip_unreadable=True)
    assert found.train.class_counts.sum() + found.test.class_counts.sum() == sum(COUNTS.values()) - 1
    assert len(found.unreadable) == 2
    assert "left out, because they cannot be read: 2 files" in notes(found)


def test_a_class_of_which_no_image_can_be_read(folder):
    (folder / "date" / "000.png").write_text("no image")
    with pytest.raises(UserError, match="there is no training sample of 'date'"):
        load_user_data(folder, skip_unreadable=True)


def test_features_with_labels(tmp_path):
    labels = np.array(["common"] * 20 + ["rare"] * 5)
    np.savez(tmp_path / "table.npz", features=np.random.default_rng(0).normal(3, 2, (25, 6)), labels=labels)
    found = load_user_data(tmp_path / "table.npz")
    assert found.train.class_names == ("common", "rare")
    assert found.train.class_counts.tolist() == [16, 4]
    inputs = found.train.preprocessing.normalise(found.train.images)
    torch.testing.assert_close(inputs.mean(dim=0), torch.zeros(6), atol=1e-5, rtol=0)
    assert found.test.preprocessing == found.train.preprocessing


def test_where_what_takes_long_is_kept(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("BALPOE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "balpoe"


TRACKS = {"ash": 12, "birch": 8, "cedar": 1}


def test_series_are_looked_for_where_nothing_is_said_of_groups(tmp_path):
    root = track_folder(tmp_path / "set", TRACKS)
    assert load_user_data(root).series is None  # nobody asked
    found = load_user_data(root, look_for_series=True).series
    assert found.strong
    assert (found.pattern, found.groups) == (r"(.*)_\d+", 21)
    for group in (found.pattern, "none"):
        assert load_user_data(root, group=group, look_for_series=True).series is None


def test_pictures_with_counters_are_no_series(folder):
    for place in folder.rglob("*.png"):
        number = int(place.stem)
        place.rename(place.with_name(f"IMG_2024010{1 + number // 5}_{number}.png"))
    assert load_user_data(folder, look_for_series=True).series is None


def test_series_in_the_training_part_of_data_that_come_in_parts(tmp_path):
    track_folder(tmp_path / "set" / "train", TRACKS)
    picture_folder(tmp_path / "set" / "test", dict.fromkeys(TRACKS, 2))
    found = load_user_data(tmp_path / "set", look_for_series=True).series
    assert (found.strong, found.pattern, found.groups) == (True, r"(.*)_\d+", 21)


def test_what_is_said_of_groups_and_where_their_numbers_go(tmp_path):
    root = track_folder(tmp_path / "set", TRACKS)
    ungrouped, found = load_user_data(root), load_user_data(root, group=r"(.*)_\d+")
    assert ungrouped.train_groups is None
    assert ungrouped.test.groups is None
    assert "give --group" in notes(ungrouped)
    assert "give --group" not in notes(found)
    assert "almost the same image" in notes(ungrouped)
    assert "every split: 21 (ash 12, birch 8, cedar 1)" in notes(found)
    assert "too few test groups, below 4, to say how well a class is recognised: 3 of 3 (ash (2)" in notes(found)
    assert "classes without a test group, of which nothing is measured: cedar" in notes(found)
    groups = {}
    for part, numbers in ((found.train, found.train_groups), (found.test, found.test_groups)):
        assert len(numbers) == len(part)
        for path, number in zip(part.paths, numbers.tolist(), strict=True):
            groups.setdefault(path.rpartition("_")[0], set()).add(number)
    assert len(groups) == 21
    assert len(set.union(*groups.values())) == sum(map(len, groups.values())) == 21  # one number for each
    assert not set(found.train_groups.tolist()) & set(found.test_groups.tolist())


def test_a_pattern_that_joins_the_tracks_of_all_classes_is_told(tmp_path):
    found = load_user_data(track_folder(tmp_path / "set", TRACKS), group=r"(\d+)_")
    assert "groups that join several classes: 8 of 12" in notes(found)
    assert "--group '(.*)_' keeps the folder in the group" in notes(found)


def test_advice_on_groups_can_be_followed_where_they_come_from(tmp_path):
    """A table's column or an array is no pattern, and would refuse one."""
    root = picture_folder(tmp_path / "set", {"ash": 6, "elm": 6})
    files = sorted(file.relative_to(root) for file in root.rglob("*.png"))
    rows = "".join(f"{file},{file.parent.name},{number % 6 // 2}\n" for number, file in enumerate(files))
    (root / "t.csv").write_text(f"path,label,group\n{rows}")
    tracks = np.arange(12) % 6 // 2
    np.savez(tmp_path / "x.npz", features=np.eye(12), labels=np.repeat(["a", "b"], 6), groups=tracks)
    for source, group, words in (
        (root / "t.csv", "", "make them unique in the table's column of groups"),
        (root / "t.csv", "column:group", "make them unique in the table's column of groups"),
        (tmp_path / "x.npz", "", "make them unique in the array groups"),
    ):
        text = notes(load_user_data(source, group=group))
        assert words in text
        assert "--group" not in text


def test_classes_that_differ_in_capitals_alone_are_told(tmp_path):
    sentence = "differ only in capitals: 'Robin' (3) and 'robin' (9); if they are one, correct the labels"
    labels = ["Robin"] * 3 + ["robin"] * 9 + ["owl"] * 8
    np.savez(tmp_path / "x.npz", features=np.random.default_rng(0).normal(size=(20, 3)), labels=labels)
    assert sentence in notes(load_user_data(tmp_path / "x.npz"))
    root = picture_folder(tmp_path / "set", {"a": 3, "b": 9, "owl": 8})
    names = {"a": "Robin", "b": "robin", "owl": "owl"}
    files = sorted(file.relative_to(root) for file in root.rglob("*.png"))
    rows = "".join(f"{file},{names[file.parent.name]}\n" for file in files)
    (root / "t.csv").write_text(f"path,label\n{rows}")
    assert sentence in notes(load_user_data(root / "t.csv"))
    assert "capitals" not in notes(load_user_data(root))


def test_groups_of_features(tmp_path):
    random = np.random.default_rng(0)
    labels, groups = np.repeat(["a", "b"], 20), np.arange(40) // 4
    arrays = {"features": random.normal(size=(40, 3)), "labels": labels}
    np.savez(tmp_path / "x.npz", **arrays, groups=groups)
    found = load_user_data(tmp_path / "x.npz")
    assert sorted(torch.bincount(torch.cat([found.train_groups, found.test_groups])).tolist()) == [4] * 10
    assert not set(found.train_groups.tolist()) & set(found.test_groups.tolist())
    assert "every split: 10 (a 5, b 5)" in notes(found)
    assert load_user_data(tmp_path / "x.npz", group="none").train_groups is None
    with pytest.raises(UserError, match="give features an array groups instead"):
        load_user_data(tmp_path / "x.npz", group="column:x")
    tested = {"test_features": random.normal(size=(4, 3)), "test_labels": ["a", "a", "b", "b"]}
    np.savez(tmp_path / "y.npz", **arrays, **tested, groups=groups)
    found = load_user_data(tmp_path / "y.npz")
    assert (len(found.train_groups), found.test_groups) == (40, None)
    np.savez(tmp_path / "z.npz", **arrays, **tested, groups=groups, test_groups=[90, 90, 91, 92])
    found = load_user_data(tmp_path / "z.npz")
    assert [len(set(each.tolist())) for each in (found.train_groups, found.test_groups)] == [10, 3]
    assert "below 4, to say how well a class is recognised: 2 of 2 (a (1), b (2))" in notes(found)


def test_validation_beside_the_test_of_features(tmp_path):
    random = np.random.default_rng(0)
    arrays = {"X": random.normal(3, 2, (40, 3)), "y": np.repeat(["a", "b"], 20), "groups": np.arange(40) // 4}
    arrays |= {"X_val": random.normal(size=(6, 3)), "y_val": ["a", "b"] * 3, "val_groups": [70, 71, 70, 71, 72, 73]}
    np.savez(tmp_path / "x.npz", **arrays)
    found = load_user_data(tmp_path / "x.npz")  # there is no other test
    assert (len(found.train), len(found.test), found.validation) == (40, 6, None)
    assert "the 6 samples for validation serve as the test part" in notes(found)
    arrays |= {"X_test": random.normal(size=(4, 3)), "y_test": ["a", "b"] * 2, "test_groups": [8, 8, 90, 91]}
    np.savez(tmp_path / "x.npz", **arrays)
    found = load_user_data(tmp_path / "x.npz")
    assert "the 6 samples for validation are in neither training nor test, but calibrate" in notes(found)
    assert "in training and in the test, which flatters the test: groups '8'" in notes(found)
    assert found.validation.images.tolist() == arrays["X_val"].astype(np.float32).tolist()
    assert found.validation.targets.tolist() == [0, 1] * 3
    assert found.validation.preprocessing == found.test.preprocessing == found.train.preprocessing
    torch.testing.assert_close(
        found.train.preprocessing.normalise(found.train.images).mean(dim=0), torch.zeros(3), atol=1e-5, rtol=0
    )
    groups = [found.train.groups, found.test.groups, found.validation.groups]
    assert [len(set(each.tolist())) for each in groups] == [10, 3, 4]
    assert load_user_data(tmp_path / "x.npz", group="none").validation.groups is None


@pytest.mark.parametrize("name", ["val", "valid", "Validation"])
def test_validation_beside_train_and_test_is_a_part_of_its_own(tmp_path, name):
    root = tmp_path / "trees"
    for first, part in ((0, "train"), (30, "test"), (60, name)):
        picture_folder(root / part, {"ash": 6, "birch": 3}, first=first)
    shutil.copy(root / name / "ash" / "060.png", root / "train" / "ash" / "copy.png")
    found = load_user_data(root)
    assert [len(part) for part in (found.train, found.test, found.validation)] == [10, 9, 9]
    assert found.validation.class_names == found.train.class_names
    assert all(f"/{name}/" in path for path in found.validation.paths)
    assert "the 9 images for validation are in neither training nor test" in notes(found)
    assert "flatters" not in notes(found)
    shutil.rmtree(root / "test")
    found = load_user_data(root)
    assert (len(found.test), found.validation) == (9, None)


def test_a_split_column_with_validation_and_semicolons(tmp_path):
    picture_folder(tmp_path, {"ash": 6, "birch": 6})
    parts = ["train", "train", "train", "test", "val", "val"]
    lines = [f"{name}/{number:03}.png;{name};{parts[number]}" for name in ("ash", "birch") for number in range(6)]
    (tmp_path / "table.csv").write_text("\n".join(["path;label;split", *lines]))
    found = load_user_data(tmp_path / "table.csv")
    assert [len(part) for part in (found.train, found.test, found.validation)] == [6, 2, 4]
