"""
Rare classes on digits
======================

Handwritten digits made long-tailed: 124 images of the 0, two of the 9. Cross-entropy is one expert with lambda 1.
BalPoE loses nothing on the frequent digits and finds far more of the rare ones.
"""

import matplotlib.pyplot as plt
import torch

import balpoe
from balpoe.training.schedules import Cosine

train, test = balpoe.load_data("digits-lt", imbalance_ratio=50)
counts = train.class_counts

figure, axes = plt.subplots()
for name, lambdas, alpha, colour in (("cross-entropy", (1,), 0, "C1"), ("BalPoE", (1, 0, -1), 0.4, "C0")):
    torch.manual_seed(0)
    network = balpoe.expert_network("mlp", num_classes=10, num_experts=len(lambdas), num_features=64)
    loss = balpoe.BalPoELoss(counts, lambdas)
    balpoe.fit(
        network, loss, train, epochs=30, batch_size=32, lr=0.02, schedule=Cosine(), mixup_alpha=alpha, progress=False
    )
    predictions = balpoe.predict(network, test, class_counts=counts, lambdas=lambdas)
    accuracy = [100 * (each or 0) for each in balpoe.evaluate(predictions, num_resamples=0).per_class]
    axes.plot(range(10), accuracy, "o-", color=colour)
    axes.annotate(name, (9, accuracy[-1]), (8, -3), textcoords="offset points", color=colour)
axes.set_xticks(range(10), [f"{digit}\n{count}" for digit, count in enumerate(counts.tolist())])
axes.set(xlabel="digit, and its training images", ylabel="accuracy, %", xlim=(-0.4, 11))
axes.set_title("Accuracy of each digit on balanced test images")
plt.show()
