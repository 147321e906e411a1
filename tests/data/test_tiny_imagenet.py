"""Tiny-ImageNet-LT: which images its long tail keeps, and what is said of folders that are not the official one."""

import hashlib
import os

import pytest
import torch
from PIL import Image

from balpoe.data.tiny_imagenet import read_tiny_imagenet
from balpoe.errors import UserError
from balpoe.experiments.build import data_parts
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated

IDS = ("n03", "n01", "n02")  # as in wnids.txt, whose order is no order


@pytest.fixture
def root(tmp_path):
    """Three classes of twenty images, two test images of each, in the official layout."""
    folder = tmp_path / "tiny-imagenet-200"
    test = folder / "val" / "images"
    test.mkdir(parents=True)
    lines = []
    for grey, wnid in enumerate(IDS):
        place = folder / "train" / wnid / "images"
        place.mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (64, 64), (90 * grey, number, 0)).save(place / f"{wnid}_{number}.JPEG")
        for number in range(2):
            name = f"val_{2 * grey + number}.JPEG"
            Image.new("RGB", (64, 64), (90 * grey, 0, 0)).save(test / name)
            lines.append(f"{name}\t{wnid}\t0\t0\t62\t62")
    (folder / "wnids.txt").write_text("\n".join(IDS) + "\n")
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tbullfrog\nn03\tnewt\nn99\tother\n")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_classes_are_ranked_by_their_sorted_ids_and_the_test_is_the_official_validation_part(root):
    lists = read_tiny_imagenet("tiny-imagenet-lt", root, imbalance_ratio=4)
    assert lists.class_names == ("goldfish", "bullfrog", "newt")
    assert torch.bincount(lists.train_targets).tolist() == [20, 10, 5]
    for path, label in zip(lists.train_paths, lists.train_targets.tolist(), strict=True):
        assert f"{os.sep}{sorted(IDS)[label]}{os.sep}" in path
    assert lists.test_targets.tolist() == [2, 2, 0, 0, 1, 1]
    assert all(os.path.isfile(path) for path in (*lists.train_paths, *lists.test_paths, *lists.validation_paths))
    assert not set(lists.train_paths) & set(lists.validation_paths)
    assert torch.bincount(lists.validation_targets).tolist() == [0, 10, 15]


@pytest.mark.parametrize(
    ("ratio", "images", "digest"),
    [
        (100, 21_549, "090704423ad2715b28a9baabe16846dbfd62865f45c9a90756371a3176771aba"),
        (10, 39_072, "d8ee8f6bd3177ab232567ee18064bcd5943b9a78aa38f29a65a1a992ac9634cc"),
    ],
)
def test_check_values_of_the_official_data(tmp_path, monkeypatch, ratio, images, digest):
    """The images of each class are named alike, so that their numbers say which of them stay."""
    ids = [f"n{number:08}" for number in range(200)]
    (tmp_path / "wnids.txt").write_text("\n".join(reversed(ids)))
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "val_annotations.txt").write_text(f"val_0.JPEG\t{ids[0]}\t0\t0\t1\t1\n")
    names = {wnid: [f"{wnid}_{number}.JPEG" for number in reversed(range(500))] for wnid in ids}
    monkeypatch.setattr("balpoe.data.tiny_imagenet.os.listdir", lambda place: names[place.parent.name])
    lists = read_tiny_imagenet("tiny-imagenet-lt", tmp_path, imbalance_ratio=ratio)
    counts = torch.bincount(lists.train_targets)
    assert counts.tolist() == [int(500 * ratio ** (-label / 199) + 1e-9) for label in range(200)]
    assert (len(lists.train_paths), int(counts.max()), int(counts.min())) == (images, 500, 500 // ratio)
    numbers = [os.path.basename(path).split("_")[1].removesuffix(".JPEG") for path in lists.train_paths]
    assert hashlib.sha256(" ".join(numbers).encode()).hexdigest() == digest
    assert lists.class_names == tuple(ids)  # without words.txt


def test_a_recipe_cuts_the_files_and_calibrates_by_the_others(root):
    recipe = updated(preset("tiny-imagenet-lt-resnet50"), {"data_root": str(root), "imbalance_ratio": 10.0})
    parts = data_parts(recipe)
    assert (len(parts.train), len(parts.test), parts.held_out) == (20 + 6 + 2, 6, None)
    assert parts.train.preprocessing.size == (3, 64, 64)
    assert parts.train.preprocessing.resize == 64  # no image is cut
    assert len(data_parts(updated(recipe, {"calibrate": True})).held_out) == 14 + 18


def test_what_is_said_of_another_folder(root, monkeypatch):
    def message(place=root):
        with pytest.raises(UserError) as caught:
            read_tiny_imagenet("tiny-imagenet-lt", place, imbalance_ratio=2)
        return str(caught.value)

    folder = root / "tiny-imagenet-200"
    monkeypatch.delenv("BALPOE_DATA", raising=False)
    assert "--data-root" in message(None)
    assert "there is no wnids.txt in" in message(folder / "val")
    labels = folder / "val" / "val_annotations.txt"
    whole = labels.read_text()
    labels.write_text(whole.replace("val_1.JPEG\tn03", "val_1.JPEG\tn04"))
    assert f"{labels}, line 2: expected a file and an id of wnids.txt" in message()
    labels.write_text(whole)
    for image in (folder / "train" / "n02" / "images").iterdir():
        image.unlink()
    assert f"there is no image in {folder / 'train' / 'n02' / 'images'}" in message()
    (folder / "train" / "n02" / "images").rmdir()
    assert "cannot be read (No such file or directory)" in message()
