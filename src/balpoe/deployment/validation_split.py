"""Held-out predictions in two halves: one calibrates, the other has seen nothing that was fitted."""

from dataclasses import replace
from pathlib import Path

import torch

from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.calibrate import Choice, calibrated_by
from balpoe.training.cross_fit import split_folds

__all__ = ["run_validation", "split_validation"]


def split_validation(predictions: Predictions, seed: int = 0) -> tuple[Predictions, Predictions]:
    """Return two halves of held-out predictions, class by class, both with the calibration that fits the first.

    A run's own calibration was fitted on all its held-out samples, so that none of them is new to it. Here the first
    half calibrates, and may choose thresholds; the second is new to all of that, and fits prediction sets and
    the threshold of "unknown". A class of one sample, or of one group, is in the first half.

    Args:
        predictions: Labelled predictions of samples outside of training.
        seed: Seed of the split.

    >>> targets = torch.arange(80) % 2
    >>> x = 2.0 * targets - 1 + torch.randn(80, generator=torch.Generator().manual_seed(0))
    >>> held_out = Predictions(torch.stack([-x, x], dim=1)[:, None], targets, [90, 10], [0])
    >>> tuning, validation = split_validation(held_out)
    >>> len(tuning), len(validation), validation.calibration == tuning.calibration
    (40, 40, True)
    """
    if len(predictions) < 2:
        raise UserError(f"{len(predictions)} held-out predictions cannot be split into two halves; hold out more")
    generator = torch.Generator().manual_seed(seed)
    fold = split_folds(predictions.targets, 1, 2, generator, predictions.groups).fold
    tuning = predictions.uncalibrated().subset((fold < 0).nonzero().squeeze(1))
    if predictions.source_prior is not None:
        tuning = calibrated_by(tuning, tuning.groups)
    rest = predictions.subset((fold == 0).nonzero().squeeze(1))
    return tuning, replace(rest, calibration=tuning.calibration)


def run_validation(folder: str | Path, seed: int = 0) -> tuple[Predictions, bool]:
    """Return the half of a run's held-out samples that is new to its calibration, and whether they are cross-fitted.

    Args:
        folder: Folder of the run.
        seed: Seed of the split.
    """
    choice = Choice.load(Path(folder))
    if choice is None:
        raise UserError(f"{folder} has no held-out predictions; train the run with --calibrate")
    return split_validation(choice.held_out, seed)[1], choice.cross_fitted
