"""What knowing the prior of a place is worth: made-up sites, with priors exact, from 200 labels each, or a yes/no list.

    python benchmarks/sites.py [models/cifar100-lt-100.safetensors | RUN | PREDICTIONS.npz] [--repetitions 30]

Each site has a prior from Dirichlet(a), and test samples drawn from the test set by that prior; 200 labels from the
same prior are its counts. Gains in accuracy are over the classifier as trained; means over repetitions, with 95 %
intervals.
"""

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prediction_sets import predictions_of
from torch import Tensor

import balpoe
from balpoe.files import write_json

MODEL = Path(__file__).parents[1] / "models" / "cifar100-lt-100.safetensors"
CONCENTRATIONS = (0.1, 0.3, 1.0)
WAYS = ("as trained", "exact prior", "shrunk counts", "raw counts", "yes/no list")


def measure(
    predictions: balpoe.Predictions, a: float, sites: int, labels: int, samples: int, seed: int
) -> dict[str, Any]:
    """One draw of all sites: accuracy and NLL of each way to use what is known of them, over all their samples."""
    rng = np.random.default_rng([seed, round(100 * a)])
    classes = predictions.num_classes
    priors = rng.dirichlet(np.full(classes, a), size=sites)
    priors = np.maximum(priors, 1e-12) / np.maximum(priors, 1e-12).sum(axis=1, keepdims=True)
    counts = np.stack([rng.multinomial(labels, prior) for prior in priors])
    cells = {
        str(site): dict(zip(predictions.class_names, row, strict=True)) for site, row in enumerate(counts.tolist())
    }
    table = balpoe.PriorTable.read(cells, predictions.class_names, ["site"], kind="counts")
    rows = np.concatenate([_drawn(predictions.targets.numpy(), prior, samples, rng) for prior in priors])
    site = torch.arange(sites).repeat_interleave(samples)
    assert predictions.source_prior is not None
    source = predictions.source_prior.double()
    seen = torch.from_numpy(counts)
    known = {
        "as trained": source.expand(sites, -1),
        "exact prior": torch.from_numpy(priors),
        "shrunk counts": table.lookup([str(number) for number in range(sites)]),
        "raw counts": seen / labels,
        "yes/no list": (seen > 0) * source,
    }
    logits, targets = predictions.logits.double()[rows], predictions.targets[rows]
    scores = {way: _scores(logits + (prior / source).log()[site], targets) for way, prior in known.items()}
    return {"strength": table.strengths[-1], **scores}


def _drawn(targets: np.ndarray, prior: np.ndarray, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Test samples whose labels follow a prior, with replacement."""
    weights = (prior / np.bincount(targets, minlength=len(prior)).clip(min=1))[targets]
    return rng.choice(len(targets), samples, p=weights / weights.sum())


def _scores(logits: Tensor, targets: Tensor) -> dict[str, float | None]:
    nll = float(torch.nn.functional.cross_entropy(logits, targets))
    return {
        "accuracy": float((logits.argmax(dim=1) == targets).double().mean()),
        "nll": nll if math.isfinite(nll) else None,
    }


def summary(several: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the repetitions with their 95 % intervals (Student's t)."""
    found: dict[str, Any] = {"strength": mean_with_interval([each["strength"] for each in several])}
    for way in WAYS:
        gains = [100 * (each[way]["accuracy"] - each["as trained"]["accuracy"]) for each in several]
        shares = [
            gain / (each["exact prior"]["accuracy"] - each["as trained"]["accuracy"])
            for gain, each in zip(gains, several, strict=True)
        ]
        losses = [each[way]["nll"] for each in several]
        found[way] = {
            "accuracy": mean_with_interval([100 * each[way]["accuracy"] for each in several]),
            "gain": mean_with_interval(gains),
            "regained": mean_with_interval(shares),
            "nll": None if None in losses else mean_with_interval(losses),
        }
    return found


def mean_with_interval(values: list[float]) -> list[float]:
    """Mean and the ends of its 95 % interval (Student's t)."""
    from scipy.stats import t

    mean, size = statistics.fmean(values), len(values)
    half = float(t.ppf(0.975, size - 1)) * statistics.stdev(values) / math.sqrt(size)
    return [mean, mean - half, mean + half]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("predictions", nargs="?", type=Path, default=MODEL)
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--labels", type=int, default=200, help="labelled images a site")
    parser.add_argument("--samples", type=int, default=500, help="test samples a site")
    parser.add_argument("--out", type=Path, default=Path("results/sites.json"))
    arguments = parser.parse_args()
    predictions = predictions_of(arguments.predictions)
    settings = {name: getattr(arguments, name) for name in ("repetitions", "sites", "labels", "samples")}
    rows = []
    for a in CONCENTRATIONS:
        several = [
            measure(predictions, a, arguments.sites, arguments.labels, arguments.samples, seed)
            for seed in range(arguments.repetitions)
        ]
        rows.append({"concentration": a, **summary(several)})
        print(f"Dirichlet({a:g}): strength {rows[-1]['strength'][0]:.1f}")
        for way in WAYS:
            shown = (f"{name} {value[0]:.2f}" if value else f"{name} -" for name, value in rows[-1][way].items())
            print(f"  {way}: " + ", ".join(shown), flush=True)
    write_json(arguments.out, {"predictions": arguments.predictions.name, **settings, "rows": rows})


if __name__ == "__main__":
    main()
