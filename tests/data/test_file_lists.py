"""The large benchmarks from small folders of the same layout."""

import json
import re
import warnings
from pathlib import Path

import pytest
import torch

from balpoe.data.file_lists import BENCHMARKS, Benchmark, read_benchmark
from balpoe.data.long_tail import shifted_test_counts
from balpoe.errors import UserError

TRAIN = {"n01440764": 5, "n01443537": 3, "n01484850": 1}


def touch(root: Path, name: str):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"not looked into")


def write_list(root: Path, name: str, rows):
    for image, _ in rows:
        touch(root, image)
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{image} {label}\n" for image, label in rows), encoding="utf-8")


def imagenet_rows(top: str, counts):
    return [
        (f"{top}/{name}/{name}_{number}.JPEG", label)
        for label, (name, count) in enumerate(counts.items())
        for number in range(count)
    ]


@pytest.fixture
def imagenet(tmp_path):
    write_list(tmp_path, "ImageNet_LT_train.txt", imagenet_rows("train", TRAIN))
    write_list(tmp_path, "ImageNet_LT_test.txt", imagenet_rows("val", dict.fromkeys(TRAIN, 2)))
    return tmp_path


@pytest.fixture
def of_three_classes(monkeypatch):
    """The published sizes made those of the small folders, so that nothing is to be warned of."""
    for name, benchmark in BENCHMARKS.items():
        monkeypatch.setitem(BENCHMARKS, name, benchmark._replace(sizes=(3, 9, 6)))


def test_imagenet_lt(imagenet, of_three_classes):
    lists = read_benchmark("imagenet-lt", imagenet)
    assert lists.class_names == tuple(TRAIN)
    assert lists.train_targets.tolist() == [0] * 5 + [1] * 3 + [2]
    assert lists.test_targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert lists.train_targets.dtype == torch.int64
    assert lists.train_paths[5] == str(imagenet / "train" / "n01443537" / "n01443537_0.JPEG")
    assert all(Path(path).is_file() for path in (*lists.train_paths, *lists.test_paths))
    assert (lists.validation_paths, lists.validation_targets) == ((), None)


def test_the_validation_list_is_read_where_it_is(imagenet, of_three_classes):
    write_list(imagenet, "ImageNet_LT_val.txt", [("train/n01443537/other.JPEG", 1)])
    lists = read_benchmark("imagenet-lt", str(imagenet))
    assert lists.validation_paths == (str(imagenet / "train/n01443537/other.JPEG"),)
    assert lists.validation_targets.tolist() == [1]


@pytest.mark.parametrize("folder", ["ImageNet_LT", "data_txt/ImageNet_LT"])
def test_lists_below_the_root_have_paths_from_the_root(imagenet, of_three_classes, folder):
    for part in ("train", "test"):
        name = f"ImageNet_LT_{part}.txt"
        (imagenet / folder).mkdir(parents=True, exist_ok=True)
        (imagenet / name).rename(imagenet / folder / name)
    assert len(read_benchmark("imagenet-lt", imagenet).train_paths) == 9


def test_the_root_may_come_from_the_environment(imagenet, of_three_classes, monkeypatch):
    monkeypatch.setenv("BALPOE_DATA", str(imagenet))
    assert len(read_benchmark("imagenet-lt").test_paths) == 6
    monkeypatch.delenv("BALPOE_DATA")
    with pytest.raises(UserError, match="say with --data-root"):
        read_benchmark("imagenet-lt")


def test_windows_line_ends_tabs_and_spaces_in_paths(imagenet, of_three_classes):
    lines = ["train/n0/a b.JPEG 0", "train/n1/c.JPEG\t1", " train/n2/d.JPEG  2 "]
    for line in lines:
        touch(imagenet, re.split(r"\s+\d\s*$", line.strip())[0])
    (imagenet / "ImageNet_LT_train.txt").write_bytes("\r\n".join(lines * 3).encode() + b"\r\n\r\n")
    lists = read_benchmark("imagenet-lt", imagenet, check_all=True)
    assert lists.train_targets.tolist() == [0, 1, 2] * 3
    assert lists.train_paths[:3] == tuple(
        str(imagenet / "train" / name) for name in ("n0/a b.JPEG", "n1/c.JPEG", "n2/d.JPEG")
    )


