"""
Estimating a prior, and when not to trust it
============================================

How frequent classes are in a new place can be read off unlabelled predictions, if these are calibrated. Here the
network is three times too sure. Taken at its word it gives a wrong prior and calls it significant. With labelled
validation predictions of the same network the estimate is right.
"""

import matplotlib.pyplot as plt
import torch

import balpoe

torch.manual_seed(0)
centres, truth = torch.tensor([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]]), torch.tensor([0.15, 0.25, 0.6])


def network(labels: torch.Tensor) -> torch.Tensor:
    """Return logits of samples around the centre of their class: exact ones, but three times too large."""
    x = centres[labels] + torch.randn(len(labels), 2)
    return 3 * (x @ centres.T - centres.square().sum(dim=1) / 2)


field = network(torch.multinomial(truth, 1000, replacement=True))
labels = torch.arange(600) % 3
validation = balpoe.Predictions(network(labels)[:, None], labels, torch.ones(3), torch.zeros(1))

figure, axes = plt.subplots()
for shift, (name, known, colour) in enumerate((("at its word", None, "C5"), ("validated", validation, "C0")), 1):
    found = balpoe.estimate_prior(field, validation=known)
    places = [each + 0.27 * shift for each in range(3)]
    axes.bar(places, (100 * found.estimate).tolist(), 0.25, color=colour, label=f"{name}: p = {found.p_value:.1g}")
    axes.vlines(places, *(100 * found.interval).tolist(), color="k")
axes.bar(range(3), (100 * truth).tolist(), 0.25, color="C1", label="truth")
axes.set_xticks([each + 0.27 for each in range(3)], ["first class", "second", "third"])
axes.set(ylabel="share in the new place, %", title="95 % intervals: only one of the two estimates holds the truth")
axes.legend()
plt.show()
