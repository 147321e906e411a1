"""Adapters of transformers, against what they are by definition and against the backbone alone."""

import copy
import functools
import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from balpoe import UserError, expert_network
from balpoe.networks import multiply_adds, num_parameters
from balpoe.networks.adapters import (
    AdaptFormer,
    LowRankLinear,
    OwnLinear,
    adapter_size,
    add_adapters,
    has_adapters,
    merged,
)

TRANSFORMERS = {
    "vit_tiny_patch16_224": 32,
    "vit_small_patch14_reg4_dinov2": 28,
    "vit_xsmall_patch16_clip_224": 32,
    "deit_tiny_distilled_patch16_224": 32,
    "test_vit3": 160,  # pools by attention, as SigLIP does
    "test_vit4": 32,  # another kind of normalisation
    "vit_small_patch16_dinov3": 32,  # positions by rotation, layer scale as a parameter
    "vit_pe_core_tiny_patch16_384": 32,
}
TENSORS = {"adaptformer": 7, "lora": 4}  # of each block


@pytest.fixture
def uniform_weights(monkeypatch):
    """Random weights of transformers from a uniform distribution: half of a test's time goes into the normal one."""
    monkeypatch.setattr(torch.Tensor, "erfinv_", lambda tensor: tensor)


def made(name="test_vit2", size=32, experts=3):
    torch.manual_seed(0)
    network = expert_network(name, num_classes=7, num_experts=experts, image_size=size, hidden=8).eval()
    for tensor in network.trunk.parameters():  # no layer is the identity, as a first layer scale nearly is
        if tensor.ndim == 1:
            tensor.data.uniform_(0.3, 0.9)
    return network


made_once = functools.lru_cache(maxsize=1)(made)  # for both kinds of adapters: the largest take a second


def trained(network):
    return {name: weight for name, weight in network.named_parameters() if weight.requires_grad}


def shaken(network):
    """The network with adapters that change what it says."""
    torch.manual_seed(1)
    for name, weight in trained(network).items():
        if name.startswith("trunk."):
            weight.data += 0.05 * torch.randn_like(weight)
    return network


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_first_network_is_the_backbone_bit_for_bit(name, kind, uniform_weights):
    size = TRANSFORMERS[name]
    network = copy.deepcopy(made_once(name, size))
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    backbone = num_parameters(network.trunk)
    network.trunk.requires_grad_(False)  # by which torch chooses between two ways to multiply
    with torch.no_grad():
        before = network(images)
        add_adapters(network, kind, size=2)
        assert torch.equal(network(images), before)
        assert not torch.allclose(shaken(network)(images), before, atol=1e-3)  # and adapters have a say
    ours = sum(weight.numel() for key, weight in trained(network).items() if key.startswith("trunk."))
    assert num_parameters(network.trunk) == backbone + ours
    blocks = len(network.trunk.model.blocks)
    assert len([key for key in trained(network) if key.startswith("trunk.")]) == blocks * TENSORS[kind]


def test_adaptformer_is_what_the_paper_says():
    torch.manual_seed(0)
    adapter = AdaptFormer(6, 2, num_experts=2)
    for weight in adapter.parameters():
        weight.data = torch.randn_like(weight)
    tokens = torch.randn(2 * 3, 5, 6)
    found = adapter(tokens)
    for row, token in enumerate(tokens):
        expert = row // 3  # the whole batch of the first expert, then that of the second
        mean, deviation = token.mean(1, keepdim=True), token.var(1, correction=0, keepdim=True).add(1e-5).sqrt()
        unit = (token - mean) / deviation * adapter.norm_weight[expert] + adapter.norm_bias[expert]
        hidden = (unit @ adapter.down[expert] + adapter.down_bias[expert]).clamp(min=0)
        expected = adapter.scale[expert] * (hidden @ adapter.up[expert] + adapter.up_bias[expert])
        torch.testing.assert_close(found[row], expected)


def test_the_layer_scale_is_not_the_adapters():
    network = made()
    add_adapters(network, size=2)
    block = shaken(network).trunk.model.blocks[0]
    tokens = torch.randn(2, 4, 64)
    with torch.no_grad():
        torch.testing.assert_close(
            block.mlp(tokens),
            block.mlp.layer_scale.gamma * block.mlp.mlp(block.mlp.norm(tokens)) + block.mlp.adapter(tokens),
        )


