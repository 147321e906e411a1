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
from balpoe.experiments.run_folder import Run
from balpoe.files import locked, write_json
from balpoe.method.expert_calibration import ExpertCalibration

__all__ = ["cross_fitted_by_step", "give_calibration"]


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
            yield from choice_by_held_out(recipe, parts, folder, fit, look_longer=False)


def give_calibration(run: Run, calibration: ExpertCalibration) -> None:
    """Write a finished run's model, predictions and evaluation anew, with a calibration that was found elsewhere."""
    predictions, (few, many) = replace(run.predictions(), calibration=calibration), run.recipe().shot_groups
    evaluation = full_evaluation(predictions, (few, many))
    save_model(run.folder / "model.safetensors", replace(load(run.folder), calibration=calibration))
    predictions.save(run.folder / "predictions")
    write_json(run.folder / "evaluation.json", evaluation)
