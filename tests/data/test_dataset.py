import functools
import shutil

import numpy as np
import pytest
import torch

from balpoe import Dataset, Preprocessing, UserError, load_data


def test_any_pair_of_arrays():
    features = np.array([[1.0, 5.0], [3.0, 5.0], [5.0, 5.0]])
    data = Dataset(features, [0, 1, 1], ["cat", "dog"])
    assert data.images.dtype == torch.float32
    assert data.class_counts.tolist() == [1, 2]
    normalised = data.preprocessing.normalise(data.images)
    assert normalised[:, 0].tolist() == pytest.approx([-1.2247, 0, 1.2247], abs=1e-4)
    assert normalised[:, 1].tolist() == [0, 0, 0]  # a constant feature is no division by zero
    assert [int(target) for _, target in torch.utils.data.DataLoader(data)] == [0, 1, 1]


def test_images_are_normalised_per_channel():
    images = torch.randint(0, 256, (10, 3, 4, 4), dtype=torch.uint8)
    data = Dataset(images, torch.arange(10) % 2)
    values = data.preprocessing.normalise(data.images)
    torch.testing.assert_close(values.mean(dim=(0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(values.std(dim=(0, 2, 3), correction=0), torch.ones(3), rtol=0, atol=1e-5)
    with pytest.raises(UserError, match=r"shape \(3, 4, 4\) were expected, but got \(3, 5, 5\)"):
        data.preprocessing.normalise(torch.zeros(1, 3, 5, 5))


def test_preprocessing_equals_torchvision():
    from torchvision.transforms import functional as V

    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    theirs = torch.stack([V.normalize(V.convert_image_dtype(image), mean, std) for image in images])
    torch.testing.assert_close(Preprocessing((3, 4, 4), mean, std).normalise(images), theirs)


@pytest.mark.parametrize(
    ("images", "targets", "names", "sentence"),
    [
        (torch.zeros(3, 2), [0, 1], None, "3 samples but 2 labels"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), None, "empty"),
        (torch.zeros(2, 2), [0, -1], None, "negative"),
        (torch.zeros(2, 2), [0, 0.5], None, "whole numbers"),
        (torch.zeros(2, 2), [0, 2], ["a", "b"], "outside the 2 classes"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), [0, 1], None, r"\(samples, channels, height, width\)"),
        (torch.zeros(2, 4, dtype=torch.int64), [0, 1], None, "samples must be images"),
        (torch.zeros(2, 4, 5), [0, 1], None, "samples must be images"),
        (torch.tensor([[0.0], [float("nan")]]), [0, 1], None, "sample 1 has a feature that is NaN or infinite"),
    ],
)
def test_wrong_arrays(images, targets, names, sentence):
    with pytest.raises(UserError, match=sentence):
        Dataset(images, targets, names)


def test_the_long_tailed_digits():
    train, test = load_data("digits-lt", imbalance_ratio=50)
    assert train.class_counts.tolist() == [124, 80, 51, 33, 21, 14, 9, 5, 3, 2]
    assert test.class_counts.tolist() == [50] * 10
    assert train.preprocessing == test.preprocessing
    assert train.preprocessing.size == (1, 8, 8)
    assert train.images.dtype == torch.uint8
    assert int(train.images.max()) == 255
    rows = {image.numpy().tobytes() for image in test.images}
    shared = sum(image.numpy().tobytes() in rows for image in train.images)
    assert shared == 0


def test_unknown_names_and_missing_files(tmp_path, monkeypatch):
    monkeypatch.delenv("BALPOE_DATA", raising=False)
    with pytest.raises(UserError, match="did you mean 'cifar100-lt'"):
        load_data("cifar100lt")
    with pytest.raises(UserError, match="BALPOE_DATA"):
        load_data("cifar100-lt")
    with pytest.raises(UserError, match=r"cifar-100-python.train is missing.*--download"):
        load_data("cifar100-lt", tmp_path)


def test_files_that_are_not_the_published_ones_are_never_unpickled(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    # A pickle that would create a file, were it loaded.
    (folder / "train").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "pwned").encode() + b"'\ntR.")
    for name in ("test", "meta"):
        (folder / name).write_bytes(b"")
    with pytest.raises(UserError, match="train is not the published file"):
        load_data("cifar100-lt", tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.data
def test_a_truncated_file(cifar_root, tmp_path):
    shutil.copytree(cifar_root / "cifar-100-python", tmp_path / "cifar-100-python")
    path = tmp_path / "cifar-100-python" / "test"
    path.write_bytes(path.read_bytes()[:1_000_000])
    with pytest.raises(UserError, match=r"test is not the published file .*1,000,000 bytes.*cut short"):
        load_data("cifar100-lt", tmp_path)


@functools.cache
def official(name, root):
    """The whole training set, read by torchvision."""
    from torchvision.datasets import CIFAR10, CIFAR100

    return (CIFAR100 if "100" in name else CIFAR10)(str(root), train=True)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "ratio", "total", "first"),
    [
        ("cifar100-lt", 100, 10_847, [90, 254, 283, 445, 461]),
        ("cifar100-lt", 50, 12_608, [90, 254, 283, 445, 461]),
        ("cifar100-lt", 10, 19_573, [90, 254, 283, 445, 461]),
        ("cifar10-lt", 100, 12_406, [398, 3833, 4836, 4572, 636]),
    ],
)
def test_the_official_subsets(cifar_root, name, ratio, total, first):
    """The check values of the reference: which samples of class 0, counted within the class, are kept first."""
    train, test = load_data(name, cifar_root, imbalance_ratio=ratio)
    assert len(train) == total
    assert len(test) == 10_000
    assert len(set(test.class_counts.tolist())) == 1
    full = official(name, cifar_root)
    assert train.class_names == tuple(full.classes)
    of_class_0 = np.where(np.array(full.targets) == 0)[0]
    for position, rank in enumerate(first):
        assert np.array_equal(train.images[position].permute(1, 2, 0).numpy(), full.data[of_class_0[rank]])