def test_low_rank_is_a_change_of_the_weights():
    torch.manual_seed(0)
    layer = LowRankLinear(torch.nn.Linear(6, 4), size=2)
    layer.up.data.normal_()
    rows = torch.randn(5, 3, 6)
    expected = F.linear(rows, layer.weight + (layer.down[0] @ layer.up[0]).T, layer.bias)
    torch.testing.assert_close(layer(rows), expected)
    torch.testing.assert_close(layer.plain()(rows), expected)


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("split", [1, 3, 8])
def test_each_expert_has_adapters_of_its_own_in_the_last_blocks(kind, split):
    network = made()
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        before = network(images)
        add_adapters(network, kind, size=2, split=split)
        torch.testing.assert_close(network(images), before)
        together = shaken(network)(images)
        for index in range(3):
            alone = network.expert(index)
            torch.testing.assert_close(alone(images)[:, 0], together[:, index], rtol=1e-4, atol=1e-4)
    # Only the expert whose answer is asked for learns, but for what all share.
    network(images)[:, 1].square().sum().backward()
    for name, weight in trained(network).items():
        if name.startswith("trunk.") and len(weight) == 3 and not name.endswith("bias"):
            norms = weight.grad.flatten(1).norm(dim=1)
            assert norms[1] > 0
            assert norms[0] == norms[2] == 0
    own = [name for name, weight in trained(network).items() if name.startswith("trunk.") and len(weight) == 3]
    assert len(own) == split * TENSORS[kind]


@pytest.mark.parametrize("kind", TENSORS)
def test_experts_of_a_rotary_transformer(kind, uniform_weights):
    network = made("vit_small_patch16_dinov3")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        add_adapters(network, kind, size=2, split=2)
        together = shaken(network)(images)
        torch.testing.assert_close(network.expert(2)(images)[:, 0], together[:, 2], rtol=1e-4, atol=1e-4)


CONVNEXTS = {"convnext_atto": True, "test_convnext": False, "test_convnext3": False, "convnextv2_atto": True}
"""Whether the MLP of a block is made of convolutions: both are in timm, with and without a layer scale."""


@pytest.mark.parametrize("name", CONVNEXTS)
def test_a_convnext_is_first_its_backbone_bit_for_bit(name, uniform_weights):
    network = made(name)
    images = torch.randn(3, 3, 32, 32)
    network.trunk.requires_grad_(False)
    blocks = [block for stage in network.trunk.model.stages for block in stage.blocks]
    assert {block.use_conv_mlp for block in blocks} == {CONVNEXTS[name]}
    with torch.no_grad():
        before = network(images)
        add_adapters(network, size=2)
        assert torch.equal(network(images), before)
        assert not torch.allclose(shaken(network)(images), before, atol=1e-3)
    assert sum(isinstance(layer, AdaptFormer) for layer in network.modules()) == len(blocks)
    assert len([key for key in trained(network) if key.startswith("trunk.")]) == 7 * len(blocks)


