"""The transformer for images of 64 pixels, as a network by name."""

import pytest
import torch
from safetensors.torch import save_file

from balpoe import expert_network
from balpoe.networks import add_adapters, backbone_preprocessing
from balpoe.networks.timm_backbones import backbone_names


def test_it_is_a_network_by_name():
    assert "vit_tiny_patch8_64" in backbone_names()
    assert backbone_preprocessing("vit_tiny_patch8_64").size == (3, 64, 64)
    network = expert_network("vit_tiny_patch8_64", num_classes=5, num_experts=2)
    model = network.trunk.model
    assert model.pos_embed.shape == (1, 64, 192)  # a token for each patch of 8 x 8 pixels, and no other
    assert len(model.blocks) == 12
    assert sum(weight.numel() for weight in model.parameters()) == 5_388_096
    add_adapters(network, split=1)
    assert network(torch.zeros(2, 3, 64, 64)).shape == (2, 2, 5)


@pytest.mark.parametrize("pixels", [64, 32])
def test_weights_in_bfloat16_are_read_at_any_size(tmp_path, pixels):
    torch.manual_seed(0)
    model = expert_network("vit_tiny_patch8_64", num_classes=5, num_experts=1).trunk.model
    weights = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    save_file(weights, tmp_path / "tiny.safetensors")
    found = expert_network(
        "vit_tiny_patch8_64", num_classes=3, weights=str(tmp_path / "tiny.safetensors"), image_size=pixels
    ).trunk.model.state_dict()
    assert found["pos_embed"].shape[1] == (pixels // 8) ** 2
    for name in weights.keys() - {"pos_embed"}:
        assert torch.equal(found[name], weights[name].float()), name
