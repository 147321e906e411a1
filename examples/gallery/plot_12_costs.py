"""
Costs of mistakes
=================

Where a class must not be missed, the most probable answer is not the best one. `balpoe.decide` takes what a mistake
costs and answers with the least expected cost. More of the rare class is found, and more others are taken for it.
"""

import matplotlib.pyplot as plt
import torch

import balpoe

torch.manual_seed(0)
truth = (torch.rand(20_000) < 0.05).long()  # one in twenty
x = 2.0 * truth - 1 + torch.randn(len(truth))
logits = torch.stack([-x, x], dim=1)  # balanced

costs = torch.tensor([1.0, 2, 5, 10, 20, 50, 100])
found, alarms = [], []
for cost in costs.tolist():
    answer = balpoe.decide(logits, costs=[1, cost], target_prior=[0.95, 0.05])
    found.append(100 * float((answer[truth == 1] == 1).float().mean()))
    alarms.append(100 * float((answer[truth == 0] == 1).float().mean()))

figure, axes = plt.subplots()
for name, values, colour in (("rare samples that are found", found, "C0"), ("others taken for rare", alarms, "C5")):
    axes.semilogx(costs, values, "o-", color=colour)
    axes.annotate(name, (costs[4], values[4]), (0, 9), textcoords="offset points", color=colour, ha="right")
axes.set_xticks(costs, [f"{cost:g}" for cost in costs.tolist()])
axes.set(xlabel="cost of missing a rare sample; of a false alarm: 1", ylabel="share, %", ylim=(0, 105))
axes.minorticks_off()
axes.set_title("One in twenty is rare")
plt.show()
