"""Small data, networks and trainings that several test files share."""

import signal

import torch

from balpoe import BalPoELoss, Dataset, expert_network, fit
from balpoe.training.captured_step import CapturedStep
from balpoe.training.eager_step import EagerStep
from balpoe.training.schedules import Cosine


def tiny_data(samples=60, size=(3, 8, 8), classes=4):
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(samples) % classes
    images = torch.randint(0, 128, (samples, *size), dtype=torch.uint8, generator=generator)
    images += (30 * targets).to(torch.uint8)[:, None, None, None]
    return Dataset(images, targets)


def features(samples=80, classes=3):
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(samples) % classes
    return Dataset(torch.randn(samples, 6, generator=generator) + targets[:, None], targets)


def resnet(data):
    torch.manual_seed(1)
    return expert_network("resnet32", num_classes=len(data.class_names), num_experts=2, width=2)


def mlp(data):
    torch.manual_seed(1)
    return expert_network("mlp", num_classes=len(data.class_names), num_experts=3, num_features=6, width=8)


def train(data, network, loss=None, **settings):
    loss = loss or BalPoELoss(data.class_counts, torch.linspace(1, -1, network.num_experts))
    defaults = {"epochs": 4, "batch_size": 16, "lr": 0.05, "schedule": Cosine(), "device": "cpu", "progress": False}
    return fit(network, loss, data, **{**defaults, **settings})


def same_weights(first, second):
    return all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


class Stop:
    """A loss that presses Ctrl-C at its n-th call."""

    def __init__(self, loss, at):
        self.loss, self.at, self.calls = loss, at, 0

    def __call__(self, *arguments, **more):
        self.calls += 1
        if self.calls == self.at:
            signal.raise_signal(signal.SIGINT)
        return self.loss(*arguments, **more)


def losses_of_steps(monkeypatch):
    """A list to which every step of the trainings from here on adds its loss."""
    found = []

    def noted(call):
        def step(*arguments):
            loss = call(*arguments)
            found.append(loss.clone())
            return loss

        return step

    for kind in (EagerStep, CapturedStep):
        monkeypatch.setattr(kind, "__call__", noted(kind.__call__))
    return found
