"""What mixup's weights in the last batches of a training do to calibration, through batch normalisation.

    python benchmarks/last_batches.py [--cells cifar10-lt-100/balpoe] [--seeds 1,2,3,4,5] [--draws released,own]
        [--data-root FOLDER] [--out results/last_batches.json]

A network is used with running statistics of which the last batch makes a tenth, the one before it a tenth of the rest,
and so on. Mixing with a weight w leaves w^2 + (1 - w)^2 of the variance, so the weights of some twenty batches decide
what the test images are divided by. The results of `balpoe reproduce` are trained with weights of their own seeds, and
with those of the released code, which are the same whatever its seed. Each network is measured with the statistics that
it has at the end, and with those of an epoch more of which each batch counts alike, mixed as in training or not at all.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import balpoe.training.loop
from balpoe.data.loading.epoch_plan import EpochPlan, plan_epoch
from balpoe.evaluation.evaluate import evaluate
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.build import assemble
from balpoe.experiments.recipe import Recipe, updated
from balpoe.files import write_json
from balpoe.paper.expected import PAPER_RESULTS
from balpoe.paper.training_cost import SAMPLES
from balpoe.training.concurrent import TRAININGS_AT_ONCE, Work, side_by_side
from balpoe.training.fit import fit_and_predict_by_step
from balpoe.training.interrupts import Interrupt

CLASSES = {"cifar10-lt": (10, 5000), "cifar100-lt": (100, 500)}
"""Number and size before classes were made rare: the released code shuffles each of them first."""
MOMENTUM = 0.1
"""Momentum of torch's batch normalisation."""


@dataclass
class NetworkScores:
    """One network with one kind of statistics."""

    cell: str
    draws: str
    seed: int
    statistics: str
    variance_left: float
    """Share that the mixing of the last batches leaves; for the other statistics, its average."""
    accuracy: float
    ece: float
    nll: float
    overconfidence: float
    """Mean confidence less accuracy."""

    def __str__(self) -> str:
        numbers = (self.variance_left, *(100 * v for v in (self.accuracy, self.ece, self.overconfidence)), self.nll)
        title = f"{self.cell}, {self.draws} draws, seed {self.seed}, {self.statistics}"
        return f"{title:80} " + "{:6.3f} {:6.1f} {:6.1f} {:+6.1f} {:6.3f}".format(*numbers)


def variance_left(weights: Sequence[float]) -> float:
    """What mixing leaves of the variance, as the running statistics weigh the batches."""
    left = np.square(weights) + np.square(1 - np.asarray(weights))
    parts = MOMENTUM * (1 - MOMENTUM) ** np.arange(len(left))[::-1]
    return float(parts @ left / parts.sum())


def own_weights(recipe: Recipe) -> list[float]:
    """Mixup's weights in the last three epochs of a training by this project, which its recipe decides."""
    sizes = SAMPLES[recipe.dataset, int(recipe.imbalance_ratio)], recipe.batch_size
    last = range(max(0, recipe.epochs - 3), recipe.epochs)
    plans = (plan_epoch(recipe.seed, epoch, *sizes, mixup_alpha=recipe.mixup_alpha) for epoch in last)
    return [batch.weight for plan in plans for batch in plan.batches]


def released_weights(recipe: Recipe) -> list[float]:
    """Mixup's weights in the released code, from the first batch on: its data set sets numpy's seed to 0 for itself."""
    rng = np.random.RandomState(0)
    classes, size = CLASSES[recipe.dataset]
    for _ in range(classes):
        rng.shuffle(np.arange(size))
    batches = -(-SAMPLES[recipe.dataset, int(recipe.imbalance_ratio)] // recipe.batch_size)
    return [rng.beta(recipe.mixup_alpha, recipe.mixup_alpha) for _ in range(recipe.epochs * batches)]


def planned(weights: Sequence[float]) -> Callable[..., EpochPlan]:
    """Return `plan_epoch` with other weights of mixup."""

    def plan(seed: int, epoch: int, *sizes: int, **mixing: Any) -> EpochPlan:
        found = plan_epoch(seed, epoch, *sizes, **mixing)
        first = epoch * len(found.batches)
        if not found.mixes or first >= len(weights):
            return found
        given = zip(found.batches, weights[first : first + len(found.batches)], strict=True)
        return replace(found, batches=tuple(replace(batch, weight=weight) for batch, weight in given))

    return plan


def measured(cell: str, draws: str, recipe: Recipe, interrupt: Interrupt) -> "Work[list[NetworkScores]]":
    """Train one network; measure it with three kinds of statistics."""
    made = []
    yield lambda: made.append(assemble(recipe))
    (parts,) = made
    weights = own_weights(recipe) if draws == "own" else released_weights(recipe)
    alpha = recipe.mixup_alpha
    # A rate of 0 leaves the weights, and so does the mean of one epoch; what is new are the statistics after it.
    again = {"epochs": 1, "schedule": lambda epoch, epochs: 0.0, "weight_average_fraction": 1.0, "step": "eager"}
    kinds: dict[str, tuple[dict[str, Any], float]] = {
        "last batches": ({}, variance_left(weights)),
        "an epoch, mixed": (again, (alpha + 1) / (2 * alpha + 1)),  # the mean of w^2 + (1 - w)^2
        "an epoch, not mixed": ({**again, "mixup_alpha": 0.0}, 1.0),
    }
    rows = []
    for statistics, (changes, left) in kinds.items():
        settings = replace(parts.settings, progress=False, **changes)
        samples = parts.train, parts.test
        _, logits = yield from fit_and_predict_by_step(parts.trained, parts.loss, *samples, settings, interrupt)
        assert logits is not None
        predictions = Predictions(logits.cpu(), parts.test.targets, parts.train.class_counts, parts.lambdas)
        scores = evaluate(predictions, num_resamples=0)
        assert scores.nll is not None
        bins = scores.reliability
        confidence = sum(share * value for share, value in zip(bins["share"], bins["confidence"], strict=True))
        numbers = scores.accuracy, scores.ece, scores.nll, confidence - scores.accuracy
        rows.append(NetworkScores(cell, draws, recipe.seed, statistics, left, *numbers))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", default="cifar10-lt-100/balpoe,cifar10-lt-100/cross-entropy-mixup")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--draws", default="released,own")
    parser.add_argument("--data-root", default="")
    parser.add_argument("--out", type=Path, default=Path("results/last_batches.json"))
    arguments = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if gpu else "CPU"
    print(f"{device}, torch {torch.__version__}")
    print(f"{'':80} {'left':>6} {'acc.':>6} {'ECE':>6} {'over':>6} {'nll':>6}")
    rows: list[NetworkScores] = []
    for cell, draws in itertools.product(arguments.cells.split(","), arguments.draws.split(",")):
        numbered = (PAPER_RESULTS[cell].recipe(int(seed)) for seed in arguments.seeds.split(","))
        recipes = [updated(recipe, {"data_root": arguments.data_root}) for recipe in numbered]
        plan = plan_epoch if draws == "own" else planned(released_weights(recipes[0]))
        with mock.patch.object(balpoe.training.loop, "plan_epoch", plan), Interrupt() as interrupt:
            works = (measured(cell, draws, recipe, interrupt) for recipe in recipes)
            for found in side_by_side(works, TRAININGS_AT_ONCE if gpu else 1):
                rows += found
                print(*found, sep="\n", flush=True)
                result = {"device": device, "torch": torch.__version__, "rows": [asdict(row) for row in rows]}
                write_json(arguments.out, result)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
