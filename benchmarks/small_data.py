"""Whether calibration helps where there are a few hundred training samples: many subsets, each with a large test set.

    python benchmarks/small_data.py CASE [...] [--pools FOLDER] [--subsets 6] [--first 0]

A CASE is POOL-CLASSES-MOST-RATIO-RATE-ALPHA, such as digits-10-90-50-0.09-0: long-tailed subsets of 10 classes, the
most frequent one, another each time, with 90 samples, trained for 30 epochs at rate 0.09 without mixup, calibrated as
`balpoe train` does. Pools are digits, table and noisy-table (made anew for each subset), and FOLDER/POOL.npz: features,
labels, test_features, test_labels. Results are added to results/small_data.json.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, make_classification
from trust import machine, scores
from trust_data import long_tail, write_features

from balpoe.cli.train import starting_recipe
from balpoe.experiments.calibrate import calibrated_by
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import train_run
from balpoe.files import read_json, write_json

Samples = tuple[np.ndarray, np.ndarray]
TABLES = {"table": (1.0, 0.01), "noisy-table": (0.7, 0.1)}  # distance of the classes, share of random labels
KEPT = ("ece", "ece_of_perfect", "nll_uniform", "nll_train")


def pool(name: str, seed: int, folder: Path) -> tuple[Samples, Samples]:
    """Samples to draw from, and test samples, all classes alike."""
    if name in TABLES:
        distance, random = TABLES[name]
        X, y = make_classification(
            n_samples=12_000, n_classes=6, n_features=30, n_informative=15, n_clusters_per_class=2, random_state=seed,
            class_sep=distance, flip_y=random,
        )  # fmt: skip
        return (X[6000:], y[6000:]), (X[:6000], y[:6000])
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(y))
        X, y = X[order] / 16, y[order]
        tested = np.isin(np.arange(len(y)), [np.flatnonzero(y == label)[:80] for label in range(10)])
        return (X[~tested], y[~tested]), (X[tested], y[tested])
    with np.load(folder / f"{name}.npz") as file:
        return (file["features"], file["labels"]), (file["test_features"], file["test_labels"])


def subset(case: str, seed: int, folder: Path) -> tuple[Samples, Samples]:
    """Long-tailed samples, the frequent classes drawn anew, and the test samples of these classes."""
    name, classes, most, ratio = case.rsplit("-", 5)[:4]
    (X, y), (test_X, test_y) = pool(name, seed, folder)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(y.max() + 1)[: int(classes)]
    counts = long_tail(int(most), int(classes), float(ratio))
    rows = [rng.permutation(np.flatnonzero(y == label))[:n] for label, n in zip(chosen, counts, strict=True)]
    number = np.full(y.max() + 1, -1)
    number[chosen] = np.arange(len(chosen))
    kept, tested = np.concatenate(rows), number[test_y] >= 0
    return (X[kept], number[y[kept]]), (test_X[tested], number[test_y[tested]])


def measure(case: str, seed: int, pools: Path) -> dict[str, Any]:
    """One training: scores before and after calibration, and at the one temperature that suits the test best."""
    with tempfile.TemporaryDirectory() as folder:
        train, test = subset(case, seed, pools)
        write_features(Path(folder) / "data", train, test)
        rate, alpha = (float(each) for each in case.split("-")[-2:])
        settings = {"choose_lr": False, "choose_mixup": False, "epochs": 30, "lr": rate, "mixup_alpha": alpha}
        recipe = starting_recipe(str(Path(folder) / "data.npz"), False)[0]
        changes = {"device": "cpu", "seed": seed, "lambdas": (), **settings}
        run = train_run(updated(recipe, changes), Path(folder) / "run", progress=False)
        predictions, chosen = run.predictions(), read_json(run.folder / "calibration.json")
    best = calibrated_by(replace(predictions, calibration=None), one_temperature=True)
    assert best.calibration is not None
    states = {"before": predictions.uncalibrated(), "after": predictions, "best": best}
    return {
        "seed": seed,
        "train": len(train[1]),
        "test": len(test[1]),
        "held_out": chosen["samples"],
        "temperatures": chosen["temperatures"],
        "frequency_bias": chosen["frequency_bias"],
        "best_temperature": best.calibration.temperatures[0],
        **{name: {key: each for key, each in scores(p).items() if key in KEPT} for name, p in states.items()},
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """Means before and after, and how much they differ, with the standard error of paired differences."""
    parts = []
    for name in ("ece", "nll_uniform", "nll_train"):
        before, after = ([row[when][name] for row in rows] for when in ("before", "after"))
        gains = [b - a for b, a in zip(before, after, strict=True)]
        error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
        better = sum(gain > 0 for gain in gains)
        parts.append(f"{name} {fmean(before):.4f} to {fmean(after):.4f} ({error:.4f}; better in {better})")
    return f"{len(rows)} subsets: " + ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="+", metavar="CASE")
    parser.add_argument("--pools", type=Path, default=Path())
    parser.add_argument("--subsets", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="seed of the first subset")
    parser.add_argument("--out", type=Path, default=Path("results/small_data.json"))
    given = parser.parse_args()
    rows = read_json(given.out)["rows"] if given.out.exists() else {}
    for case in given.cases:
        for seed in range(given.first, given.first + given.subsets):
            known = [row for row in rows.get(case, []) if row["seed"] != seed]
            rows[case] = [*known, measure(case, seed, given.pools)]
            write_json(given.out, {"machine": machine(), "rows": rows})
        print(case, summary(rows[case]), flush=True)


if __name__ == "__main__":
    main()
