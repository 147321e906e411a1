"""Models exported once for all tests of exported files: tracing a network takes seconds."""

import pytest

import balpoe
from exported_models import made_feature_model, made_image_model, made_images


@pytest.fixture(scope="session")
def image_model():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("balpoe.networks.resnet_cifar.BLOCKS_PER_STAGE", 1)
        return made_image_model()


@pytest.fixture(scope="session")
def image_export(image_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "images.onnx"
    return balpoe.export(image_model, path, images=made_images(20), license="MIT")


@pytest.fixture(scope="session")
def feature_model():
    return made_feature_model()


@pytest.fixture(scope="session")
def feature_file(feature_model, tmp_path_factory):
    return balpoe.export(feature_model, tmp_path_factory.mktemp("export") / "features.onnx").path
