"""Tokens of adapted backbones under autocast: their type between blocks, and what it costs in precision."""

import copy

import pytest
import torch
from torch.nn import functional as F

from balpoe import expert_network
from balpoe.networks.adapters import add_adapters, merged
from balpoe.networks.autocast_tokens import keep_autocast_type, normalised

BACKBONES = {
    "test_vit": 32,
    "test_vit2": 32,  # layer scale, as DINOv2
    "vit_xsmall_patch16_clip_224": 32,  # a norm before the first block
    "test_vit3": 160,  # pools by attention, as SigLIP does
    "test_vit4": 32,  # another kind of norm
}


def made(name="test_vit2", size=32, **settings):
    torch.manual_seed(0)
    return expert_network(name, num_classes=7, num_experts=3, image_size=size, hidden=8, **settings)


def blocks_of(network):
    model = getattr(network.trunk, "features", network.trunk).model
    return [block for owner in (model, *getattr(model, "stages", ())) for block in getattr(owner, "blocks", ())]


def shaken(network):
    torch.manual_seed(1)
    for weight in network.trunk.parameters():
        weight.data += 0.05 * torch.randn_like(weight) * weight.requires_grad
    return network


def autocast(dtype=torch.bfloat16, enabled=True):
    return torch.autocast("cpu", dtype, enabled=enabled)


def types_seen(network):
    """A list that gets the types of tokens before and behind each block."""
    seen = []
    for block in blocks_of(network):
        block.register_forward_hook(lambda _, inputs, tokens: seen.append((inputs[0].dtype, tokens.dtype)))
    return seen


@pytest.mark.parametrize("name", BACKBONES)
def test_the_first_network_is_the_backbone_in_its_type_bit_for_bit(name):
    plain = made(name, BACKBONES[name]).requires_grad_(False).eval()
    adapted, names = copy.deepcopy(plain), list(plain.state_dict())
    keep_autocast_type(blocks_of(plain))
    assert list(plain.state_dict()) == names
    add_adapters(adapted, size=2)
    adapted.requires_grad_(False)  # by which torch chooses between two ways to multiply
    seen = types_seen(adapted)
    with autocast():
        images = torch.randn(2, 3, *[BACKBONES[name]] * 2)
        assert torch.equal(adapted(images), plain(images))
    assert set(seen[:-1]) == {(torch.bfloat16, torch.bfloat16)}
    assert seen[-1] == (torch.bfloat16, torch.float32)
    assert all(weight.dtype == torch.float32 for weight in adapted.parameters())


@pytest.mark.parametrize("name", ["test_convnext", "vit_small_patch16_dinov3"])
def test_blocks_with_a_layer_scale_of_their_own(name):
    """That of a rotary transformer's attention is multiplied in float32, as the block says; the next block casts."""
    network = made(name).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        before = network.trunk(images)
        add_adapters(network, size=2)
        seen = types_seen(network)
        with autocast():
            assert error(network.trunk(images), before) < 0.01
    assert {entered for entered, _ in seen} == {torch.bfloat16}
    assert seen[-1][1] == torch.float32


def features_and_gradients(network, images, enabled=True):
    network.zero_grad()
    with autocast(enabled=enabled):
        features = network.trunk(images)
    features.float().square().sum().backward()
    gradients = [weight.grad.flatten() for weight in network.trunk.parameters() if weight.grad is not None]
    return features.detach().float(), torch.cat(gradients)


def error(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", ["adaptformer", "lora"])
@pytest.mark.parametrize("split", [0, 2])
def test_features_and_gradients_are_those_of_float32_but_for_rounding(kind, split):
    network = made()
    add_adapters(network, kind, size=2, split=split)
    images = torch.randn(4, 3, 32, 32)
    exact = features_and_gradients(shaken(network), images, enabled=False)
    features, gradients = features_and_gradients(network, images)
    assert 1e-4 < error(features, exact[0]) < 0.01  # a bfloat16 has 8 binary digits
    assert 1e-4 < error(gradients, exact[1]) < 0.03
    if kind == "lora":
        with autocast(), torch.no_grad():
            assert error(merged(network).trunk(images), exact[0]) < 0.01
    with autocast(), torch.no_grad():
        alone, together = network.expert(1)(images)[:, 0], network(images)[:, 1]
    assert error(alone, together) < 0.01


def test_blocks_that_are_computed_again_give_the_same_gradients():
    results = []
    for again in (False, True):
        network = made(gradient_checkpointing=again)
        torch.manual_seed(1)
        add_adapters(network, size=2, split=1)
        results.append(features_and_gradients(shaken(network), torch.ones(2, 3, 32, 32)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_float16_has_too_small_a_range_for_tokens():
    network = made("test_vit")
    add_adapters(network, size=2)
    seen = types_seen(network)
    with autocast(torch.float16), torch.no_grad():
        network(torch.randn(2, 3, 32, 32))
    assert set(seen) == {(torch.float32, torch.float32)}


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm])
def test_statistics_are_of_float32(norm):
    """Of 4096 features around 10, sums in bfloat16 would be off by whole numbers."""
    torch.manual_seed(0)
    tokens, weight = torch.randn(3, 4096) + 10, torch.rand(4096) + 0.5
    with autocast():
        found = normalised(norm, tokens, weight=weight)
    assert found.dtype == torch.bfloat16
    rounded, exact_weight = tokens.bfloat16().double(), weight.bfloat16().double()
    expected = norm(rounded, rounded.shape[-1:], weight=exact_weight, eps=1e-5)
    torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=2**-7)
    assert torch.equal(normalised(norm, tokens, weight=weight), norm(tokens, (4096,), weight=weight, eps=1e-5))
