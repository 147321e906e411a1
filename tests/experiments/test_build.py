"""What a recipe's strings become."""

import pytest

from balpoe.data.registry import DATASETS
from balpoe.experiments.build import _image_preprocessing
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated


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