@pytest.mark.data
def test_the_copies_that_the_page_on_own_data_tells_of(cifar_root):
    """Four of the training images are in the test, too, and two images have two labels each."""
    parts = load_data("cifar100-lt", cifar_root, imbalance_ratio=100)
    train, test = ([image.numpy().tobytes() for image in part.images] for part in parts)
    assert len(set(train) & set(test)) == 4
    labels: dict[bytes, set[int]] = {}
    for image, label in zip([*train, *test], torch.cat([part.targets for part in parts]).tolist(), strict=True):
        labels.setdefault(image, set()).add(label)
    assert sum(len(each) > 1 for each in labels.values()) == 2


@pytest.mark.data
def test_root_from_the_environment(cifar_root, monkeypatch):
    monkeypatch.setenv("BALPOE_DATA", str(cifar_root))
    train, _ = load_data("cifar10-lt", imbalance_ratio=100, profile="step")
    assert train.class_counts.tolist() == [5000] * 5 + [50] * 5


def test_validation_data_are_in_neither_training_nor_test_set():
    from balpoe.data.registry import validation_data

    train, test = load_data("digits-lt", imbalance_ratio=50)
    validation = validation_data("digits-lt", imbalance_ratio=50, per_class=7)
    assert validation.class_counts.tolist() == [4, *[7] * 9]  # of the largest class hardly any are left
    images = [{image.numpy().tobytes() for image in data.images} for data in (train, test, validation)]
    assert not images[2] & (images[0] | images[1])


@pytest.mark.parametrize("validation", [0, 6])
def test_the_rest_is_in_neither_training_nor_what_measures_it(validation):
    from balpoe.data.registry import load_data_and_rest, validation_data

    train, test, rest = load_data_and_rest("digits-lt", imbalance_ratio=50, rest=70, validation=validation)
    for ours, theirs in zip(
        (train, test), load_data("digits-lt", imbalance_ratio=50, validation=validation), strict=True
    ):
        assert torch.equal(ours.images, theirs.images)
    images = [{image.numpy().tobytes() for image in data.images} for data in (train, test, rest)]
    assert not images[2] & (images[0] | images[1])
    assert rest.class_counts.tolist() == [0 if validation else 4, *[7] * 9]
    if not validation:
        assert torch.equal(rest.images, validation_data("digits-lt", imbalance_ratio=50, per_class=7).images)


@pytest.mark.slow
@pytest.mark.data
def test_images_that_cifar100_lt_has_twice(cifar_root):
    from balpoe.data.registry import validation_data

    train, test = load_data("cifar100-lt", cifar_root)
    validation = validation_data("cifar100-lt", cifar_root)
    left, chosen_on = load_data("cifar100-lt", cifar_root, validation=20)
    parts = [[image.numpy().tobytes() for image in data.images] for data in (train, test, validation, chosen_on)]
    in_training, in_test, *behind = map(set, parts)
    assert sum(image in in_test for image in parts[0]) == 4
    assert [len(part & in_test) for part in behind] == [1, 1]
    assert [len(part) for part in parts[2:]] == [1980, 2000]
    assert not behind[0] & in_training
    assert not behind[1] & {image.numpy().tobytes() for image in left.images}
    (twice,) = behind[0] & in_test
    names = [
        data.class_names[int(data.targets[part.index(twice)])]
        for data, part in ((validation, parts[2]), (test, parts[1]))
    ]
    assert names == ["oak_tree", "willow_tree"]
    assert len(left) == 10_827


def test_a_validation_set_to_choose_on():
    whole, test = load_data("digits-lt", imbalance_ratio=50)
    train, validation = load_data("digits-lt", imbalance_ratio=50, validation=7)
    assert validation.class_counts.tolist() == [7] * 10
    assert train.class_counts.tolist() == [121, *whole.class_counts.tolist()[1:]]  # three held out of the largest class
    images = [{image.numpy().tobytes() for image in data.images} for data in (whole, test, train, validation)]
    assert not images[3] & (images[1] | images[2])
    assert images[2] < images[0]
    with pytest.raises(UserError, match="class 0 has 128 samples: 128 for validation leave none"):
        load_data("digits-lt", imbalance_ratio=50, validation=128)


def test_images_at_another_size_are_torchvisions_and_keep_their_labels():
    from torchvision.transforms import functional as V

    images = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8)
    data = Dataset(images, [0, 1, 1, 0, 1], ["cat", "dog"], groups=[0, 0, 1, 1, 2])
    wanted = Preprocessing((3, 8, 8), (0.5,) * 3, (0.5,) * 3)
    larger = data.resized(wanted)
    theirs = V.resize(images, [8, 8], antialias=True)  # rounded once, at the end
    assert (larger.images.int() - theirs.int()).abs().max() <= 1
    assert torch.equal(larger.targets, data.targets)
    assert larger.class_names == data.class_names
    assert larger.preprocessing == wanted
    assert torch.equal(larger.groups, data.groups)
    with pytest.raises(UserError, match="are no images; leave --image-size out"):
        Dataset(torch.zeros(2, 4), [0, 1]).resized(wanted)
