"""The method in a training loop of timm's parts: the lines marked BalPoE are all that it changes.

Backbone and images are tiny and made up; take any model of timm, and a loader of `timm.data.create_loader`.
"""

from typing import Any

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import balpoe

CLASS_COUNTS = (200, 60, 20, 6)
LAMBDAS = (1, 0, -1)  # BalPoE: one for each expert


def made_images(class_counts: tuple[int, ...], seed: int) -> TensorDataset:
    """Return noise in the colour of its class, more or less: classes overlap, so that their numbers matter."""
    rng = torch.Generator().manual_seed(seed)
    targets = torch.repeat_interleave(torch.arange(len(class_counts)), torch.tensor(class_counts))
    colours = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])[targets]
    shades = colours + 0.8 * torch.randn(len(targets), 3, generator=rng)
    return TensorDataset(shades[:, :, None, None] + torch.randn(len(targets), 3, 32, 32, generator=rng), targets)


def train(network: nn.Module, loss: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> None:
    """Train as timm's script does."""
    optimizer = create_optimizer_v2(network, opt="adamw", lr=2e-3, weight_decay=0.05)
    scheduler, epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=8, warmup_epochs=1)
    network.train()
    for epoch in range(epochs):
        for images, targets in loader:
            mixed = balpoe.mixup(images, alpha=0.4)  # BalPoE: makes the experts calibrated
            value = balpoe.mixed_loss(loss, network(mixed.images), targets, mixed)  # BalPoE
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        scheduler.step(epoch + 1)


def main() -> None:
    """Train on few images of the last class, and measure on as many of each."""
    torch.manual_seed(0)
    backbone: Any = timm.create_model("test_resnet", num_classes=0)  # BalPoE: features, not classes
    head = balpoe.ExpertHead(backbone.head_hidden_size, len(CLASS_COUNTS), len(LAMBDAS))  # BalPoE
    network = nn.Sequential(backbone, head)
    loss = balpoe.BalPoELoss(CLASS_COUNTS, LAMBDAS)  # BalPoE: in place of cross-entropy
    # A shuffled loader, and no more: a balanced sampler, class weights or smoothed labels would change the prior.
    train(network, loss, DataLoader(made_images(CLASS_COUNTS, seed=1), batch_size=32, shuffle=True))

    images, targets = made_images((100, 100, 100, 100), seed=2).tensors
    with torch.inference_mode():
        expert_logits = network.eval()(images)
    predictions = balpoe.Predictions(expert_logits, targets, torch.tensor(CLASS_COUNTS), torch.tensor(LAMBDAS))
    evaluation = balpoe.evaluate(predictions)
    print(f"balanced accuracy {evaluation.balanced_accuracy:.3f}, few-shot {evaluation.few:.3f}")
    alone = evaluation.experts[0]
    print(
        f"its first expert alone, made for the training prior: {alone.balanced_accuracy:.3f}, few-shot {alone.few:.3f}"
    )


if __name__ == "__main__":
    main()
