"""
Prediction sets
===============

Instead of one answer, a set of classes that holds the right one in 90 of 100 cases. "Marginal" keeps that promise over
all samples, not for each class; "per-class" does, with larger sets, as well as 200 validation samples a class can tell.
"""

import matplotlib.pyplot as plt
import torch

import balpoe

torch.manual_seed(0)
names, counts = ("oak", "beech", "ash", "elm", "yew"), torch.tensor([800, 300, 100, 40, 15])
spread = torch.tensor([0.7, 0.8, 1.0, 1.3, 1.6])  # rare trees are harder to tell


def seen(samples: int) -> balpoe.Predictions:
    """Return made-up predictions for as many samples of each tree."""
    targets = torch.arange(samples) % 5
    logits = 3 * torch.nn.functional.one_hot(targets, 5) + 1.5 * spread[targets, None] * torch.randn(samples, 5)
    return balpoe.Predictions(logits[:, None], targets, counts, torch.zeros(1), names)


validation, test = seen(1000), seen(5000)
figure, panels = plt.subplots(1, 2, figsize=(8, 3.6))
for shift, (method, colour) in enumerate((("marginal", "C1"), ("per-class", "C0"))):
    held = balpoe.ConformalSets.fit(validation, alpha=0.1, method=method).predict(test)
    covered = [100 * float(held[test.targets == each, each].float().mean()) for each in range(5)]
    sizes = [float(held[test.targets == each].sum(dim=1).float().mean()) for each in range(5)]
    for axes, values in zip(panels, (covered, sizes), strict=True):
        axes.bar([each + 0.4 * shift - 0.2 for each in range(5)], values, 0.38, color=colour, label=method)
        axes.set_xticks(range(5), names)
panels[0].axhline(90, color="k", linewidth=1, linestyle="--")
panels[0].set(ylabel="sets that hold the tree, %", ylim=(60, 100), title="What is promised: 90 %")
panels[1].set(ylabel="classes in a set, mean", ylim=(0, 2.5), title="What it costs")
panels[1].legend()
plt.show()
