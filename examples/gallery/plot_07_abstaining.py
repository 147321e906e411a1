"""
Abstaining
==========

"I do not know" is an answer, too. The surer a classifier must be, the fewer samples it answers and the fewer of these
answers are wrong. A curve further down is better: at the same share of answers it errs less.
"""

import matplotlib.pyplot as plt
import torch

import balpoe
from balpoe.training.schedules import Cosine

train, test = balpoe.load_data("digits-lt", imbalance_ratio=50)
figure, axes = plt.subplots()
for name, lambdas, alpha, colour in (("cross-entropy", (1,), 0, "C1"), ("BalPoE", (1, 0, -1), 0.4, "C0")):
    torch.manual_seed(0)
    network = balpoe.expert_network("mlp", num_classes=10, num_experts=len(lambdas), num_features=64)
    loss = balpoe.BalPoELoss(train.class_counts, lambdas)
    balpoe.fit(
        network, loss, train, epochs=30, batch_size=32, lr=0.02, schedule=Cosine(), mixup_alpha=alpha, progress=False
    )
    predictions = balpoe.predict(network, test, class_counts=train.class_counts, lambdas=lambdas)
    confidence, answer = predictions.logits.softmax(dim=1).max(dim=1)
    curve = balpoe.risk_coverage(confidence, answer == predictions.targets)
    axes.plot(100 * curve.coverage, 100 * curve.risk, color=colour)
    axes.annotate(name, (100, 100 * curve.risk[-1]), (6, -3), textcoords="offset points", color=colour)
    kept = int((curve.risk <= 0.05).nonzero()[-1])
    point = 100 * float(curve.coverage[kept]), 100 * float(curve.risk[kept])
    axes.plot(*point, "o", color=colour)
    axes.annotate(f"{point[0]:.0f} % answered", point, (8, -12), textcoords="offset points")
axes.axhline(5, color="k", linewidth=1, linestyle="--")
axes.set(xlabel="samples that are answered, %", ylabel="wrong answers among them, %", xlim=(0, 122))
axes.set_title("What an error of 5 % leaves unanswered")
plt.show()
