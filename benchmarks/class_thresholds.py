"""Thresholds of classes, one against the rest: whether what they were fitted for holds on new samples.

    python benchmarks/class_thresholds.py NAME PREDICTIONS [--splits 10]

PREDICTIONS are test predictions, as prediction_sets.py takes them. In each split thresholds are fitted on half of the
samples of each class, under each of three known priors, and measured on both halves: means over the classes, of which
the mean over splits is taken, with the ends of what 95 % of the splits have. A minute or two on one core. Writes
`thresholds` of NAME in results/decisions.json.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from decision_promises import over_splits
from prediction_sets import PRIORS, groups_of, halves, predictions_of, settled
from torch import Tensor

import balpoe
from balpoe.deployment.posteriors import label_weights
from balpoe.files import read_json, write_json

WANTED = 0.8
AIMS: dict[str, dict[str, Any]] = {"recall": {"recall": WANTED}, "precision": {"precision": WANTED}, "f1": {}}


def one_against_rest(yes: Tensor, samples: balpoe.Predictions, prior: Tensor) -> dict[str, Tensor]:
    """Recall, precision and F1 of each class under a prior, (classes,); without a yes precision is not a number."""
    weights = label_weights(samples, prior)
    right = yes.gather(1, samples.targets[:, None]).squeeze(1)
    there, found = (
        torch.bincount(samples.targets, mass, minlength=samples.num_classes) for mass in (weights, weights * right)
    )
    said = weights @ yes.double()
    return {"recall": found / there, "precision": found / said, "f1": 2 * found / (there + said)}


def answered(samples: balpoe.Predictions, prior: Tensor) -> Tensor:
    """A yes for the most probable class alone."""
    return torch.nn.functional.one_hot(balpoe.decide(samples, target_prior=prior), samples.num_classes).bool()


def measured(predictions: balpoe.Predictions, seed: int, name: str, aim: str) -> Mapping[str, Tensor]:
    """One split: what is aimed at, class by class, on the half that was fitted and on the other; and beside it."""
    held_out, test = halves(predictions, seed)
    prior = balpoe.target_prior(name, test)
    thresholds = balpoe.Thresholds.fit(held_out, **AIMS[aim], target_prior=prior, num_resamples=1)
    new = one_against_rest(thresholds(test), test, prior)
    return {
        "fitted": one_against_rest(thresholds(held_out), held_out, prior)[aim],
        "new": new[aim],
        "most probable": one_against_rest(answered(test, prior), test, prior)[aim],
        **{f"new {key}": value for key, value in new.items()},
    }


def threshold_rows(predictions: balpoe.Predictions, splits: int) -> list[dict[str, Any]]:
    """Every aim under every prior."""
    rows, groups = [], groups_of(predictions)
    for name in PRIORS:
        for aim in AIMS:
            found = [measured(predictions, seed, name, aim) for seed in range(splits)]
            means = {key: over_splits([100 * float(one[key].nanmean()) for one in found]) for key in found[0]}
            of_groups = {
                f"new of {group}": over_splits([100 * float(one["new"][mask].nanmean()) for one in found])
                for group, mask in groups.items()
            }
            new, fitted = (torch.stack([one[key] for one in found]) for key in ("new", "fitted"))
            rows.append({
                "prior": name, "aim": aim, "wanted": WANTED if AIMS[aim] else None, **means, **of_groups,
                "kept": 100 * float((new >= WANTED)[~new.isnan()].double().mean()),
                "reached": 100 * float((fitted >= WANTED - 1e-9).double().mean()),
                "no yes": 100 * float(new.isnan().double().mean()),
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="name in the record")
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/decisions.json"))
    arguments = parser.parse_args(argv)
    rows = threshold_rows(settled(predictions_of(arguments.predictions)), arguments.splits)
    record = read_json(arguments.out) if arguments.out.exists() else {}
    record.setdefault(arguments.name, {})["thresholds"] = {"splits": arguments.splits, "rows": rows}
    write_json(arguments.out, record)


if __name__ == "__main__":
    main()
