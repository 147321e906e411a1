"""The engine of one process and its optimisers against those that they stand in for: the same numbers, to the bit."""

import pytest
import torch
from lightning_fabric import Fabric

from balpoe import BalPoELoss
from balpoe.data.loading.in_memory import Batch
from balpoe.training.distributed import one_device
from balpoe.training.eager_step import EagerStep
from balpoe.training.engine import OneProcess
from balpoe.training.learner import Learner
from balpoe.training.optimizers import make_optimizer
from balpoe.training.plain_optimizers import SGD, AdamW
from balpoe.training.settings import FitSettings
from trainings import resnet, tiny_data


def trained(engine, data, settings, accumulate=1):
    """Losses of some steps, and the network after them."""
    torch.manual_seed(0)
    network = resnet(data)
    optimizer = make_optimizer(network, settings, torch.device("cpu"))
    loss = BalPoELoss(data.class_counts, (1, -1))
    step = EagerStep(engine, Learner(network, loss, optimizer, settings.clip_gradients, accumulate=accumulate))
    batch = Batch(data.preprocessing.normalise(data.images), data.targets)
    losses = [float(step(batch, 0.05, 0.0)) for _ in range(3)]
    return losses, network, step.outputs(batch.images)


@pytest.mark.parametrize("precision", OneProcess.PRECISIONS)
@pytest.mark.parametrize(
    ("settings", "accumulate"),
    [({}, 1), ({"optimizer": "adamw", "clip_gradients": 0.1}, 1), ({"optimizer": "muon"}, 2)],
    ids=["sgd", "adamw-clipped", "muon-in-parts"],
)
@pytest.mark.usefixtures("eight_layers")
def test_one_process_computes_what_fabric_does(precision, settings, accumulate):
    data, settings = tiny_data(), FitSettings(**settings)
    engines = OneProcess(torch.device("cpu"), precision), Fabric(accelerator="cpu", precision=precision)
    (ours, network, outputs), (theirs, other, their_outputs) = (
        trained(engine, data, settings, accumulate) for engine in engines
    )
    assert ours == theirs
    assert ours[0] != ours[-1]
    assert outputs.dtype == their_outputs.dtype == torch.float32
    assert torch.equal(outputs, their_outputs)
    for a, b in zip(network.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_which_engine():
    assert isinstance(one_device("cpu", "auto"), OneProcess)
    assert isinstance(one_device("cpu", "bf16-mixed"), OneProcess)
    assert isinstance(one_device("cpu", "bf16-true"), Fabric)  # one of those that one process has not itself


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        (AdamW, torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    ],
)
def test_optimisers_are_torch_s(ours, theirs, settings):
    def result(kind):
        weights = [torch.nn.Parameter(torch.linspace(-1, 1, 6)), torch.nn.Parameter(torch.ones(2, 3))]
        optimizer = kind([{"params": weights[:1]}, {"params": weights[1:], "lr": 0.02}], fused=True, **settings)
        for number in range(4):
            if number == 2:  # go on with what was kept
                kept, optimizer = optimizer.state_dict(), kind(weights[:1], fused=True, **settings)
                optimizer.add_param_group({"params": weights[1:]})
                optimizer.load_state_dict(kept)
            optimizer.zero_grad()
            assert all(weight.grad is None for weight in weights)
            sum((weight**2).sum() * weight.sum() for weight in weights).backward()
            optimizer.step()
        return weights, optimizer.state_dict()

    (first, state), (second, expected) = result(ours), result(theirs)
    assert all(map(torch.equal, first, second))
    assert state["param_groups"] == expected["param_groups"]
    for number, values in expected["state"].items():
        for name, value in values.items():
            assert torch.equal(torch.as_tensor(state["state"][number][name]), torch.as_tensor(value))
