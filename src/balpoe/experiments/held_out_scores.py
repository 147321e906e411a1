"""What a comparison asks of runs beyond training: what held-out samples say alone, and a calibration from elsewhere."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

from balpoe.evaluation.shifted_tests import full_evaluation
from balpoe.experiments.build import Assembly
from balpoe.experiments.calibrate import Choice, Fit, choice_by_held_out
from balpoe.experiments.model_file import load, save_model
from balpoe.experiments.recipe import Recipe
from balpoe.experiments.run_folder import Run, train_run_by_step
from balpoe.files import locked, write_json
from balpoe.method.expert_calibration import ExpertCalibration

__all__ = ["cross_fitted_by_step", "give_calibration", "is_judged", "train_judged_by_step"]


def is_judged(recipe: Recipe, folder: Path) -> bool:
    """Return whether a run is finished and, if its recipe wants that, calibrated as far as it can be."""
    return Run(folder).finished


def train_judged_by_step(
    recipe: Recipe, folder: Path, *, fresh: bool = False, interrupt: Any = None, posterior: bool = True
) -> Generator[Any, None, Run]:
    """Do what `train_run_by_step` does, which calibrates scores that are no posterior, too.

    Args:
        recipe: What to train.
        folder: Folder of the run.
        fresh: Whether to move an earlier run aside and begin anew.
        interrupt: As for `train_run_by_step`.
        posterior: Whether the method's scores are posteriors; it makes no difference any more.
    """
    return train_run_by_step(recipe, folder, fresh=fresh, interrupt=interrupt)


def cross_fitted_by_step(recipe: Recipe, parts: Assembly, folder: Path, fit: Fit) -> Generator[Any, None, None]:
    """Let networks that go without some samples say what they think of these; keep that, calibrated, in a run's folder.

    Args:
        recipe: Recipe of the run.
        parts: Objects of the recipe.
        folder: Folder of the run.
        fit: How to train.
    """
    if Choice.load(folder) is None:
        label = f"{recipe.title}, seed {recipe.seed}"
        parts = replace(parts, settings=replace(parts.settings, run=folder, label=label))
        with locked(folder):
            yield from choice_by_held_out(recipe, parts, folder, fit)


def give_calibration(run: Run, calibration: ExpertCalibration) -> None:
    """Write a finished run's model, predictions and evaluation anew, with a calibration that was found elsewhere."""
    predictions, (few, many) = replace(run.predictions(), calibration=calibration), run.recipe().shot_groups
    evaluation = full_evaluation(predictions, (few, many))
    save_model(run.folder / "model.safetensors", replace(load(run.folder), calibration=calibration))
    predictions.save(run.folder / "predictions")
    write_json(run.folder / "evaluation.json", evaluation)