@pytest.mark.parametrize("top", ["train/{}/", "data_256/{0[0]}/{0}/"])
def test_places_are_named_after_their_folders(tmp_path, of_three_classes, top):
    names = ("airfield", "bakery/shop", "zoo")
    rows = [(f"{top.format(name)}0000{number}.jpg", label) for label, name in enumerate(names) for number in range(3)]
    write_list(tmp_path, "Places_LT_v2/Places_LT_train.txt", rows)
    tests = [(f"val_256/Places365_val_{number}.jpg", number % 3) for number in range(6)]
    write_list(tmp_path, "Places_LT_v2/Places_LT_test.txt", tests)
    lists = read_benchmark("places-lt", tmp_path)
    assert lists.class_names == names
    assert lists.test_targets.tolist() == [0, 1, 2, 0, 1, 2]


def test_classes_without_folders_of_their_own_are_numbered(imagenet, of_three_classes):
    write_list(imagenet, "ImageNet_LT_train.txt", [(f"train/{number}.JPEG", number % 3) for number in range(9)])
    assert read_benchmark("imagenet-lt", imagenet).class_names == ("0", "1", "2")


def annotations(rows, names):
    return {
        "info": {},
        "images": [{"id": 100 + n, "file_name": file, "width": 9} for n, (file, _) in reversed(list(enumerate(rows)))],
        "annotations": [{"id": n, "image_id": 100 + n, "category_id": label} for n, (_, label) in enumerate(rows)],
        "categories": [{"id": id_, "name": name, "supercategory": "Aves"} for id_, name in names.items()],
    }


@pytest.fixture
def naturalist(tmp_path):
    names = {7: "Parus major", 2: "Turdus merula", 40: "Pica pica"}
    train = [(f"train_val2018/Aves/{id_}/{n}.jpg", id_) for id_ in names for n in range(3)]
    test = [(f"train_val2018/Aves/{id_}/v{n}.jpg", id_) for id_ in names for n in range(2)]
    for file, rows in (("train2018.json", train), ("val2018.json", test)):
        for image, _ in rows:
            touch(tmp_path, image)
        (tmp_path / file).write_text(json.dumps(annotations(rows, names)), encoding="utf-8")
    return tmp_path


def test_inaturalist_from_json(naturalist, of_three_classes):
    lists = read_benchmark("inaturalist2018", naturalist)
    assert lists.class_names == ("Turdus merula", "Parus major", "Pica pica")  # by category, 2, 7 and 40
    assert lists.train_targets.tolist() == [1] * 3 + [0] * 3 + [2] * 3
    assert lists.test_targets.tolist() == [1, 1, 0, 0, 2, 2]
    for path, target in zip(lists.train_paths, lists.train_targets.tolist(), strict=True):
        assert Path(path).parent.name == ("2", "7", "40")[target]


def test_inaturalist_from_lists(tmp_path, of_three_classes):
    rows = [(f"train_val2018/Aves/{label}/{n}.jpg", label) for label in range(3) for n in range(3)]
    write_list(tmp_path, "data_txt/iNaturalist18/iNaturalist18_train.txt", rows)
    write_list(tmp_path, "data_txt/iNaturalist18/iNaturalist18_val.txt", rows[:6])
    lists = read_benchmark("inaturalist2018", tmp_path)
    assert lists.class_names == ("Aves/0", "Aves/1", "Aves/2")
    assert lists.test_targets.tolist() == [0, 0, 0, 1, 1, 1]


def test_other_sizes_are_warned_of(imagenet):
    published = "1,000 classes, 115,846 training and 50,000 test images"
    with pytest.warns(UserWarning, match=f"{published}, but these files have 3 classes, 9 training and 6 test images"):
        read_benchmark("imagenet-lt", imagenet)


def test_the_published_sizes():
    """Of the paper's table of data sets and of the pages that they come from."""
    assert {name: benchmark.sizes for name, benchmark in BENCHMARKS.items()} == {
        "imagenet-lt": (1000, 115_846, 50_000),
        "inaturalist2018": (8142, 437_513, 24_426),
        "places-lt": (365, 62_500, 36_500),
    }


def message(name, root, **settings):
    with warnings.catch_warnings(action="ignore"), pytest.raises(UserError) as caught:
        read_benchmark(name, root, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("name", "benchmark"), BENCHMARKS.items(), ids=BENCHMARKS)
def test_a_missing_list_says_where_to_get_everything(tmp_path, name, benchmark: Benchmark):
    text = message(name, tmp_path)
    assert benchmark.lists["train"] in text
    for word in (str(tmp_path), benchmark.lists_from, benchmark.images_from, benchmark.layout):
        assert word in text


