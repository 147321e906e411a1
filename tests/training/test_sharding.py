"""Weights in parts: two processes train as one, stop, go on and save as one."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from balpoe import BalPoELoss, UserError, expert_network, fit
from balpoe.networks import add_adapters
from balpoe.training.checkpoints import load_checkpoint
from balpoe.training.distributed import check_devices
from balpoe.training.fit import fit_and_predict
from balpoe.training.settings import FitSettings
from balpoe.training.sharding import _blocks, in_parts, own_part, parts_like, whole
from trainings import Stop, tiny_data

SETTINGS = {
    "epochs": 2, "batch_size": 18, "lr": 0.01, "accumulate": 4, "clip_gradients": 0.5, "device": "cpu",
    "progress": False,
}  # fmt: skip


def transformer(data, **settings):
    torch.manual_seed(1)
    settings = {"image_size": 16, "hidden": 4, **settings}
    return expert_network("test_vit", num_classes=len(data.class_names), **settings)


def adapted(data):
    network = transformer(data)
    add_adapters(network, "lora", size=2, split=1)
    return network


def loss_of(data, stop=0):
    return Stop(BalPoELoss(data.class_counts, (1, 0, -1)), stop)


def assert_same(history, network, expected, straight):
    assert [entry["loss"] for entry in history] == pytest.approx([entry["loss"] for entry in expected], rel=1e-4)
    for ours, theirs in zip(network.parameters(), straight.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


def test_nothing_is_in_parts_while_another_thread_imports_torchs_module_of_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", ModuleType("torch.distributed.tensor"))
    assert not in_parts(nn.Linear(2, 1).parameters())


@pytest.mark.slow
def test_adapters_in_parts_train_stop_and_go_on_as_in_one_process(tmp_path, ready_processes):
    """By AdamW, with an exponential mean; a set of changes for each expert in the last block."""
    data = tiny_data(37, (3, 16, 16))  # of the last batch one process has 10 rows, the other 9
    test, same = data.subset(torch.arange(7)), {**SETTINGS, "optimizer": "adamw", "weight_average_decay": 0.5}
    straight, stopped, ours = (adapted(data) for _ in range(3))
    expected, logits = fit_and_predict(straight, loss_of(data), data, test, FitSettings(**same))
    in_parts = {**same, "run": tmp_path, "devices": 2, "shard": True}
    with pytest.raises(KeyboardInterrupt, match="epoch 2 of 2"):
        fit(stopped, loss_of(data, 3), data, **in_parts)
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    history, found = fit_and_predict(ours, loss_of(data), data, test, FitSettings(**in_parts))
    assert_same(history, ours, expected, straight)
    torch.testing.assert_close(found, logits, rtol=1e-3, atol=1e-3)
    # What is saved is whole, and of what learns alone.
    learning = {name: weight.shape for name, weight in straight.named_parameters() if weight.requires_grad}
    assert {name: tensor.shape for name, tensor in state["network"].items()} == learning
    assert [tensor.shape for tensor in state["mean"]] == list(learning.values())
    assert all(type(tensor) is torch.Tensor for tensor in (*state["network"].values(), *state["mean"]))


@pytest.mark.slow
def test_a_whole_network_in_parts_goes_on_in_one_process(tmp_path, ready_processes):
    """By SGD, with the mean of the weights after each epoch; blocks are computed again for their gradients."""
    data, same = tiny_data(37, (3, 16, 16)), {**SETTINGS, "weight_average_fraction": 1.0}
    straight, stopped, ours = (transformer(data, gradient_checkpointing=True) for _ in range(3))
    expected = fit(straight, loss_of(data), data, **same)
    with pytest.raises(KeyboardInterrupt, match="epoch 2 of 2"):
        fit(stopped, loss_of(data, 3), data, **same, run=tmp_path, devices=2, shard=True)
    with pytest.warns(UserWarning, match="continues with 1 process where 2 began"):
        history = fit(ours, loss_of(data), data, **same, run=tmp_path)
    assert_same(history, ours, expected, straight)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_two_gpus_with_parts_train_as_one(optimizer):
    data = tiny_data(37, (3, 16, 16))
    test, same = data.subset(torch.arange(7)), {**SETTINGS, "optimizer": optimizer, "device": "cuda"}
    same |= {"precision": "32-true", "weight_average_decay": 0.5, "step": "eager"}
    straight, ours = adapted(data), adapted(data)
    expected, logits = fit_and_predict(straight, loss_of(data), data, test, FitSettings(**same))
    in_parts = FitSettings(**same, devices=2, shard=True)
    history, found = fit_and_predict(ours, loss_of(data), data, test, in_parts)
    assert [entry["loss"] for entry in history] == pytest.approx([entry["loss"] for entry in expected], rel=1e-2)
    torch.testing.assert_close(found, logits, rtol=1e-2, atol=0.05)


def test_blocks_are_entries_of_sequences_with_weights_enough():
    data = tiny_data(40, (3, 16, 16))
    network = adapted(data)
    blocks = network.trunk.features.model.blocks
    assert [id(block) for block in _blocks(network)] == [id(block) for block in blocks]
    cut = transformer(data, split=4)  # experts' own blocks are called, the layers around them also one by one
    names = {id(module): name for name, module in cut.named_modules()}
    found = [names[id(block)] for block in _blocks(cut)]
    assert len(found) == 4 + 3 * 2
    assert {name.split(".")[0] for name in found} == {"trunk", "branches"}
    nested = nn.Sequential(nn.Sequential(nn.Linear(200, 200), nn.ReLU(), nn.Linear(9, 9)), nn.Linear(300, 300))
    assert [block.in_features for block in _blocks(nested)] == [200, 300]


def test_tensors_that_are_not_in_parts_stay_as_they_are():
    tensor, like = torch.ones(2), torch.zeros(2)
    assert not in_parts([tensor])
    assert own_part(tensor) is parts_like(tensor, like) is whole(tensor) is tensor
    assert whole({"a": [tensor, 3]}, keep=False) == {"a": [tensor, 3]}


def test_what_cannot_be_in_parts():
    with pytest.raises(UserError, match="a part of the weights, but there is one; add --devices 2"):
        check_devices("cpu", 1, shard=True)
    with pytest.raises(UserError, match=r"precision 16-mixed scales gradients, .* use bf16-mixed, or no shard"):
        FitSettings(shard=True, devices=2, precision="16-mixed")
