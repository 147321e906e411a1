"""
An ONNX file
============

A fitted classifier as one file for other runtimes, from raw features to probabilities. The prior of the place is an
input of the file: the same file answers for all digits alike, and for a place where most are nines.
"""

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
from sklearn.datasets import load_digits

from balpoe import BalPoEClassifier

X, y = load_digits(return_X_y=True)
classifier = BalPoEClassifier(epochs=4, mixup_alpha=0, random_state=0).fit(X[:1000], y[:1000])
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "digits.onnx")
    classifier.export(file, images=X[:64])
    session = onnxruntime.InferenceSession(file)
balanced = json.loads(session.get_modelmeta().custom_metadata_map["log_prior"])
nines = np.log([0.02] * 9 + [0.82])

new = X[1000:].astype(np.float32)
figure, axes = plt.subplots()
for name, prior, colour in (("all digits alike", balanced, "C0"), ("82 % nines", nines, "C5")):
    inputs = {"features": new, "log_prior": np.array(prior, dtype=np.float32)}
    (probabilities,) = session.run(["probabilities"], inputs)
    axes.plot(np.sort(100 * probabilities[:, 9])[::-1], color=colour, label=name)
axes.axvline(int((y[1000:] == 9).sum()), color="k", linewidth=1, linestyle="--", label="nines among the samples")
axes.set(xlabel="samples, the surest first", ylabel="probability of a nine, %", xlim=(0, 250))
axes.legend()
plt.show()
