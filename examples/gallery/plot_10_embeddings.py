"""
Embeddings
==========

Embeddings of a pretrained network are a table like any other. Here principal components of digits stand for them. One
classifier is fitted once; the prior it answers for is set afterwards, without a refit.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import recall_score

from balpoe import BalPoEClassifier

X, y = load_digits(return_X_y=True)
X = PCA(24, random_state=0).fit_transform(X)
order = np.argsort(np.random.default_rng(0).random(len(X)))
few = [np.flatnonzero(y[order] == digit)[: round(100 * 50 ** (-digit / 9))] for digit in range(10)]
train, test = order[np.concatenate(few)], np.delete(order, np.concatenate(few))

classifier = BalPoEClassifier(epochs=15, mixup_alpha=0, network="head", random_state=0).fit(X[train], y[train])

figure, axes = plt.subplots()
priors = {"train": "as frequent as in training", "uniform": "equally frequent", "backward-50": "the other way round"}
for (prior, words), colour in zip(priors.items(), ("C1", "C0", "C2"), strict=True):
    answers = classifier.set_params(target_prior=prior).predict(X[test])
    recall = 100 * recall_score(y[test], answers, average=None)
    axes.plot(range(10), recall, "o-", color=colour, label=f"{words}: {recall.mean():.0f} % on average")
axes.set_xticks(range(10), [f"{digit}\n{len(each)}" for digit, each in enumerate(few)])
axes.set(xlabel="digit, and its training samples", ylabel="recall, %", ylim=(0, 104))
axes.legend(loc="lower left", title="digits are expected to be")
plt.show()
