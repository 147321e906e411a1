"""What a recipe's strings become."""

import pytest
import torch

from balpoe.data.augment.operations import SmallAtFirst
from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.data.loading.image_files import PictureFiles
from balpoe.data.registry import DATASETS, DatasetEntry
from balpoe.errors import UserError
from balpoe.experiments.build import _early, _image_preprocessing, assemble
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import Recipe, updated
from balpoe.experiments.run_folder import train_run
from balpoe.networks import ExpertNetwork


def test_own_images_are_prepared_as_the_backbone_wants_them():
    found = _image_preprocessing(preset("own"))
    assert (found.size, found.resize, found.interpolation) == ((3, 224, 224), 224, "bicubic")
    assert (found.mean, found.std) == ((0.5,) * 3, (0.5,) * 3)
    bilinear = _image_preprocessing(updated(preset("own"), {"network": "test_resnet"}))
    assert bilinear.interpolation == "bilinear"
    small = _image_preprocessing(updated(preset("own"), {"network": "resnet32"}))
    assert (small.size, small.resize, small.interpolation) == ((3, 32, 32), 32, "bilinear")


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("imagenet-lt-resnet50", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("inaturalist-resnet50", (0.466, 0.471, 0.380), (0.195, 0.194, 0.192)),
    ],
)
def test_the_large_benchmarks_are_prepared_as_in_the_reference(name, mean, std):
    """By torchvision's `Resize(256)`, which is bilinear, whatever timm's weights of the same network want."""
    recipe = preset(name)
    found = _image_preprocessing(recipe, DATASETS[recipe.dataset])
    assert (found.size, found.resize, found.interpolation) == ((3, 224, 224), 256, "bilinear")
    assert (found.mean, found.std) == (mean, std)


def stripes(name, root, download):
    """Twelve images of each of two classes, 8 pixels a side, and four to test by."""
    made = torch.Generator().manual_seed(0)
    parts = [torch.randint(0, 256, (each, 3, 8, 8), generator=made, dtype=torch.uint8) for each in (24, 4)]
    return tuple(Dataset(images, torch.arange(len(images)) % 2, ("a", "b")) for images in parts)


@pytest.fixture
def small_images(monkeypatch):
    monkeypatch.setitem(DATASETS, "stripes-lt", DatasetEntry("noise", stripes, in_memory=True))
    return Recipe(
        dataset="stripes-lt", imbalance_ratio=4, network="test_vit", split=-1, width=(4,), augmentation="none",
        image_size=32, device="cpu",
    )  # fmt: skip


def test_images_in_memory_are_brought_to_the_size_that_is_asked(small_images):
    parts = assemble(small_images)
    assert parts.train.images.shape == (15, 3, 32, 32)
    assert assemble(updated(small_images, {"imbalance_ratio": 1})).train.images.shape == (24, 3, 32, 32)
    assert parts.preprocessing == parts.test.preprocessing == _image_preprocessing(small_images)
    assert parts.preprocessing.resize == 32  # all of the image, as here
    assert parts.network(parts.preprocessing.normalise(parts.test.images)).shape == (4, 3, 2)
    same = assemble(updated(small_images, {"image_size": 0, "network": "resnet32", "width": (4,), "split": 1}))
    assert same.preprocessing.size == (3, 8, 8)


FIRST_WEIGHTS = {"network": "resnet32", "split": 3, "width": (2,), "first_layer": "whitened", "residual_start": 0.5}


@pytest.mark.parametrize("changes", [{}, FIRST_WEIGHTS], ids=["", "first weights"])
def test_heads_on_features_of_images_in_memory(small_images, changes):
    recipe = updated(small_images, changes)
    parts = assemble(updated(recipe, {"tune": "head"}))
    images = assemble(recipe).test
    parts.network.eval()
    with torch.no_grad():
        whole = parts.network(parts.preprocessing.normalise(images.images))
        torch.testing.assert_close(parts.trained(parts.test.images), whole)


def test_images_of_the_first_epochs_can_be_small(small_images, tmp_path, monkeypatch):
    """Those of a second view, too; predictions are of whole ones."""
    changes = {"network": "resnet32", "split": 1, "image_size": 0, "early_image_size": 6, "early_fraction": 0.3}
    recipe = updated(small_images, {**changes, "epochs": 3, "batch_size": 8})
    assert assemble(recipe).settings.augmentation == (SmallAtFirst(6, 1),)
    *_, last = assemble(updated(recipe, {"method": "mdcs"})).settings.second_view
    assert last == SmallAtFirst(6, 1)
    seen, whole = [], ExpertNetwork.forward
    monkeypatch.setattr(ExpertNetwork, "forward", lambda self, x: seen.append(x.shape[-1]) or whole(self, x))
    train_run(recipe, tmp_path / "run", progress=False)
    assert (seen[:2], set(seen[2:])) == ([6, 6], {8})
    refused = {8: "must be below 8, the images' own size, but is 8", 9: "must be below 8"}
    for size, message in refused.items():
        with pytest.raises(UserError, match=message):
            assemble(updated(recipe, {"early_image_size": size}))
    with pytest.raises(UserError, match="early_image_size is for network resnet32, not for test_vit; leave it out"):
        updated(small_images, {"early_image_size": 16})
    size = Preprocessing((3, 32, 32), (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(UserError, match="early_image_size is for images held in memory"):
        _early(recipe, PictureFiles(["a.png"], torch.tensor([0]), ("a",), size))
