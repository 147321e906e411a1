import io
import zipfile

import numpy as np
import pytest
import torch

from balpoe import UserError
from balpoe.data.user.features import read_features

FEATURES = np.arange(12, dtype=np.float64).reshape(4, 3)


def write(path, **arrays):
    np.savez(path / "data.npz", **arrays)
    return path / "data.npz"


@pytest.fixture
def read(tmp_path):
    return lambda **arrays: read_features(write(tmp_path, **arrays))


@pytest.mark.parametrize(("features", "labels"), [("features", "labels"), ("X", "y"), ("embeddings", "targets")])
def test_an_archive_under_the_usual_names(read, features, labels):
    found = read(**{features: FEATURES, labels: [7, 30, 7, 9]})
    assert found.train.features.dtype == torch.float32
    assert torch.equal(found.train.features, torch.from_numpy(FEATURES).float())
    assert found.train.labels == ("7", "30", "7", "9")
    assert found.class_names == ("7", "9", "30")
    assert found.targets(found.train).tolist() == [0, 2, 0, 1]
    assert found.train.groups is None
    assert found.test is None
    assert found.validation is None


def test_text_labels_groups_and_a_test_part(read):
    found = read(
        features=FEATURES.astype(np.float16),
        labels=["o\u0308l", "b", "\u00f6l", "b"],
        groups=[3, 3, 4, 4],
        test_features=FEATURES[:2],
        test_labels=["b", "b"],
    )
    assert found.class_names == ("b", "öl")
    assert found.targets(found.train).tolist() == [1, 0, 1, 0]
    assert found.train.groups == ("3", "3", "4", "4")
    assert found.targets(found.test).tolist() == [0, 0]
    assert found.test.features.shape == (2, 3)


def test_integers_count_into_class_names_which_keep_their_order(read):
    found = read(X=FEATURES, y=[2, 0, 0, 2], class_names=["oak", "elm", "ash"])
    assert found.train.labels == ("ash", "oak", "oak", "ash")
    assert found.class_names == ("oak", "ash")  # nobody is an elm
    assert found.targets(found.train).tolist() == [1, 0, 0, 1]
    found = read(X=FEATURES, y=["ash", "oak", "oak", "oak"], class_names=["oak", "ash"])
    assert found.targets(found.train).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("names", [("{}_features", "{}_labels"), ("X_{}", "y_{}")])
def test_parts_for_test_and_validation(read, names):
    parts = {"test": [1, 0], "val": [1, 1, 0]}
    arrays = {
        name.format(part): array
        for part, labels in parts.items()
        for name, array in zip(names, (FEATURES[: len(labels)] + len(part), labels), strict=True)
    }
    found = read(X=FEATURES, y=[0, 1, 0, 1], **arrays)
    assert [found.targets(part).tolist() for part in (found.test, found.validation)] == [[1, 0], [1, 1, 0]]
    assert torch.equal(found.validation.features, torch.from_numpy(FEATURES[:3] + 3).float())
    assert found.validation.groups is None


def save(folder, **arrays):
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", np.array(array))


@pytest.mark.parametrize(
    ("names", "given"),
    [
        (("features", "labels"), ""),
        (("features", "labels"), "features.npy"),
        (("clip", "clip_labels"), "clip.npy"),
        (("clip", "labels"), ""),
        (("X", "y"), "X.npy"),
    ],
)
def test_files_side_by_side(tmp_path, names, given):
    save(tmp_path / "d", **dict(zip(names, (FEATURES, [1, 2, 1, 2]), strict=True)))
    found = read_features(tmp_path / "d" / given)
    assert found.targets(found.train).tolist() == [0, 1, 0, 1]
    assert torch.equal(found.train.features, torch.from_numpy(FEATURES).float())


def test_the_nearest_name_is_taken_and_the_rest_comes_along(tmp_path):
    save(
        tmp_path,
        clip=FEATURES,
        clip_labels=[0, 1, 0, 1],
        labels=[5, 5],
        groups=["a", "", "a", "b"],
        test_features=FEATURES[:1],
        test_labels=["1"],
    )
    found = read_features(tmp_path)
    assert found.train.labels == ("0", "1", "0", "1")
    assert found.train.groups == ("a", "", "a", "b")
    assert found.targets(found.test).tolist() == [1]


def test_the_version_follows_every_value(read):
    arrays = {"features": FEATURES, "labels": [0, 1, 0, 1]}
    changed = FEATURES.copy()
    changed[3, 2] += 1
    versions = [
        read(**arrays).version(),
        read(**(arrays | {"features": changed})).version(),
        read(**(arrays | {"features": FEATURES[::-1]})).version(),
        read(**(arrays | {"labels": [0, 1, 1, 1]})).version(),
        read(**arrays, groups=["a", "a", "b", "b"]).version(),
        read(**arrays, test_features=FEATURES, test_labels=[0, 1, 0, 1]).version(),
        read(**arrays, val_features=FEATURES, val_labels=[0, 1, 0, 1]).version(),
        read(**arrays, X_val=FEATURES, y_val=[0, 1, 0, 0]).version(),
    ]
    assert versions[0] == "419a1b6e"  # as ever: a run of before knows its data again
    assert versions[4:6] == ["508cf922", "ceea10f8"]
    assert len(set(versions)) == len(versions)
    assert read(**arrays).version() == versions[0]
    assert all(len(version) == 8 and int(version, 16) >= 0 for version in versions)


