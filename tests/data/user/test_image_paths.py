"""The images that somebody names: the same paths as of os.walk and glob, without holding a folder's names."""

import glob
import os
import tracemalloc

import pytest

from balpoe import UserError
from balpoe.data.user import image_paths as module
from balpoe.data.user.image_paths import image_paths
from balpoe.data.user.name_order import in_order

NAMES = [
    "b.png",
    "a.JPG",
    "é.png",
    "sub/x.jpg",
    "sub-1/y.jpg",
    "sub/deep/z.png",
    ".hidden/h.png",
    "sub/.h.png",
    "t.txt",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in NAMES:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "photos" / "link").symlink_to(tmp_path / "photos", target_is_directory=True)
    monkeypatch.chdir(tmp_path / "photos")
    return str(tmp_path / "photos")


def walked(folder):
    """The obvious way, which holds the names of a folder."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        seen = sorted(name for name in files if not name.startswith(".") and not name.endswith(".txt"))
        yield from (os.path.join(place, name) for name in seen)


@pytest.mark.parametrize("held", [1, 3, 100])
def test_a_folder_is_walked_in_order_also_where_its_names_are_sorted_on_disk(folder, held, monkeypatch):
    monkeypatch.setattr(module, "in_order", lambda names: in_order(names, held))
    assert list(image_paths([folder])) == list(walked(folder))
    assert len(list(image_paths([folder]))) == 6


@pytest.mark.parametrize(
    "pattern", ["*.png", "**/*.png", "**", "sub*/*", "{}/*", "{}/**/*.jpg", "{}/**", "s??/x.*", "sub/.h*", "*/x.jpg"]
)
def test_patterns_give_what_glob_gives(folder, pattern):
    pattern = pattern.format(folder)
    (folder_link := os.path.join(folder, "link")) and os.unlink(folder_link)  # which ** follows, for ever
    expected = sorted(glob.glob(pattern, recursive=True), key=os.fsencode)
    assert sorted(set(module._matches(pattern)), key=os.fsencode) == [
        path for path in expected if not (("**" in pattern and path in (folder + os.sep, "")) or path.endswith(os.sep))
    ]


def test_a_pattern_without_a_match_is_refused(folder):
    for pattern in ("*.tif", "nowhere/*.png", "nowhere/**/*.png"):
        with pytest.raises(UserError, match="there is nothing at"):
            image_paths([pattern])


@pytest.mark.parametrize("target", ["nowhere", "c[1].png"])  # the other is a link onto itself
def test_a_link_that_leads_nowhere_is_an_image_as_any_other(folder, target):
    os.symlink(target, "c[1].png")
    images = [name for name in NAMES if name.endswith(".png") and "/" not in name] + ["c[1].png"]
    assert list(image_paths(["c[1].png"])) == ["c[1].png"]
    assert list(image_paths(["*.png"])) == sorted(images, key=os.fsencode)
    for given in (folder, f"{folder}/**/*.png"):
        assert os.path.join(folder, "c[1].png") in list(image_paths([given]))
    assert not any(path.startswith(os.path.join(folder, "link")) for path in image_paths([folder]))


def test_names_that_are_no_text_are_kept_as_they_are():
    names = [os.fsdecode(name) for name in (b"\xff.png", b"a.png", "ü.png".encode())]
    assert list(in_order(names, held=1)) == sorted(names, key=os.fsencode) == list(in_order(names))


def test_ten_times_the_names_take_no_more_memory():
    def peak(number):
        tracemalloc.start()
        try:
            last = ""
            for name in in_order((f"{(7919 * index) % number:08}.jpg" for index in range(number)), held=1000):
                assert name > last
                last = name
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(20_000) < 1.2 * peak(4_000)
