"""Coverage and size of prediction sets over many splits of test predictions, as they are and under known class mixes.

    python benchmarks/prediction_sets.py NAME PREDICTIONS [--held-out PREDICTIONS] [--splits 100]

PREDICTIONS are a run, its folder of predictions, an .npz file, or a model's .safetensors file (BALPOE_DATA has its test
set). Each split takes half of the samples of each class as validation, and measures the other half: coverage over all
samples under the prior (each class's coverage times its share), the mean over classes, of which the least, and the size
of sets, all of them and by shot group. Beside them is how coverage, class by class the mean over the splits, spreads
over the classes. The prior is uniform, forward-50 or backward-50, and known. With --held-out sets come from a run's
held-out samples, half of which calibrate anew in each of ten splits, and all test samples are measured: what a user
does. A minute or two on one core. Writes `sets` of NAME in results/decisions.json.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import balpoe
from balpoe.evaluation.metrics import shot_groups
from balpoe.experiments.build import recipe_data
from balpoe.files import read_json, write_json
from balpoe.training.cross_fit import split_folds

ALPHA = 0.1
PRIORS = ("uniform", "forward-50", "backward-50")
WAYS: dict[str, dict[str, Any]] = {
    "marginal": {"method": "marginal"},
    "per-class": {"method": "per-class"},
    "pooled": {"method": "pooled"},
    "prevalence": {"method": "prevalence"},
}
HELD_OUT_SPLITS = 10
SHARES = (
    0.0,
    0.1,
    0.5,
    0.9,
    1.0,
)  # of the classes, from the lowest coverage to the highest
ENOUGH = 0.8  # coverage below which a class is counted
Split = Callable[[int], tuple[balpoe.Predictions, balpoe.Predictions]]


def predictions_of(path: Path) -> balpoe.Predictions:
    """Saved predictions, those of a run, or those of a model's file on its test set."""
    if path.suffix != ".safetensors":
        return balpoe.load_predictions(path)
    model = balpoe.load(path)
    return model.predictions(recipe_data(model.recipe)[1])


def settled(predictions: balpoe.Predictions) -> balpoe.Predictions:
    """The calibrated ensemble as one balanced expert: the same posteriors, without averaging anew in every split."""
    assert predictions.source_prior is not None
    assert bool((predictions.source_prior == predictions.source_prior[0]).all())
    return replace(predictions, expert_logits=predictions.logits[:, None], lambdas=torch.zeros(1), calibration=None)


class Coverage(NamedTuple):
    """Coverage of each class, and the mean size of the sets of its samples, (classes,) each."""

    shares: Tensor
    sizes: Tensor


def coverage_of(sets: balpoe.ConformalSets, test: balpoe.Predictions) -> Coverage:
    counts = torch.bincount(test.targets, minlength=test.num_classes)
    hits = torch.zeros(test.num_classes, dtype=torch.float64)
    sizes, start = torch.zeros_like(hits), 0
    for block in sets.predict_blocks(test):
        labels = test.targets[start : start + len(block)]
        hits.index_add_(0, labels, block.gather(1, labels[:, None]).squeeze(1).double())
        sizes.index_add_(0, labels, block.sum(dim=1).double())
        start += len(block)
    return Coverage(hits / counts, sizes / counts)


def groups_of(predictions: balpoe.Predictions) -> dict[str, Tensor]:
    return {name: group for name, group in shot_groups(predictions.class_counts).items() if bool(group.any())}


def summed_up(found: Coverage, prior: Tensor, groups: dict[str, Tensor]) -> dict[str, float]:
    """Coverage and size under the prior, the mean coverage over classes and the least, and both by shot group."""
    coverage, sizes = found
    values = {"coverage": prior @ coverage, "macro": coverage.mean(), "least": coverage.min(), "size": prior @ sizes}
    for name, group in groups.items():
        values |= {f"coverage of {name}": coverage[group].mean(), f"size of {name}": sizes[group].mean()}
    return {name: float(value) for name, value in values.items()}


def spread_over_classes(coverage: Tensor, groups: dict[str, Tensor]) -> dict[str, list[float]]:
    """Quantiles over the classes of their coverage, and the share of classes below 80 %: of all, and by shot group."""
    shares, found = torch.tensor(SHARES, dtype=torch.float64), {}
    for name, group in {"all": torch.ones_like(coverage, dtype=torch.bool), **groups}.items():
        found[f"classes of {name}"] = coverage[group].quantile(shares).tolist()
        found[f"below of {name}"] = [float((coverage[group] < ENOUGH).double().mean())]
    return found


def halves(predictions: balpoe.Predictions, seed: int) -> tuple[balpoe.Predictions, balpoe.Predictions]:
    """Two halves of the samples of each class."""
    generator = torch.Generator().manual_seed(seed)
    fold = split_folds(predictions.targets, 1, 2, generator, predictions.groups).fold
    first, second = (predictions.subset((fold == number).nonzero().squeeze(1)) for number in (-1, 0))
    return first, second


def rows_of(split: Split, splits: int) -> list[dict[str, Any]]:
    """Every way under every prior: means over splits, with the ends of what 95 % of the splits have."""
    found: dict[tuple[str, str], list[Coverage]] = {(name, way): [] for name in PRIORS for way in WAYS}
    for number in range(splits):
        validation, test = split(number)
        for (name, way), values in found.items():
            prior = balpoe.target_prior(name, test)
            settings = {"alpha": ALPHA, "target_prior": prior, "seed": number, **WAYS[way]}
            values.append(coverage_of(balpoe.ConformalSets.fit(validation, **settings), test))
    rows, groups = [], groups_of(test)
    for (name, way), values in found.items():
        prior = balpoe.target_prior(name, test)
        each = [summed_up(value, prior, groups) for value in values]
        table = torch.tensor([list(one.values()) for one in each], dtype=torch.float64)
        ends = table.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
        means = dict(zip(each[0], table.mean(dim=0).tolist(), strict=True))
        cells = zip(each[0], torch.stack([table.mean(dim=0), *ends]).T.tolist(), strict=True)
        by_class = torch.stack([value.shares for value in values]).mean(dim=0)
        rows.append({"prior": name, "way": way, **dict(cells), **spread_over_classes(by_class, groups)})
        print(f"{name}, {way}: " + ", ".join(f"{key} {value:.3f}" for key, value in means.items()), flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="name in the record")
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--held-out", type=Path, default=None)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/decisions.json"))
    arguments = parser.parse_args(argv)
    test = predictions_of(arguments.predictions)
    ensemble = settled(test)
    found: dict[str, Any] = {"alpha": ALPHA, "splits": arguments.splits}
    found["rows"] = rows_of(lambda seed: halves(ensemble, seed), arguments.splits)
    if arguments.held_out is not None:
        held_out = balpoe.load_predictions(arguments.held_out)
        found["held out"] = rows_of(lambda seed: (balpoe.split_validation(held_out, seed)[1], test), HELD_OUT_SPLITS)
    record = read_json(arguments.out) if arguments.out.exists() else {}
    record.setdefault(arguments.name, {})["sets"] = found
    write_json(arguments.out, record)


if __name__ == "__main__":
    main()