GOOD = {"features": FEATURES, "labels": [0, 1, 0, 1]}
NAN = np.where(FEATURES == 7, np.nan, FEATURES)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (GOOD | {"features": NAN}, "sample 2 has a value that is NaN, infinite or too large for float32"),
        (GOOD | {"features": FEATURES * 1e300}, "too large for float32 \\(4 such samples\\)"),
        (GOOD | {"features": FEATURES[0]}, "features must be numbers of shape \\(samples, features\\), but is float64"),
        (GOOD | {"features": np.zeros((0, 3)), "labels": np.zeros(0, int)}, "but is float64 of shape \\(0, 3\\)"),
        (GOOD | {"features": FEATURES.astype(str)}, "features must be numbers"),
        (GOOD | {"labels": [0, 1, 0]}, "there are 4 samples but 3 labels"),
        (GOOD | {"labels": [[0], [1], [0], [1]]}, "labels must be integers or text of shape \\(samples,\\)"),
        (GOOD | {"labels": [0.0, 1.0, 0.0, 1.5]}, "labels must be integers or text .*but is float64"),
        (GOOD | {"labels": [5, 5, 5, 5]}, "labels has one class only, '5'"),
        (GOOD | {"labels": ["a", " ", "b", "b"]}, "sample 1 has an empty label"),
        (GOOD | {"labels": np.array([2**21, 65, 66, 67], dtype=np.uint32).view("U1")}, "labels is garbled text"),
        (GOOD | {"groups": ["a"]}, "there are 4 samples but 1 groups"),
        (GOOD | {"test_groups": ["a"]}, "test_groups comes with groups and test_features"),
        (GOOD | {"y": [0, 1, 0, 1]}, "there are two arrays of labels, one of them 'y'"),
        ({"features": FEATURES}, "there is no array of labels; call it labels, y or targets"),
        ({"y": [1]}, "there is no array of features"),
        (GOOD | {"Features": FEATURES}, "unknown array 'Features'; did you mean 'features'"),
        (GOOD | {"test_features": FEATURES}, "test_features and test_labels come together"),
        (GOOD | {"y_val": [0]}, "val_features and val_labels come together"),
        (GOOD | {"val_groups": ["a"]}, "val_groups comes with groups and val_features"),
        (GOOD | {"X_val": FEATURES[:, :2], "y_val": [0] * 4}, "val_features has 2 features a sample"),
        (GOOD | {"X_val": FEATURES, "y_val": [0, 9, 0, 0]}, "no training sample for '9'"),
        (GOOD | {"test_features": FEATURES[:, :2], "test_labels": [0] * 4}, "test_features has 2 features a sample"),
        (GOOD | {"test_features": FEATURES, "test_labels": [0, 9, 0, 0]}, "no training sample for '9'"),
        (GOOD | {"class_names": ["a"]}, "sample 1 has the label 1, but class_names has 1 names"),
        (GOOD | {"class_names": ["a", "a"]}, "class_names must be different names"),
        (GOOD | {"labels": ["a", "b", "a", "b"], "class_names": ["a", "c"]}, "labels has 'b', which class_names lacks"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path, arrays, sentence):
    path = write(tmp_path, **arrays)
    with pytest.raises(UserError, match=sentence) as caught:
        read_features(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_nothing_is_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("executed",))

    np.save(tmp_path / "x.npy", np.array([Bomb()]), allow_pickle=True)
    with pytest.raises(UserError, match=r"x\.npy is not a whole \.npy"):
        read_features(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", features=np.array([Bomb()]), labels=[0])
    with pytest.raises(UserError, match="is not an array of numbers or text"):
        read_features(tmp_path / "x.npz")


def test_files_that_are_not_what_they_claim(tmp_path):
    with pytest.raises(UserError, match=r"none\.npz does not exist"):
        read_features(tmp_path / "none.npz")
    (tmp_path / "text.npy").write_text("1, 2")
    with pytest.raises(UserError, match=r"text\.npy is not a whole \.npy"):
        read_features(tmp_path / "text.npy")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**6)})
    (tmp_path / "huge.npy").write_bytes(header.getvalue() + bytes(80))
    with pytest.raises(UserError, match=r"huge\.npy is not a whole \.npy"):
        read_features(tmp_path / "huge.npy")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", bytes(200 * 2**20))
    with pytest.raises(UserError, match="would unpack to"):
        read_features(tmp_path / "bomb.npz")
    np.save(tmp_path / "complex.npy", np.ones((2, 2), complex))
    with pytest.raises(UserError, match="holds complex128, not numbers or text"):
        read_features(tmp_path / "complex.npy")


def test_a_folder_must_say_which_file_holds_features(tmp_path):
    save(tmp_path / "two", clip=FEATURES, dino=FEATURES, labels=[0, 1, 0, 1])
    with pytest.raises(UserError, match=r"two has 2 \.npy files that may be the features"):
        read_features(tmp_path / "two")
    assert len(read_features(tmp_path / "two" / "dino.npy").train) == 4
    save(tmp_path / "none", labels=[0, 1])
    with pytest.raises(UserError, match=r"none has 0 \.npy files"):
        read_features(tmp_path / "none")
    save(tmp_path / "alone", clip=FEATURES)
    with pytest.raises(UserError, match="there is no array of labels"):
        read_features(tmp_path / "alone")
