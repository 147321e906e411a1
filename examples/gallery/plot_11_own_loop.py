"""
Your own loop
=============

One loss, in a loop that is yours; any network that returns (batch, experts, classes). The border of the product lies
between the two classes, although one of them has twenty times as many samples; that of lambda 1 leans towards it.
"""

import matplotlib.pyplot as plt
import torch

import balpoe

torch.manual_seed(0)
counts, centres = torch.tensor([1000, 50]), torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
targets = torch.repeat_interleave(torch.arange(2), counts)
x = centres[targets] + torch.randn(len(targets), 2)

network = balpoe.expert_network("mlp", num_classes=2, num_experts=3, num_features=2)
loss = balpoe.BalPoELoss(counts, lambdas=(1, 0, -1))
optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
for _ in range(15):
    for rows in torch.randperm(len(x)).split(64):
        mixed = balpoe.mixup(x[rows], alpha=0.2)
        value = balpoe.mixed_loss(loss, network(mixed.images), targets[rows], mixed)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

grid = torch.linspace(-4, 4, 120)
expert_logits = network.eval()(torch.cartesian_prod(grid, grid).flip(1)).detach()  # row by row
figure, axes = plt.subplots(figsize=(5.4, 4.6))
axes.scatter(x[:, 0], x[:, 1], s=5, color=["C1" if target == 0 else "C5" for target in targets.tolist()])
answers = {"lambda 1": expert_logits[:, 0], "product": balpoe.product_of_experts(expert_logits)}
for (name, logits), style in zip(answers.items(), ("dotted", "solid"), strict=True):
    lines = axes.contour(grid, grid, logits.diff(dim=1).view(120, 120), [0], colors="C0", linestyles=style)
    axes.clabel(lines, fmt={0: name})
axes.set(xlabel="first feature", ylabel="second feature", title="1,000 grey samples, 50 red ones", xlim=(-4, 4))
plt.show()
