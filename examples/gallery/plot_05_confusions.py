"""
A confusion explorer
====================

Which digits are taken for which, by cross-entropy and by BalPoE, on the same balanced test images. Rows are the truth,
most frequent in training first. Cross-entropy answers with frequent digits: its errors lie to the left.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import PowerNorm

import balpoe
from balpoe.training.schedules import Cosine

train, test = balpoe.load_data("digits-lt", imbalance_ratio=50)
figure, panels = plt.subplots(1, 2, figsize=(8, 4.4), sharey=True)
for axes, (name, lambdas, alpha) in zip(panels, (("cross-entropy", (1,), 0), ("BalPoE", (1, 0, -1), 0.4)), strict=True):
    torch.manual_seed(0)
    network = balpoe.expert_network("mlp", num_classes=10, num_experts=len(lambdas), num_features=64)
    loss = balpoe.BalPoELoss(train.class_counts, lambdas)
    balpoe.fit(
        network, loss, train, epochs=30, batch_size=32, lr=0.02, schedule=Cosine(), mixup_alpha=alpha, progress=False
    )
    predictions = balpoe.predict(network, test, class_counts=train.class_counts, lambdas=lambdas)
    pairs = 10 * predictions.targets + predictions.logits.argmax(dim=1)
    shares = 100 * torch.bincount(pairs, minlength=100).view(10, 10) / test.class_counts[:, None]
    shown = axes.imshow(shares.numpy(), norm=PowerNorm(0.5, 0, 100))
    wrong = shares.clone().fill_diagonal_(0)
    for place in wrong.flatten().topk(3).indices.tolist():
        row, column = divmod(place, 10)
        axes.text(column, row, f"{wrong[row, column]:.0f}", ha="center", va="center", color="0.98", fontsize=8)
    axes.grid(visible=False)
    axes.set(xlabel="answer", title=name, xticks=range(10), yticks=range(10))
panels[0].set_ylabel("digit")
figure.colorbar(shown, ax=panels, label="share of the digit's images, %", shrink=0.8)
plt.show()