def test_no_folder_and_no_benchmark(tmp_path):
    assert "is no folder" in message("places-lt", tmp_path / "absent")
    assert "did you mean 'imagenet-lt'" in message("imagenet_lt", tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "train/n0/a.JPEG",
        "train/n0/a.JPEG -1",
        "train/n0/a.JPEG one",
        "7",
        "",
        f"a {10**20}",
        "a 1.5",
        "a \u0661",
        "x" * 999,
    ],
)
def test_a_malformed_line_is_named(imagenet, line):
    path = imagenet / "ImageNet_LT_train.txt"
    path.write_text(path.read_text() + line + "\ntrain/n01440764/n01440764_0.JPEG 0\n", encoding="utf-8")
    text = message("imagenet-lt", imagenet)
    assert f"{path}, line 10: expected a path, a space and a label" in text
    assert len(text) < 400


def test_an_empty_list_and_one_that_is_no_text(imagenet):
    path = imagenet / "ImageNet_LT_test.txt"
    path.write_text("")
    assert f"{path}, line 1" in message("imagenet-lt", imagenet)
    path.write_bytes(b"\xff\xd8\xff\x00")
    assert "not UTF-8" in message("imagenet-lt", imagenet)


def test_labels_with_a_gap_and_labels_of_the_test_alone(imagenet):
    test = imagenet / "ImageNet_LT_test.txt"
    test.write_text(test.read_text() + "val/n01440764/n01440764_0.JPEG 3\n")
    assert f"{test}, line 7: label 3 is not in" in message("imagenet-lt", imagenet)
    train = imagenet / "ImageNet_LT_train.txt"
    train.write_text(train.read_text() + "train/n01440764/n01440764_0.JPEG 4\n")
    assert f"{train} has no image of label 3 but one of label 4" in message("imagenet-lt", imagenet)


def test_a_missing_image_is_named(imagenet, of_three_classes):
    (imagenet / "val" / "n01484850" / "n01484850_1.JPEG").unlink()  # the last one of the test
    text = message("imagenet-lt", imagenet)
    assert f"{imagenet / 'ImageNet_LT_test.txt'}, line 6" in text
    assert str(imagenet / "val" / "n01484850" / "n01484850_1.JPEG") in text
    assert "missing are 1 of 6" in text
    assert "image-net.org" in text


def test_a_sample_of_the_images_or_all_are_looked_for(tmp_path, of_three_classes):
    rows = [(f"train/n{label}/{number}.JPEG", label) for label in range(3) for number in range(100)]
    write_list(tmp_path, "ImageNet_LT_train.txt", rows)
    write_list(tmp_path, "ImageNet_LT_test.txt", rows[:1] * 3)
    (tmp_path / rows[1][0]).unlink()
    with pytest.warns(UserWarning, match="300 training"):
        assert len(read_benchmark("imagenet-lt", tmp_path).train_paths) == 300
    assert "line 2: there is no" in message("imagenet-lt", tmp_path, check_all=True)
    (tmp_path / rows[150][0]).unlink()
    assert "line 151: there is no" in message("imagenet-lt", tmp_path)


def spoilt(value, change):
    value = json.loads(json.dumps(value))
    change(value)
    return json.dumps(value)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.pop("images"),
        lambda value: value.update(categories=7),
        lambda value: value["annotations"][2].update(image_id=-1),
        lambda value: value["annotations"][2].pop("category_id"),
        lambda value: value["annotations"][2].update(category_id=float("inf")),
        lambda value: value["images"].append("a.jpg"),
        lambda value: value["categories"][0].update(id="first"),
    ],
)
def test_annotations_of_another_make(naturalist, change):
    path = naturalist / "train2018.json"
    path.write_text(spoilt(json.loads(path.read_text()), change))
    assert f"{path} is not made like the annotations of iNaturalist 2018" in message("inaturalist2018", naturalist)


def test_annotations_that_do_not_fit(naturalist):
    path = naturalist / "val2018.json"
    whole = json.loads(path.read_text())
    path.write_text(spoilt(whole, lambda value: value["annotations"][3].update(category_id=8)))
    assert f"{path}, annotation 4: category 8" in message("inaturalist2018", naturalist)
    path.write_text(spoilt(whole, lambda value: value.update(annotations=[])))
    assert f"{path} names no image" in message("inaturalist2018", naturalist)
    path.write_text("{")
    assert "not valid JSON" in message("inaturalist2018", naturalist)
    path.unlink()
    assert "there is no val2018.json" in message("inaturalist2018", naturalist)


@pytest.mark.parametrize(("ratio", "size"), [(50, 12_058), (25, 14_437), (10, 19_059), (5, 24_365), (2, 35_574)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_shifted_test_sets_of_imagenet_lt_have_the_published_sizes(ratio, size, direction):
    """The field's lists of ImageNet-LT's shifted test sets hold so many images, 50 of the largest class."""
    counts = shifted_test_counts(torch.arange(1000), torch.full((1000,), 50), ratio, direction)
    assert (sum(counts), min(counts), max(counts)) == (size, 50 // ratio, 50)
