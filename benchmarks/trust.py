"""Whether probabilities come true on anybody's data, beside cross-entropy that is adjusted and calibrated the same way.

    python benchmarks/trust.py NAME=DATA [NAME=DATA ...] [--jobs 16] [--runs FOLDER]

DATA is what `balpoe train` takes: a folder of images, a table, or features. Each is trained with its defaults, with
cross-entropy and with one logit-adjusted expert, whose mixup and temperatures are chosen in the same way. docs/trust.md
has the table of results/trust.json, to which this adds, one data set after the other. With --jobs several trainings run
at once, each in its own process. With --runs the trainings are kept: the same command again goes on where it stopped.
"""

import argparse
import multiprocessing
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import balpoe
from balpoe.cli.train import starting_recipe
from balpoe.evaluation.metrics import calibration_bins, expected_calibration_error
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import Run, train_run
from balpoe.files import read_json, write_json
from balpoe.method.intervals import bootstrap

METHODS = {"cross-entropy": (1.0,), "logit-adjusted": (0.0,), "BalPoE": ()}
PRIORS = ("uniform", "train", "backward-50")
REDRAWN = 500  # times that labels are drawn from the probabilities


def train(path: str, method: str, folder: Path, changes: dict[str, Any]) -> None:
    """Train one method, and keep how long it took in all, choices included."""
    started = time.monotonic()
    recipe = updated(starting_recipe(path, False)[0], {**changes, "lambdas": METHODS[method]})
    run = train_run(recipe, folder, progress=False)
    if not (kept := run.folder / "in_all.json").exists():
        write_json(kept, {"seconds": time.monotonic() - started})


def trained(data: dict[str, str], runs: Path, changes: dict[str, dict[str, Any]], jobs: int) -> Iterator[str]:
    """Train every method on every data set; yield the name of each data set once all of its runs are there.

    The first method goes ahead alone: it computes the features of images, which the others find.
    """
    todo: dict[Future[None], tuple[str, str]] = {}
    left = {name: list(METHODS) for name in data}
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:

        def start(name: str, method: str) -> None:
            todo[pool.submit(train, data[name], method, runs / name / method, changes[name])] = name, method

        first, *others = METHODS
        for name, path in data.items():
            for method in METHODS if is_features(path) else (first,):
                start(name, method)
        while todo:
            for future in wait(todo, return_when=FIRST_COMPLETED).done:
                name, method = todo.pop(future)
                if (error := future.exception()) is not None:
                    print(f"{name}, {method}: {error}", flush=True)
                    continue
                left[name].remove(method)
                if not is_features(data[name]) and method == first:
                    for other in others:
                        start(name, other)
                if not left[name]:
                    yield name


def is_features(path: str) -> bool:
    return Path(path).suffix == ".npz"


def log_probabilities(predictions: Predictions, prior: Tensor) -> Tensor:
    return predictions.adjusted(predictions.logits.double(), prior).log_softmax(dim=1)


def calibration_error(confidence: Tensor, correct: Tensor) -> float:
    return float(expected_calibration_error(calibration_bins(confidence, correct, 15, None)))


def perfect_band(confidence: Tensor) -> float:
    """The ECE below which 95 % of perfectly calibrated models lie: each answer is right as often as it says."""
    generator = torch.Generator().manual_seed(0)
    draws = [
        calibration_error(
            confidence, torch.rand(len(confidence), generator=generator, dtype=torch.float64) < confidence
        )
        for _ in range(REDRAWN)
    ]
    return float(torch.tensor(draws).quantile(0.95))


def prior_of(name: str, predictions: Predictions) -> Tensor:
    """A prior over the classes that the test set has."""
    prior = balpoe.target_prior(name, predictions)
    prior = prior * (torch.bincount(predictions.targets, minlength=len(prior)) > 0)
    return prior / prior.sum()


def scores(predictions: Predictions) -> dict[str, Any]:
    """What one method reaches, each prior known to it."""
    probabilities = log_probabilities(predictions, prior_of("uniform", predictions)).exp()
    counts = torch.bincount(predictions.targets, minlength=predictions.num_classes)
    confidence, answer = probabilities.max(dim=1)
    right = (answer == predictions.targets).double()
    found: dict[str, Any] = {
        "balanced_accuracy": float((right / counts[predictions.targets]).sum() / (counts > 0).sum()),
        "ece": calibration_error(confidence, right.bool()),
        "ece_of_perfect": perfect_band(confidence),
    }
    for name in PRIORS:
        prior = prior_of(name, predictions)
        found[f"nll_{name}"] = float(weighted(losses(predictions, prior), predictions.targets, prior)(None)[0])
    return found


def losses(predictions: Predictions, prior: Tensor) -> Tensor:
    return -log_probabilities(predictions, prior).gather(1, predictions.targets[:, None]).squeeze(1)


