"""The search for `cifar100-lt-fast`: the paper's accuracy on CIFAR-100-LT in ten to fifteen seconds of epochs.

Trials are measured on held-out training images, one seed first and a second one if there is time; the test set is seen
once, by the preset with five seeds that no trial has had. Where the search starts from was seen on the test set: 100
epochs with crop and flip, a cosine, the mean of the weights over the last 40 % and a decay of 1e-3 have 52.2 % there,
120 epochs in batches of 512 at a rate of 0.4 52.1 %, and 60 epochs 49.5 %.
"""

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from balpoe.files import write_text
from balpoe.paper.paper_result import PaperResult, PaperTable
from balpoe.paper.tables import measured_records, paper_table

__all__ = ["FAST_SEARCH", "FAST_TABLES", "fast_search", "ranked_trials", "write_fast_tables"]

START: dict[str, Any] = {
    "augmentation": "crop-flip", "schedule": "cosine", "warmup_epochs": 3, "batch_size": 512, "drop_last": True,
    "lr": 0.4, "weight_decay": 1e-3, "weight_average_fraction": 0.4, "validation": 50,
}  # fmt: skip
"""What a trial is unless it says otherwise. 50 validation images a class, not the 20 of the longer search: these trials
are short, and a difference of a point is to be seen."""

MUON: dict[str, Any] = {"optimizer": "muon", "lr": 0.05, "weight_decay": 5e-4}
"""The rate: of a network of eight layers on 2,000 small images of CIFAR-10, once each, 0.02 and 0.05 predicted held-out
images alike, and better than 0.1 and 0.2; no record of these is kept."""

STRONG_MUON: dict[str, Any] = {**MUON, "lr": 0.1, "optimizer_settings": {"kernel_decay": 0.2}}
"""What gained in the first round, together."""

FASTER_OTHERS: dict[str, Any] = {**STRONG_MUON, "optimizer_settings": {"kernel_decay": 0.2, "others_factor": 4.0}}
"""The same, with a rate four times as high of what Muon leaves to SGD: normalisations and classifier."""

SMALL_ALPHA: dict[str, Any] = {**FASTER_OTHERS, "mixup_alpha": 0.2}
"""The most accurate trial of ten seconds in the first three rounds."""

