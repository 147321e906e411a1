"""
Calibration, before and after
=============================

A network that has learnt noise by heart is too sure. One temperature, fitted on samples outside of training, brings
its confidence down to what comes true. The dashed line is a classifier whose confidence is exactly right.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_classification

import balpoe
from balpoe.evaluation.metrics import calibration_bins, expected_calibration_error

X, y = make_classification(4000, 20, n_informative=6, n_classes=3, weights=[0.7, 0.2], flip_y=0.2, random_state=0)
data = balpoe.Dataset(torch.tensor(X, dtype=torch.float32), torch.tensor(y))
train, held_out, test = (data.subset(torch.arange(*ends)) for ends in ((0, 600), (600, 1200), (1200, 4000)))

torch.manual_seed(0)
network = balpoe.expert_network("mlp", num_classes=3, num_experts=3, num_features=20)
balpoe.fit(network, balpoe.BalPoELoss(train.class_counts), train, epochs=30, mixup_alpha=0, progress=False)
about = train.class_counts, (1, 0, -1)
unseen, final = (balpoe.predict(network, part, class_counts=about[0], lambdas=about[1]) for part in (held_out, test))
temperature = balpoe.fit_temperature(unseen.expert_logits, unseen.targets, *about)

figure, axes = plt.subplots(figsize=(4.8, 4.4))
axes.plot([0.3, 1], [0.3, 1], "k--", linewidth=1)
for name, value, colour in (("before", 1.0, "C1"), ("after", temperature, "C0")):
    logits = balpoe.product_of_experts(balpoe.at_temperature(final.expert_logits, value, *about))
    confidence, answer = balpoe.shift_prior(logits, about[0] / about[0].sum()).softmax(dim=1).max(dim=1)
    bins = calibration_bins(confidence, answer == final.targets, num_bins=10)
    ece = 100 * float(expected_calibration_error(bins))
    axes.plot(bins.confidence, bins.accuracy, "o-", color=colour, label=f"{name}: T = {value:.2f}, ECE {ece:.1f} %")
axes.set(xlabel="confidence", ylabel="share of right answers", title="Temperature of the training posterior")
axes.legend(loc="upper left")
plt.show()