def weighted(values: Tensor, targets: Tensor, prior: Tensor) -> Callable[[Tensor | None], Tensor]:
    """The mean of values under a prior, for rows of counts of the samples."""
    weights = (prior / torch.bincount(targets, minlength=len(prior)).clamp(min=1))[targets]

    def mean(counts: Tensor | None) -> Tensor:
        rows = weights[None] if counts is None else counts * weights
        found: Tensor = rows @ values / rows.sum(dim=1)
        return found

    return mean


def differences(ours: Predictions, theirs: Predictions) -> dict[str, list[float]]:
    """Ours minus theirs on the same samples, with paired 95 % intervals."""
    found = {}
    for name in ("balanced_accuracy", *(f"nll_{each}" for each in PRIORS)):
        prior = prior_of("uniform" if name == "balanced_accuracy" else name.removeprefix("nll_"), ours)
        if name == "balanced_accuracy":
            pair = [(log_probabilities(p, prior).argmax(dim=1) == p.targets).double() for p in (ours, theirs)]
        else:
            pair = [losses(p, prior) for p in (ours, theirs)]
        mean = weighted(pair[0] - pair[1], ours.targets, prior)
        low, high = bootstrap(lambda counts: mean(counts)[:, None], ours.targets).tolist()  # noqa: B023 (used at once)
        found[name] = [float(mean(None)[0]), low[0], high[0]]
    return found


def measure(runs: Path) -> dict[str, Any]:
    """A row of the record, from the finished runs of all methods."""
    done = {name: Run(runs / name) for name in METHODS}
    predictions = {name: run.predictions() for name, run in done.items()}
    ours = predictions["BalPoE"]
    row: dict[str, Any] = {
        "classes": ours.num_classes,
        "train": int(ours.class_counts.sum()),
        "ratio": float(ours.class_counts.max() / ours.class_counts.min()),
        "test": len(ours),
        "seconds": {name: run.seconds() for name, run in done.items()},
        "seconds_in_all": {name: read_json(run.folder / "in_all.json")["seconds"] for name, run in done.items()},
        "made": time.strftime("%Y-%m-%d"),
        "machine": machine(),
    }
    for name, each in predictions.items():
        chosen = read_json(done[name].folder / "calibration.json")
        row[name] = {**scores(each), "before": scores(each.uncalibrated()), "chosen": chosen}
    for name in ("cross-entropy", "logit-adjusted"):
        row[f"BalPoE minus {name}"] = differences(ours, predictions[name])
    return row


def shown(name: str, row: dict[str, Any]) -> str:
    lines = [f"{name}: {row['classes']} classes, {row['train']} training and {row['test']} test samples"]
    for method in METHODS:
        each, chosen = row[method], row[method]["chosen"]
        temperatures = ", ".join(f"{value:.2f}" for value in chosen["temperatures"])
        lines.append(
            f"  {method:15} balanced {100 * each['balanced_accuracy']:.1f}, ECE {100 * each['ece']:.1f} (perfect below "
            f"{100 * each['ece_of_perfect']:.1f}; before {100 * each['before']['ece']:.1f}), NLL "
            + " ".join(f"{each[f'nll_{prior}']:.3f}" for prior in PRIORS)
            + f"; rate {chosen['lr']:g}, alpha {chosen['mixup_alpha']:g}, {chosen['epochs']} epochs, "
            f"T {temperatures}, bias {chosen['frequency_bias']:.2f}; {row['seconds_in_all'][method]:.0f} s"
        )
    for rival in ("cross-entropy", "logit-adjusted"):
        found = row[f"BalPoE minus {rival}"]
        parts = [f"{metric} {value:+.4f} ({low:+.4f} to {high:+.4f})" for metric, (value, low, high) in found.items()]
        lines.append(f"  minus {rival}: " + ", ".join(parts))
    return "\n".join(lines)


def machine() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="+", metavar="NAME=DATA")
    parser.add_argument("--weights", help="file of the backbone's weights, if its hub cannot be reached")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=-1, help="processes of each training that decode images")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--runs", type=Path, help="folder to keep the trainings in, and to go on from")
    parser.add_argument("--out", type=Path, default=Path("results/trust.json"))
    given = parser.parse_args()
    rows = read_json(given.out)["rows"] if given.out.exists() else {}
    data = dict(each.split("=", 1) for each in given.data)
    images = {"workers": given.workers, **({"weights": given.weights} if given.weights else {})}
    changes = {name: {"device": given.device, **({} if is_features(path) else images)} for name, path in data.items()}
    with tempfile.TemporaryDirectory() as temporary:
        runs = given.runs or Path(temporary)
        for name in trained(data, runs, changes, given.jobs):
            rows[name] = measure(runs / name)
            print(shown(name, rows[name]), flush=True)
            write_json(given.out, {"rows": rows})


if __name__ == "__main__":
    main()