# Epochs for about ten seconds, alone on an H200, when a step of 128 took 1.67 ms and one of 512 5.35, and those between
# and beyond by a straight line; Muon adds some 0.4 ms. A second and a half of each is left to compiling and capturing.
FAST_SEARCH: dict[str, dict[str, Any]] = {
    "sgd": {"epochs": 72},
    "sgd-rate-0.2": {"epochs": 72, "lr": 0.2},
    "sgd-rate-0.8": {"epochs": 72, "lr": 0.8},
    "sgd-decay-2e-3": {"epochs": 72, "weight_decay": 2e-3},
    "sgd-linear": {"epochs": 72, "schedule": "linear"},
    "sgd-mean-20": {"epochs": 72, "weight_average_fraction": 0.2},
    "sgd-alternate": {"epochs": 72, "alternate_flips": True},
    "sgd-whitened": {"epochs": 72, "first_layer": "whitened"},
    "sgd-cutmix": {"epochs": 72, "cutmix_probability": 0.5},
    "sgd-autoaugment": {"epochs": 72, "augmentation": "autoaugment"},
    "sgd-batch-128": {"epochs": 60, "batch_size": 128, "lr": 0.1},
    "sgd-batch-256": {"epochs": 69, "batch_size": 256, "lr": 0.2},
    "sgd-batch-1024": {"epochs": 80, "batch_size": 1024, "lr": 0.8},
    "muon": {**MUON, "epochs": 67},
    "muon-rate-0.02": {**MUON, "epochs": 67, "lr": 0.02},
    "muon-rate-0.1": {**MUON, "epochs": 67, "lr": 0.1},
    "muon-decay-0.2": {**MUON, "epochs": 67, "optimizer_settings": {"kernel_decay": 0.2}},
    "muon-others-4": {**MUON, "epochs": 67, "optimizer_settings": {"others_factor": 4.0}},
    "muon-cutmix": {**MUON, "epochs": 67, "cutmix_probability": 0.5},
    "muon-batch-1024": {**MUON, "epochs": 77, "batch_size": 1024, "lr": 0.08},
    "fifteen-seconds": {"epochs": 115},
    "fifteen-seconds-cutmix": {"epochs": 115, "cutmix_probability": 0.5},
    "fifteen-seconds-autoaugment": {"epochs": 115, "augmentation": "autoaugment"},
    "fifteen-seconds-muon": {**MUON, "epochs": 107},
    # A second round, from what the first one has shown: more decay, Muon's higher rate and decay, mixing for long ones.
    "sgd-decay-3e-3": {"epochs": 72, "weight_decay": 3e-3},
    "sgd-decay-2e-3-alternate": {"epochs": 72, "weight_decay": 2e-3, "alternate_flips": True},
    "sgd-decay-2e-3-alpha-0.2": {"epochs": 72, "weight_decay": 2e-3, "mixup_alpha": 0.2},
    "muon-strong": {**STRONG_MUON, "epochs": 67},
    "muon-strong-others-4": {**FASTER_OTHERS, "epochs": 67},
    "muon-strong-decay-0.4": {**STRONG_MUON, "epochs": 67, "optimizer_settings": {"kernel_decay": 0.4}},
    "muon-strong-alternate": {**STRONG_MUON, "epochs": 67, "alternate_flips": True},
    "muon-strong-alpha-0.2": {**STRONG_MUON, "epochs": 67, "mixup_alpha": 0.2},
    "fifteen-seconds-decay-2e-3": {"epochs": 115, "weight_decay": 2e-3},
    "fifteen-seconds-cutmix-decay-2e-3": {"epochs": 115, "cutmix_probability": 0.5, "weight_decay": 2e-3},
    "fifteen-seconds-autoaugment-decay-2e-3": {"epochs": 115, "augmentation": "autoaugment", "weight_decay": 2e-3},
    "fifteen-seconds-muon-strong": {**STRONG_MUON, "epochs": 107},
    "fifteen-seconds-muon-strong-cutmix": {**STRONG_MUON, "epochs": 107, "cutmix_probability": 0.5},
    # Half of the epochs with 24 pixels a side, each of which costs some 0.56 of one with 32.
    "sgd-decay-2e-3-early-24": {"epochs": 90, "weight_decay": 2e-3, "early_image_size": 24},
    "muon-strong-early-24": {**STRONG_MUON, "epochs": 83, "early_image_size": 24},
    "fifteen-seconds-cutmix-decay-2e-3-early-24": {
        "epochs": 145,
        "cutmix_probability": 0.5,
        "weight_decay": 2e-3,
        "early_image_size": 24,
    },
    # A third round, of what led in the second.
    "muon-strong-others-4-alpha-0.2": {**SMALL_ALPHA, "epochs": 67},
    "muon-strong-others-4-alternate": {**FASTER_OTHERS, "epochs": 67, "alternate_flips": True},
    "muon-strong-others-4-early-24": {**FASTER_OTHERS, "epochs": 83, "early_image_size": 24},
    "fifteen-seconds-muon-strong-others-4": {**FASTER_OTHERS, "epochs": 107},
    # A fourth round, after the preset's seeds had seen the test set: blocks that begin by adding less, or nothing.
    "muon-strong-others-4-alpha-0.2-residuals-0": {**SMALL_ALPHA, "epochs": 67, "residual_start": 0.0},
    "muon-strong-others-4-alpha-0.2-residuals-0.5": {**SMALL_ALPHA, "epochs": 67, "residual_start": 0.5},
}
"""Trials by name: what each changes of the start."""

NEW_SEEDS = 21
"""The first of the five seeds on the test set."""


def fast_search() -> PaperTable:
    """Return the trials as results, of two seeds each."""
    return tuple(
        PaperResult(f"fast-search/{name}", name, "cifar100-lt", {**START, **changes}, 2)
        for name, changes in FAST_SEARCH.items()
    )


FAST_TABLES: dict[str, PaperTable] = {
    "fast-search": fast_search(),
    "fast": (
        PaperResult(
            "cifar100-lt-fast/balpoe", "BalPoE, cifar100-lt-fast", "cifar100-lt-fast", {}, 5, first_seed=NEW_SEEDS
        ),
    ),
}
"""By name, as `balpoe reproduce` is asked for them."""


def ranked_trials(results: Path) -> PaperTable:
    """Return the trials that have records, the most accurate first, each with its likelihood, which varies less.

    Args:
        results: Folder of the records.
    """
    scores = {}
    for trial in FAST_TABLES["fast-search"]:
        if found := [record["evaluation"] for record in measured_records(trial, results)]:
            accuracy, nll = (fmean(each[name] for each in found) for name in ("accuracy", "nll"))
            scores[trial.folder] = accuracy, replace(trial, title=f"{trial.title} (NLL {nll:.3f})")
    return tuple(trial for _, trial in sorted(scores.values(), key=lambda pair: -pair[0]))


def write_fast_tables(results: Path) -> None:
    """Write what the records give: the trials in the order of their accuracy, and the preset with its new seeds.

    Args:
        results: Folder of the records.
    """
    (chosen,) = FAST_TABLES["fast"]
    tables = {"fast-search": ranked_trials(results), "fast": (chosen,) if measured_records(chosen, results) else ()}
    for name, table in tables.items():
        if table:
            write_text(results / "tables" / f"{name}.md", paper_table(table, results))
