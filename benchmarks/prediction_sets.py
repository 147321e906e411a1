"""Coverage and size of prediction sets over many splits of test predictions, as they are and under known class mixes.

    python benchmarks/prediction_sets.py --model models/cifar100-lt-100.safetensors --data-root FOLDER [--splits 100]
    python benchmarks/prediction_sets.py --predictions RUN_OR_FOLDER

Each split takes half of the samples of each class as validation, and measures the other half: coverage over all samples
under the prior (each class's coverage times its share), the mean over classes, and the mean size of sets. The prior is
uniform, forward-50 or backward-50, and known. A minute or two on one core. Writes results/prediction_sets.json.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import balpoe
from balpoe.files import write_json
from balpoe.training.cross_fit import split_folds

ALPHA = 0.1
PRIORS = ("uniform", "forward-50", "backward-50")
WAYS: dict[str, dict[str, Any]] = {
    "marginal": {"method": "marginal"},
    "marginal, aps": {"method": "marginal", "score": "aps"},
    "per-class": {"method": "per-class"},
    "per-class, drawn": {"method": "per-class", "drawn": True},
    "pooled": {"method": "pooled"},
    "prevalence 0.5": {"method": "prevalence", "power": 0.5},
    "prevalence": {"method": "prevalence"},
}


def measured(sets: balpoe.ConformalSets, test: balpoe.Predictions, prior: Tensor) -> Tensor:
    """Coverage under the prior, mean coverage over classes, mean size under the prior, and the least of any class."""
    counts = torch.bincount(test.targets, minlength=test.num_classes)
    hits = torch.zeros(test.num_classes, dtype=torch.float64)
    sizes, start = torch.zeros_like(hits), 0
    for block in sets.predict_blocks(test):
        labels = test.targets[start : start + len(block)]
        hits.index_add_(0, labels, block.gather(1, labels[:, None]).squeeze(1).double())
        sizes.index_add_(0, labels, block.sum(dim=1).double())
        start += len(block)
    coverage = hits / counts
    return torch.stack([prior @ coverage, coverage.mean(), prior @ (sizes / counts), coverage.min()])


def halves(predictions: balpoe.Predictions, seed: int) -> tuple[balpoe.Predictions, balpoe.Predictions]:
    generator = torch.Generator().manual_seed(seed)
    fold = split_folds(predictions.targets, 1, 2, generator, predictions.groups).fold
    first, second = (predictions.subset((fold == number).nonzero().squeeze(1)) for number in (-1, 0))
    return first, second


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--predictions", type=Path, default=None)
    parser.add_argument("--data-root", default="")
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/prediction_sets.json"))
    arguments = parser.parse_args(argv)
    if arguments.model is not None:
        model = balpoe.load(arguments.model)
        model.network.to("cuda" if torch.cuda.is_available() else "cpu")
        predictions = model.predictions(balpoe.load_data(model.recipe.dataset, arguments.data_root or None)[1])
    else:
        predictions = balpoe.load_predictions(arguments.predictions)
    rows = []
    for name in PRIORS:
        prior = balpoe.target_prior(name, predictions)
        found: dict[str, list[Tensor]] = {way: [] for way in WAYS}
        for split in range(arguments.splits):
            validation, test = halves(predictions, split)
            for way, settings in WAYS.items():
                sets = balpoe.ConformalSets.fit(validation, alpha=ALPHA, target_prior=prior, seed=split, **settings)
                found[way].append(measured(sets, test, prior))
        for way, values in found.items():
            table = torch.stack(values)
            numbers = zip(("coverage", "macro", "size", "least"), table.mean(dim=0).tolist(), strict=True)
            error = float(table[:, :2].std(dim=0).max()) / arguments.splits**0.5
            rows.append({"prior": name, "way": way, **dict(numbers), "standard_error": error})
            print(rows[-1], flush=True)
    source = (arguments.model or arguments.predictions).name
    write_json(arguments.out, {"of": source, "alpha": ALPHA, "splits": arguments.splits, "rows": rows})


if __name__ == "__main__":
    main()
