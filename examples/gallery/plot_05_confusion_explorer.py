"""
A confusion explorer
====================

Which digits are taken for which, and what do these images look like? Left: how often each digit gets each answer.
Right: the most frequent mistakes, each with its surest images. `balpoe report` has the same page for your own images.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import PowerNorm

import balpoe
from balpoe.training.schedules import Cosine

train, test = balpoe.load_data("digits-lt", imbalance_ratio=50)
torch.manual_seed(0)
network = balpoe.expert_network("mlp", num_classes=10, num_experts=3, num_features=64)
loss = balpoe.BalPoELoss(train.class_counts, lambdas=(1, 0, -1))
balpoe.fit(network, loss, train, epochs=30, batch_size=32, lr=0.02, schedule=Cosine(), progress=False)
predictions = balpoe.predict(network, test, class_counts=train.class_counts, lambdas=(1, 0, -1))
confidence, answers = predictions.logits.softmax(dim=1).max(dim=1)
shares = 100 * torch.bincount(10 * test.targets + answers, minlength=100).view(10, 10) / test.class_counts[:, None]

figure, panels = plt.subplot_mosaic("A1;A2;A3", figsize=(8, 4.4))
shown = panels["A"].imshow(shares.numpy(), norm=PowerNorm(0.5, 0, 100))
panels["A"].grid(visible=False)
panels["A"].set(xlabel="answer", ylabel="digit", xticks=range(10), yticks=range(10), title="All digits")
figure.colorbar(shown, ax=panels["A"], label="share of the digit's images, %", shrink=0.8)
worst = shares.clone().fill_diagonal_(0).flatten().topk(3).indices.tolist()
for panel, (digit, answer) in zip("123", (divmod(place, 10) for place in worst), strict=True):
    share = f"{shares[digit, answer]:.0f}"
    panels["A"].text(answer, digit, share, ha="center", va="center", color="0.98", fontsize=8)
    confused = ((test.targets == digit) & (answers == answer)).nonzero()[:, 0]
    surest = confused[confidence[confused].argsort(descending=True)][:4]
    strip = torch.cat([test.images[each].view(8, 8) for each in surest], dim=1)
    panels[panel].imshow(strip.numpy(), cmap="gray_r")
    panels[panel].set(title=f"{digit} taken for {answer}: {share} %", xticks=[], yticks=[], xlim=(-1, 32))
plt.show()
