"""Features with heavy tails: balanced accuracy of `BalPoEClassifier` with normal scores of them, and without.

    python benchmarks/heavy_tails.py [--seeds 1] [--out results/heavy_tails.json]

The same samples three times: as they are made, through sinh(3 x), and through the quantiles of a Cauchy distribution.
Both maps are monotone, so that a tree would see no difference. A few minutes on one core.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy.stats import norm
from sklearn.datasets import make_classification
from sklearn.metrics import balanced_accuracy_score

from balpoe import BalPoEClassifier
from balpoe.estimator.normal_scores import HEAVY
from balpoe.files import write_json

TRAIN, TEST = 1600, 800
MAPS = {
    "as they are": lambda x: x,
    "sinh(3 x)": lambda x: np.sinh(3 * x),
    "Cauchy": lambda x: np.tan(np.pi * (norm.cdf(x).clip(1e-12, 1 - 1e-12) - 0.5)),
}


def problem(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised samples of 20 features and five classes, of which the rarest has 3 % of the samples."""
    x, y = make_classification(
        TRAIN + TEST, 20, n_informative=8, n_redundant=4, n_classes=5, n_clusters_per_class=2, class_sep=1.2,
        weights=[0.5, 0.25, 0.14, 0.08, 0.03], random_state=seed,
    )  # fmt: skip
    return (x - x.mean(axis=0)) / x.std(axis=0), y


def measured(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each map and seed."""
    for seed in range(seeds):
        x, y = problem(seed)
        for name, mapped in MAPS.items():
            row: dict[str, Any] = {"features": name, "seed": seed}
            for way, heavy in (("normal scores", HEAVY), ("without", np.inf)):
                if name == "as they are" and way == "without":
                    continue  # no feature has heavy tails
                classifier = BalPoEClassifier(random_state=seed)
                with mock.patch("balpoe.estimator.normal_scores.HEAVY", heavy):
                    classifier.fit(mapped(x[:TRAIN]), y[:TRAIN])
                    answers = classifier.predict(mapped(x[TRAIN:]))
                row[way] = float(balanced_accuracy_score(y[TRAIN:], answers))
            yield row


def main() -> None:
    """Measure, print and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/heavy_tails.json"))
    arguments = parser.parse_args()
    rows = []
    for row in measured(arguments.seeds):
        rows.append(row)
        print(row, flush=True)
    write_json(arguments.out, {"train": TRAIN, "test": TEST, "rows": rows})


if __name__ == "__main__":
    main()
