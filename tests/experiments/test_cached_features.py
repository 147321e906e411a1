from dataclasses import replace

import pytest
import torch

from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.data.loading.image_files import PictureFiles
from balpoe.data.user.load import load_user_data
from balpoe.experiments.cached_features import feature_data
from balpoe.networks import ExpertNetwork, expert_network
from images import picture, picture_folder

SIZE = Preprocessing((3, 32, 32), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path):
    return load_user_data(picture_folder(tmp_path / "trees", {"ash": 9, "birch": 4, "cedar": 3}), SIZE).train


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    network = expert_network("test_efficientnet", num_classes=3, num_experts=2, hidden=8, image_size=32)
    network.freeze_trunk()
    return network.eval()


def test_a_head_on_features_is_the_network_on_pictures(network, data):
    features = feature_data(network, data, workers=0)
    pictures = SIZE.normalise(torch.stack([data[row][0] for row in range(len(data))]))
    with torch.no_grad():
        torch.testing.assert_close(network.head()(features.images), network(pictures))
    assert torch.equal(features.targets, data.targets)


@pytest.fixture
def computed(monkeypatch):
    """How many images each forward pass of the trunk had, from here on."""
    numbers, real = [], ExpertNetwork.features
    monkeypatch.setattr(
        ExpertNetwork, "features", lambda self, images: numbers.append(len(images)) or real(self, images)
    )
    return numbers


def test_features_are_computed_once(network, data, computed):
    first = feature_data(network, data, workers=0)
    second = feature_data(network, data.subset(torch.tensor([3, 1])), workers=0)
    assert computed == [len(data)]
    assert torch.equal(second.images, first.images[[3, 1]])


def test_new_pictures_alone_are_computed(network, tmp_path, computed):
    root = picture_folder(tmp_path / "trees", {"ash": 9, "birch": 4, "cedar": 3})
    feature_data(network, load_user_data(root, SIZE).train, workers=0)
    feature_data(network, load_user_data(root, SIZE).test, workers=0)
    picture(1, 77).save(root / "birch" / "new.png")
    computed.clear()
    found = load_user_data(root, SIZE)
    for part in (found.train, found.test):
        feature_data(network, part, workers=0)
    assert computed == [1]


def test_another_trunk_or_interpolation_has_features_of_its_own(network, data):
    first = feature_data(network, data, workers=0).images
    torch.manual_seed(1)
    other = expert_network("test_efficientnet", num_classes=3, num_experts=2, hidden=8, image_size=32)
    assert not torch.equal(feature_data(other, data, workers=0).images, first)
    smooth = PictureFiles(
        data.paths, data.targets, data.class_names, replace(SIZE, interpolation="bicubic"), data.digests
    )
    assert not torch.equal(feature_data(network, smooth, workers=0).images, first)


def test_whatever_ends_the_work_no_finished_block_is_lost(network, data, monkeypatch, computed):
    monkeypatch.setattr("balpoe.experiments.cached_features.FEATURES_AT_ONCE", 4)

    def failing(number):
        if sum(computed) > 8:
            raise MemoryError

    with pytest.raises(MemoryError):
        feature_data(network, data, workers=0, progress=failing)
    feature_data(network, data, workers=0)
    assert sum(computed) == len(data)


def test_a_damaged_file_of_the_cache_is_as_good_as_none(network, data, tmp_path):
    first = feature_data(network, data, workers=0).images
    for path in (tmp_path / "cache" / "features").rglob("*.npz"):
        path.write_bytes(path.read_bytes()[:100])
    assert torch.equal(feature_data(network, data, workers=0).images, first)


def test_features_of_images_in_memory(network, data):
    """The same as of files, and nothing is kept."""
    images = torch.stack([data[row][0] for row in range(len(data))])
    inside = Dataset(images, data.targets, data.class_names, data.preprocessing, data.groups)
    done = []
    features = feature_data(network, inside, progress=done.append)
    torch.testing.assert_close(features.images, feature_data(network, data, workers=0).images)
    assert features.class_names == data.class_names
    assert torch.equal(features.targets, data.targets)
    assert sum(done) == len(data)
