"""Trainings that held-out samples can judge, whatever the method: scores that are no posterior get a temperature, too.

A run calibrates posteriors by itself (`calibrate`). The scores of other methods are divided by one temperature, under
which the labels of samples outside of training are most likely; their answers stay as they are.
"""

import shutil
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.shifted_tests import full_evaluation
from balpoe.experiments.build import Assembly, assemble, data_parts
from balpoe.experiments.calibrate import Choice, Fit, choice_by_held_out
from balpoe.experiments.model_file import load, save_model
from balpoe.experiments.recipe import Recipe
from balpoe.experiments.run_folder import Run, fitting, set_aside, train_run_by_step
from balpoe.files import locked, write_json
from balpoe.method.calibration import fit_scale
from balpoe.method.ensemble import product_of_experts
from balpoe.method.expert_calibration import ExpertCalibration
from balpoe.method.priors import class_counts

__all__ = ["cross_fitted_by_step", "give_calibration", "is_judged", "train_judged_by_step", "with_temperature"]


def is_judged(recipe: Recipe, folder: Path) -> bool:
    """Return whether a run is finished and, if its recipe wants that, calibrated as far as it can be."""
    run = Run(folder)
    if not run.finished or not recipe.calibrate or (folder / "calibration.json").exists():
        return run.finished
    return run.predictions().source_prior is not None  # no class had a sample to spare


def train_judged_by_step(
    recipe: Recipe, folder: Path, *, fresh: bool = False, interrupt: Any = None, posterior: bool = True
) -> Generator[Any, None, Run]:
    """Do what `train_run_by_step` does, and calibrate scores that are no posterior, too.

    Args:
        recipe: What to train.
        folder: Folder of the run.
        fresh: Whether to move an earlier run aside and begin anew.
        interrupt: As for `train_run_by_step`.
        posterior: Whether the method's scores are posteriors, which the run calibrates by itself.
    """
    if fresh:
        set_aside(folder)
    if recipe.calibrate and not posterior and not Run(folder).finished:
        made: list[Assembly] = []
        yield lambda: made.append(assemble(recipe))
        if made[0].held_out is None:
            yield from cross_fitted_by_step(recipe, made[0], folder, fitting(interrupt, made[0].stages))
    run = yield from train_run_by_step(recipe, folder, interrupt=interrupt)
    if not is_judged(recipe, folder):
        yield lambda: _calibrate_after(recipe, run)
    return run


def cross_fitted_by_step(recipe: Recipe, parts: Assembly, folder: Path, fit: Fit) -> Generator[Any, None, None]:
    """Let networks that go without some samples say what they think of these; keep that, calibrated, in a run's folder.

    Args:
        recipe: Recipe of the run.
        parts: Objects of the recipe.
        folder: Folder of the run.
        fit: How to train.
    """
    if Choice.load(folder) is not None:
        return
    label = f"{recipe.title}, seed {recipe.seed}"
    parts = replace(parts, settings=replace(parts.settings, run=folder, label=label))
    with locked(folder):
        if parts.source_prior is not None:
            yield from choice_by_held_out(recipe, parts, folder, fit)
            return
        # What the likelihood of the choice wants is a prior; the calibration that is fitted with it is not kept.
        uniform = torch.full_like(parts.train_prior, 1 / len(parts.train_prior))
        aside = folder / "without-prior"
        choice = Choice.load(aside)
        if choice is None:
            choice = yield from choice_by_held_out(recipe, replace(parts, source_prior=uniform), aside, fit)
        if choice is not None:
            replace(choice, held_out=with_temperature(replace(choice.held_out, source_prior=None))).save(folder)
        shutil.rmtree(aside, ignore_errors=True)


def with_temperature(predictions: Predictions) -> Predictions:
    """Return predictions of samples outside of training with the one temperature that suits them best.

    The likelihood is the mean of two, as for posteriors: of the labels as they come, and of all classes alike.

    >>> sure = Predictions(torch.eye(2)[[0, 0, 0, 1]][:, None] * 9.0, torch.tensor([0, 0, 1, 1]), [2, 2])
    >>> with_temperature(sure).calibration.temperatures[0] > 2
    True
    """
    targets = predictions.targets
    counts = class_counts(targets, predictions.num_classes).double()
    alike = len(targets) / (int((counts > 0).sum()) * counts[targets])
    logits = product_of_experts(predictions.expert_logits.double())
    scale = fit_scale(logits, targets, 0.5 + 0.5 * alike, torch.zeros(predictions.num_classes))
    return replace(predictions, calibration=ExpertCalibration((1 / scale,) * predictions.num_experts))


def _calibrate_after(recipe: Recipe, run: Run) -> None:
    """Give a finished run the temperature that samples outside of its training ask for; its evaluation comes last."""
    samples = data_parts(recipe).held_out
    if samples is None:
        return
    held_out = with_temperature(load(run.folder).predictions(samples))
    assert held_out.calibration is not None
    give_calibration(run, held_out.calibration)
    Choice(recipe.mixup_alpha, held_out, ()).save(run.folder)


def give_calibration(run: Run, calibration: ExpertCalibration) -> None:
    """Write a finished run's model, predictions and evaluation anew, with a calibration that was found elsewhere."""
    predictions, (few, many) = replace(run.predictions(), calibration=calibration), run.recipe().shot_groups
    evaluation = full_evaluation(predictions, (few, many))
    save_model(run.folder / "model.safetensors", replace(load(run.folder), calibration=calibration))
    predictions.save(run.folder / "predictions")
    write_json(run.folder / "evaluation.json", evaluation)
