import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from balpoe import UserError, expert_network
from balpoe.networks.adapters import add_adapters
from balpoe.networks.frozen_weights import (
    check_frozen,
    frozen_digest,
    load_trained,
    tensor_bytes,
    trained_state,
    weights_digest,
)


def network(seed=0, kind=None):
    torch.manual_seed(0)
    made = expert_network("test_vit", num_classes=5, image_size=32, hidden=4)
    torch.manual_seed(seed)
    if kind:
        add_adapters(made, kind)
    return made.eval()


def test_only_what_is_trained_is_saved_and_goes_into_the_same_backbone():
    first, second = network(1, "lora"), network(2, "lora")
    for weight in first.parameters():
        weight.data += 0.1 * weight.requires_grad
    images = torch.randn(2, 3, 32, 32)
    state = trained_state(first)
    assert set(state) == {name for name, weight in first.named_parameters() if weight.requires_grad}
    assert sum(tensor.numel() for tensor in state.values()) < 0.1 * sum(each.numel() for each in first.parameters())
    assert not torch.allclose(first(images), second(images))
    load_trained(second, state)
    assert torch.equal(first(images), second(images))
    load_trained(second, first.state_dict())  # as earlier versions saved it
    with pytest.raises(RuntimeError, match="Missing key"):
        load_trained(second, {})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        load_trained(second, {**state, "other": torch.zeros(1)})


def test_the_digest_is_that_of_the_backbone_whatever_is_put_into_it():
    plain = network()
    plain.trunk.requires_grad_(False)
    expected = hashlib.sha256()
    for weight in plain.trunk.parameters():
        expected.update(f"{tuple(weight.shape)} {weight.dtype}\n".encode() + weight.detach().numpy().tobytes())
    adapted = [network(0, "lora"), network(1, "lora"), network(0, "adaptformer")]
    assert {frozen_digest(each) for each in (plain, *adapted)} == {expected.hexdigest()}
    other = network(0, "lora")
    other.trunk.model.pos_embed.data[0, 0, 0] += 1e-6
    assert frozen_digest(other) != expected.hexdigest()
    assert frozen_digest(network()) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_digests_of_every_type_and_layout(dtype):
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.arange(6).view(2, 3).to(dtype).T, requires_grad=False)
    again = nn.Module()
    again.weight = nn.Parameter(layer.weight.detach().contiguous(), requires_grad=False)
    assert frozen_digest(layer) == frozen_digest(again)
    again.weight.data[0, 0] = 7
    assert frozen_digest(layer) != frozen_digest(again)


def test_bytes_of_empty_tensors_and_of_numbers():
    for empty in (torch.from_numpy(np.zeros((0, 3))), torch.zeros(0).expand(0), torch.zeros(2, 0, dtype=torch.float64)):
        assert bytes(tensor_bytes(empty)) == b""
    assert bytes(tensor_bytes(torch.tensor(1.0))) == np.float32(1).tobytes()
    module = nn.Module()
    module.register_buffer("empty", torch.from_numpy(np.concatenate([np.zeros(0)] * 2)))
    assert weights_digest(module) == hashlib.sha256(b"(0,) torch.float64\n").hexdigest()


def test_another_backbone_is_named_by_its_digest():
    check_frozen("a", "a", "file")
    with pytest.raises(UserError, match=r"^file was trained on a backbone of digest b, not none; give it its weights"):
        check_frozen("", "b", "file")
