"""
What a prior does
=================

One classifier, three places to use it. A lesion is benign (a Gaussian around -1) or malignant (around 1). Where one in
two is malignant, the border lies in the middle. Where one in a hundred is, the same measurement means something else.
Nothing is trained again: the log of the deployment prior is added to balanced logits.
"""

import matplotlib.pyplot as plt
import torch

import balpoe

x = torch.linspace(-4, 5, 300)
logits = torch.stack([-x, x], dim=1)  # exact and balanced: both Gaussians have a deviation of 1

figure, axes = plt.subplots()
for place, share in enumerate((0.5, 0.1, 0.01)):
    moved = balpoe.shift_prior(logits, target_prior=[1 - share, share])
    malignant = moved.softmax(dim=1)[:, 1]
    axes.plot(x, malignant, color=f"C{(0, 3, 5)[place]}")
    border = float(x[malignant > 0.5][0])
    axes.plot(border, 0.5, "o", color=f"C{(0, 3, 5)[place]}")
    axes.annotate(f"{100 * share:g} %", (border, 0.5), (8, -3), textcoords="offset points")
axes.set(xlabel="measurement", ylabel="probability of malignant", title="Where 50, 10 or 1 % are malignant")
plt.show()
