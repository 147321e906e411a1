"""The CIFAR files: as torchvision reads them, and nothing but the published bytes."""

import hashlib
import pickle

import numpy as np
import pytest
import torch

from balpoe.data import cifar
from balpoe.data.cifar import CIFAR_FILES, CifarFiles, load_cifar
from balpoe.errors import UserError


@pytest.mark.parametrize("name", CIFAR_FILES)
def test_files_and_checksums_are_those_that_torchvision_knows(name):
    from torchvision import datasets

    ours = CIFAR_FILES[name]
    theirs = getattr(datasets, ours.title)
    assert ours.folder == theirs.base_folder
    assert dict(ours.train) == dict(theirs.train_list)
    assert dict(ours.test) == dict(theirs.test_list)
    assert dict(ours.meta) == {theirs.meta["filename"]: theirs.meta["md5"]}
    assert ours.names.decode() == theirs.meta["key"]


def written(path, content) -> dict[str, str]:
    """A file as the published ones are: Python 2's pickle, in which text is bytes."""
    made = pickle.dumps(content, protocol=2)
    path.write_bytes(made)
    return {path.name: hashlib.md5(made).hexdigest()}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Two files of training images and one of test images, in the published format."""
    folder, rng = tmp_path / "small", np.random.default_rng(1)
    folder.mkdir()
    rows = rng.integers(0, 256, (7, 3072), dtype=np.uint8)

    def part(name, chosen):
        return written(folder / name, {b"data": rows[chosen], b"labels": [int(row) % 2 for row in range(7)[chosen]]})

    train = part("one", slice(0, 3)) | part("two", slice(3, 5))
    meta = written(folder / "names", {b"label_names": [b"cat", b"dog"]})
    files = CifarFiles("Small", "small", train, part("test", slice(5, 7)), meta, b"labels", b"label_names")
    monkeypatch.setitem(CIFAR_FILES, "small", files)
    today = {("numpy._core.multiarray", "_reconstruct"), ("_codecs", "encode")}  # what numpy writes by now
    monkeypatch.setattr(cifar, "ARRAY_PARTS", cifar.ARRAY_PARTS | today)
    return rows, folder


def test_images_of_several_files(small, tmp_path):
    rows, _ = small
    train, test = load_cifar("small", tmp_path, download=False)
    assert torch.equal(train.images, torch.from_numpy(rows[:5]).view(-1, 3, 32, 32))
    assert torch.equal(test.images, torch.from_numpy(rows[5:]).view(-1, 3, 32, 32))
    assert train.targets.tolist() == [0, 1, 0, 1, 0]
    assert test.targets.tolist() == [1, 0]
    assert train.class_names == test.class_names == ("cat", "dog")


def test_another_file_of_the_same_name_is_refused(small, tmp_path):
    _, folder = small
    (folder / "two").write_bytes((folder / "one").read_bytes())
    with pytest.raises(UserError, match=r"two is not the published file \(its checksum differs; [\d,]+ bytes\)"):
        load_cifar("small", tmp_path, download=False)


def test_nothing_but_arrays_is_unpickled(small, tmp_path, monkeypatch):
    """Even with the right checksum: a pickle can call any function."""
    _, folder = small
    files = CIFAR_FILES["small"]
    monkeypatch.setitem(files.train, "one", written(folder / "one", {b"data": print})["one"])
    with pytest.raises(pickle.UnpicklingError, match="print is no part of an array"):
        load_cifar("small", tmp_path, download=False)


def test_files_that_were_read_ahead_are_read_once(small, tmp_path, monkeypatch):
    read, (rows, _) = [], small
    function = cifar._read
    monkeypatch.setattr(cifar, "_read", lambda path, md5: read.append(path.name) or function(path, md5))
    cifar.read_ahead("small", tmp_path)
    train, _ = load_cifar("small", str(tmp_path), download=False)
    assert torch.equal(train.images, torch.from_numpy(rows[:5]).view(-1, 3, 32, 32))
    assert sorted(read) == ["names", "one", "test", "two"]
    load_cifar("small", tmp_path, download=False)
    assert len(read) == 8  # again: they may have changed


def test_what_is_wrong_with_files_is_said_when_they_are_wanted(small, tmp_path):
    _, folder = small
    (folder / "test").write_bytes(b"")
    cifar.read_ahead("small", tmp_path)
    with pytest.raises(UserError, match="test is not the published file"):
        load_cifar("small", tmp_path, download=False)
    (folder / "test").unlink()
    cifar.read_ahead("small", tmp_path)
    assert not cifar.AHEAD
    with pytest.raises(UserError, match="test is missing"):
        load_cifar("small", tmp_path, download=False)


@pytest.mark.data
def test_the_same_images_as_torchvision(cifar_root):
    from torchvision.datasets import CIFAR100

    ours, theirs = load_cifar("cifar100-lt", cifar_root, download=False)[1], CIFAR100(str(cifar_root), train=False)
    assert torch.equal(ours.images, torch.from_numpy(theirs.data).permute(0, 3, 1, 2))
    assert ours.targets.tolist() == theirs.targets
    assert list(ours.class_names) == theirs.classes
