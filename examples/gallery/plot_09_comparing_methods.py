"""
Comparing methods
=================

A difference is worth as much as its interval. Each method is compared with cross-entropy on the same test images; the
interval is paired: both are measured on the same resamples. One that holds zero shows nothing. Here mixup
alone costs rare classes; what finds them is the adjustment for the training prior.
"""

import matplotlib.pyplot as plt
import torch

import balpoe
from balpoe.training.schedules import Cosine

METHODS = {"cross-entropy": (1,), "mixup": (1,), "logit adjustment": (0,), "BalPoE": (1, 0, -1)}
train, test = balpoe.load_data("digits-lt", imbalance_ratio=50)
answers = {}
for name, lambdas in METHODS.items():
    torch.manual_seed(0)
    network = balpoe.expert_network("mlp", num_classes=10, num_experts=len(lambdas), num_features=64)
    loss = balpoe.BalPoELoss(train.class_counts, lambdas)
    alpha = 0 if name == "cross-entropy" else 0.4
    balpoe.fit(
        network, loss, train, epochs=20, batch_size=32, lr=0.02, schedule=Cosine(), mixup_alpha=alpha, progress=False
    )
    answers[name] = balpoe.predict(network, test, class_counts=train.class_counts, lambdas=lambdas)

figure, axes = plt.subplots(figsize=(6.4, 2.8))
for row, (name, colour) in enumerate(zip(list(METHODS)[1:], ("C1", "C2", "C0"), strict=True)):
    found = balpoe.compare(answers[name], answers["cross-entropy"], num_resamples=300)["balanced_accuracy"]
    gain, low, high = (100 * each for each in found)
    axes.hlines(row, low, high, color=colour, linewidth=4, alpha=0.5)
    axes.plot(gain, row, "o", color=colour)
    axes.annotate(f"{gain:.1f}", (gain, row), (0, 7), textcoords="offset points", ha="center")
axes.axvline(0, color="k", linewidth=1)
axes.set_yticks(range(len(METHODS) - 1), list(METHODS)[1:])
axes.set(xlabel="balanced accuracy against cross-entropy, points, with 95 % interval", ylim=(-0.6, 2.7))
plt.show()
