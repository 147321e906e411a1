import copy

import pytest
import timm
import torch
from torch import nn

from balpoe import UserError
from balpoe.networks.recomputing import recompute_blocks
from balpoe.networks.timm_backbones import timm_network


def gradients(network, images):
    """Gradients of a training step, and how much was kept for them, in bytes."""
    kept = 0

    def pack(tensor):
        nonlocal kept
        kept += tensor.untyped_storage().nbytes() * (not isinstance(tensor, nn.Parameter))
        return tensor

    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = network(images).square().sum()
    value.backward()
    return [weight.grad for weight in network.parameters()], kept


@pytest.mark.parametrize(
    ("name", "settings"), [("test_vit", {}), ("test_vit", {"drop_path_rate": 0.3}), ("test_convnext", {})]
)
def test_gradients_are_the_same_and_less_is_kept(name, settings):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, **settings)
    again = copy.deepcopy(model)
    recompute_blocks(again, name)
    images = torch.randn(4, 3, 64, 64)
    (expected, much), (found, little) = gradients(model, images), gradients(again, images)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert little < 0.5 * much
    assert list(again.state_dict()) == list(model.state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(images), model.eval()(images))


def test_networks_of_experts_recompute_and_drop():
    network = timm_network("test_vit", 3, 2, split=4, image_size=32, drop_path=0.2, gradient_checkpointing=True)
    assert network.trunk.model.grad_checkpointing  # timm's, which keeps the state of the generator
    rates = [block.drop_path1.drop_prob for block in network.branches[0].experts[1].model.blocks[4:]]
    assert rates == pytest.approx([0.16, 0.2])
    plain = timm_network("test_vit", 3, image_size=32, gradient_checkpointing=True)
    assert type(plain.trunk.model.blocks).__name__ == "RecomputedBlocks"
    plain(torch.randn(2, 3, 32, 32)).sum().backward()


def test_a_model_that_cannot():
    with pytest.raises(UserError, match="network 'linear' cannot compute blocks again; leave gradient_"):
        recompute_blocks(nn.Linear(2, 2), "linear")
