"""
Reading experts
===============

Three experts share a trunk, and each learns for another class mix: lambda 1 for the long tail as it is, 0 for equally
frequent classes, -1 for the tail turned around. Their product has no bias. Each shot group shows who is good at what.
"""

import matplotlib.pyplot as plt
import torch

import balpoe
from balpoe.training.schedules import Cosine

LAMBDAS = (1, 0, -1)
train, test = balpoe.load_data("digits-lt", imbalance_ratio=50)
torch.manual_seed(0)
network = balpoe.expert_network("mlp", num_classes=10, num_experts=3, num_features=64)
loss = balpoe.BalPoELoss(train.class_counts, LAMBDAS)
balpoe.fit(network, loss, train, epochs=30, batch_size=32, lr=0.02, schedule=Cosine(), progress=False)
predictions = balpoe.predict(network, test, class_counts=train.class_counts, lambdas=LAMBDAS)
found = balpoe.evaluate(predictions, shot_groups=(10, 50), num_resamples=0)

groups = ("many", "medium", "few")
experts = [(f"lambda {each}", found.experts[place], f"C{(1, 2, 5)[place]}") for place, each in enumerate(LAMBDAS)]
figure, axes = plt.subplots()
for name, scores, colour in (*experts, ("product", found, "C0")):
    values = [100 * getattr(scores, group) for group in groups]
    axes.plot(groups, values, "o-", color=colour, linewidth=3 if name == "product" else 1.5)
    below = -14 if name == "lambda 0" else -3
    axes.annotate(name, (2, values[-1]), (8, below), textcoords="offset points", color=colour)
axes.set(ylabel="accuracy, %", xlabel="training images of a class: above 50, 10 to 50, below 10", xlim=(-0.2, 2.9))
axes.set_title("Long-tailed digits: what each expert is good at")
plt.show()
