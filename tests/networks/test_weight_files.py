import pytest
import timm
import torch

from balpoe import UserError
from balpoe.networks import efficientnet_lite0
from balpoe.networks.pretrained import read_weights
from balpoe.networks.timm_backbones import timm_network
from balpoe.networks.weight_files import full_name, get_weights, hub_names, kept_files, kept_weights


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path))


@pytest.fixture
def hub(monkeypatch):
    """A hub that has given away so many models, and that can be out of reach."""
    given, real = [], timm.create_model

    def create(name, pretrained=False, **settings):
        if pretrained and "closed" in given:
            raise ConnectionError("no route")
        model = real(name, **settings)
        if pretrained:
            given.append(model)
        return model

    monkeypatch.setattr(timm, "create_model", create)
    return given


def test_fetched_once_and_then_pretrained(hub):
    assert kept_weights("test_resnet") is None
    path = get_weights("test_resnet")
    assert path.name == "test_resnet.r160_in1k.safetensors"
    torch.testing.assert_close(read_weights(path), hub[0].state_dict())
    hub.append("closed")
    assert get_weights("test_resnet.r160_in1k") == path == kept_weights("test_resnet")
    assert kept_files() == [path]
    network = timm_network("test_resnet", 5, weights="pretrained", split=2, image_size=32)
    torch.testing.assert_close(network.trunk.model.layer2.state_dict(), hub[0].layer2.state_dict())


def test_one_network_comes_from_the_package_index_where_the_hub_cannot_be_reached(hub, monkeypatch):
    hub.append("closed")
    with pytest.raises(
        UserError, match=r"lite0 cannot be fetched.*type balpoe weights get tf_efficientnet_lite0, which"
    ):
        timm_network("tf_efficientnet_lite0", 5, weights="pretrained", image_size=32)
    state = timm.create_model("tf_efficientnet_lite0").state_dict()
    monkeypatch.setattr(efficientnet_lite0, "package_weights", lambda: state)
    path = get_weights("tf_efficientnet_lite0")
    torch.testing.assert_close(read_weights(path), state)
    network = timm_network("tf_efficientnet_lite0.in1k", 5, weights="pretrained", image_size=32)
    torch.testing.assert_close(network.trunk.model.conv_stem.weight.detach(), state["conv_stem.weight"])


def test_out_of_reach_in_one_sentence(hub, monkeypatch):
    hub.append("closed")
    with pytest.raises(UserError, match=r"hub cannot be reached; type balpoe weights get test_resnet where it can, or"):
        timm_network("test_resnet", 5, weights="pretrained", image_size=32)
    with pytest.raises(
        UserError, match=r"^the pretrained weights of test_resnet.r160_in1k cannot .*; fetch them where"
    ):
        get_weights("test_resnet")

    def nothing():
        raise UserError("pip cannot download it")

    monkeypatch.setattr(efficientnet_lite0, "package_weights", nothing)
    with pytest.raises(UserError, match=r"the hub cannot be reached, and pip cannot download it$"):
        get_weights("tf_efficientnet_lite0")
    assert kept_files() == []


def test_names():
    assert full_name("resnet18") == full_name("resnet18.a1_in1k") == "resnet18.a1_in1k"
    for wrong in ("resnet18.nonsense", "resnet1888"):
        with pytest.raises(UserError, match="unknown network"):
            full_name(wrong)
    assert "vit_small_patch14_dinov2.lvd142m" in hub_names("vit_small*")