@pytest.mark.parametrize("name", ["test_convnext", "convnext_atto"])
def test_what_an_adapter_adds_to_a_block_of_a_convnext(name):
    """Beside norm, MLP and layer scale, on what the depthwise convolution gives, pixel by pixel."""
    network = made(name)
    block = network.trunk.model.stages[0].blocks[0]
    images = torch.randn(2, block.conv_dw.in_channels, 5, 6)
    with torch.no_grad():
        before = block(images)
        add_adapters(network, size=2)
        adapter = next(layer for layer in shaken(network).modules() if isinstance(layer, AdaptFormer))
        pixels = block.conv_dw(images).permute(0, 2, 3, 1)
        change = torch.stack([adapter(pixel[None])[0] for pixel in pixels.flatten(0, 2)]).view(pixels.shape)
        torch.testing.assert_close(block(images), before + change.permute(0, 3, 1, 2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("split", [1, 3])
def test_experts_of_a_convnext_with_adapters_of_their_own(split):
    """Three blocks reach over the border of a stage."""
    network = made("test_convnext3")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        add_adapters(network, size=2, split=split)
        together = shaken(network)(images)
        for index in range(3):
            torch.testing.assert_close(network.expert(index)(images)[:, 0], together[:, index], rtol=1e-4, atol=1e-4)
    own = [name for name, weight in trained(network).items() if name.startswith("trunk.") and len(weight) == 3]
    assert len(own) == 7 * split


def test_a_convnext_has_no_attention_to_change():
    with pytest.raises(
        UserError, match=r"lora changes attention, which this network \(ConvNeXt\) does not have; choose"
    ):
        add_adapters(made("test_convnext"), "lora")


def test_one_expert_has_nothing_to_split():
    network = made(experts=1)
    add_adapters(network, split=2)
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 1, 7)
    assert type(network.trunk).__name__ == "Features"


def test_only_adapters_and_head_get_gradients():
    network = made()
    add_adapters(network)
    network(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert {name.split(".")[-1] for name, weight in network.trunk.named_parameters() if weight.grad is not None} == {
        "norm_weight", "norm_bias", "down", "down_bias", "up", "up_bias", "scale"
    }  # fmt: skip
    assert all(weight.grad is not None for weight in (*network.branches.parameters(), *network.classifier.parameters()))


@pytest.mark.parametrize("kind", TENSORS)
def test_merged_says_the_same(kind):
    network = made()
    plain = num_parameters(network)
    add_adapters(network, kind, size=2)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = shaken(network)(images)
        before = copy.deepcopy(network.state_dict())
        one = merged(network)
        torch.testing.assert_close(one(images), expected, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert (num_parameters(one) == plain) == (kind == "lora")


def test_merged_gives_experts_with_changes_of_their_own_weights_of_their_own():
    network = made()
    add_adapters(network, "lora", size=2, split=2)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = shaken(network)(images)
        one = merged(network)
        torch.testing.assert_close(one(images), expected, rtol=1e-4, atol=1e-4)
        for alone in (merged(network.expert(2)), one.expert(2)):
            torch.testing.assert_close(alone(images)[:, 0], expected[:, 2], rtol=1e-4, atol=1e-4)
    assert has_adapters(network)
    assert not has_adapters(one)
    own = [module for module in one.modules() if isinstance(module, OwnLinear)]
    assert [len(module.weight) for module in own] == [3] * 2 * 2  # both projections of two blocks


@pytest.mark.parametrize("bias", [True, False])
def test_a_merged_layer_is_one_linear_layer_for_each_expert(bias):
    layer = LowRankLinear(torch.nn.Linear(5, 4, bias=bias), size=2, num_experts=3).double()
    layer.up.data.normal_()
    rows = torch.randn(3, 7, 5, dtype=torch.float64)
    found = layer.plain()(rows.reshape(21, 5)).view(3, 7, 4)
    for index in range(3):
        weight = layer.weight + (layer.down[index] @ layer.up[index]).T
        torch.testing.assert_close(found[index], F.linear(rows[index], weight, layer.bias))


@pytest.mark.slow
def test_costs_that_the_documents_name():
    text = (Path(__file__).parents[2] / "docs" / "own-backbone.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (\d), (\w+)(, LoRA)? \| ([\d.]+) million \(([\d.]+).* \| ([\d.]+) billion", text)
    assert len(rows) == 5
    for experts, split, lora, *numbers in rows:
        kind = "lora" if lora or split == "LoRA" else "adaptformer"
        with torch.device("meta"):  # no weights are drawn: sizes are counted
            network = expert_network("vit_small_patch16_224", num_classes=100, num_experts=int(experts))
            add_adapters(network, kind, split=int(split) if split.isdecimal() else 0)
        weights = [weight for weight in network.parameters() if weight.requires_grad]
        ours = [weight for weight in network.trunk.parameters() if weight.requires_grad]
        millions = [sum(weight.numel() for weight in each) / 1e6 for each in (weights, ours)]
        billions = multiply_adds(network.to_empty(device="cpu"), torch.zeros(1, 3, 224, 224)) / 1e9
        assert [f"{number:.2f}" for number in (*millions, billions)] == numbers


@pytest.mark.parametrize(("classes", "size"), [(100, 4), (365, 8), (1000, 32), (8142, 256), (24, 1), (2, 1)])
def test_sizes_of_lift(classes, size):
    assert adapter_size(classes, 12) == size


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("resnet18", {}, r"this network \(ResNet\) has no blocks that can be adapted; choose a vision transformer"),
        ("vit_srelpos_small_patch16_224", {"image_size": 32}, "has no blocks that can be adapted"),
        ("pvt_v2_b0", {"image_size": 32}, "has no blocks that can be adapted"),  # called as those of a ViT
        ("test_vit", {"split": 2, "image_size": 32}, "share as a whole; take one .* with --split -1"),
        ("resnet32", {"width": 4}, "adapters go into a backbone of timm"),
    ],
)
def test_networks_that_cannot_be_adapted(name, settings, sentence):
    network = expert_network(name, num_classes=3, **settings)
    with pytest.raises(UserError, match=sentence):
        add_adapters(network)
    assert all(weight.requires_grad for weight in network.parameters())


def test_an_attention_that_only_adaptformers_fit(uniform_weights):
    network = made("eva02_tiny_patch14_224", 28)
    with pytest.raises(UserError, match=r"\(EvaAttention\) cannot be adapted so; choose adaptformer"):
        add_adapters(network, "lora")
    images = torch.randn(2, 3, 28, 28)
    with torch.no_grad():
        before = network(images)
        add_adapters(network)
        assert torch.equal(network(images), before)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kind": "adaptor"}, "unknown adapter 'adaptor'"),
        ({"split": 9}, "adapter_split must be 0 to 8, the number of blocks, but is 9"),
        ({"size": -1}, "adapter_size must be at least 1, or 0 for a size by the classes, but is -1"),
    ],
)
def test_wrong_settings(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        add_adapters(made(), **settings)
