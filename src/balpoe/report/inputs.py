"""What a report is about: the runs of a recipe, or anybody's saved predictions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from balpoe.errors import UserError
from balpoe.evaluation.evaluate import SHOT_GROUPS
from balpoe.evaluation.predictions import Predictions, load_predictions
from balpoe.evaluation.shifted_tests import full_evaluation
from balpoe.experiments.run_folder import Run, runs_of

__all__ = ["Subject", "read_subject", "read_subjects"]


@dataclass(frozen=True)
class Subject:
    """Predictions and evaluations, one per seed."""

    name: str
    predictions: tuple[Predictions, ...]
    evaluations: tuple[dict[str, Any], ...]
    shot_groups: tuple[int, int]
    runs: tuple[Run, ...] = ()
    """Empty for predictions from elsewhere."""

    @property
    def place(self) -> str:
        """Name of the run, of all its seeds; empty for predictions from elsewhere."""
        return self.runs[0].folder.parent.name if self.runs else ""


def read_subject(path: str, shot_groups: tuple[int, int] | None = None) -> Subject:
    """Read a run, all seeds of one, a folder of predictions, or a file of them (.npz)."""
    folder = Path(path)
    if folder.is_file() or folder.suffix == ".npz" or (folder / "predictions.json").exists():
        predictions = load_predictions(folder)
        groups = shot_groups or SHOT_GROUPS
        name = folder.stem if folder.is_file() else folder.name
        return Subject(name, (predictions,), (full_evaluation(predictions, groups),), groups)
    runs = runs_of(path)
    few, many = shot_groups or runs[0].recipe().shot_groups
    name = runs[0].name if (folder / "recipe.toml").exists() else folder.name
    seeds = tuple(run.predictions() for run in runs)
    for run, each in zip(runs, seeds, strict=True):
        if each.class_names != seeds[0].class_names or each.num_experts != seeds[0].num_experts:
            raise UserError(
                f"{run.folder} has other classes or experts than {runs[0].folder}; report on each by itself"
            )
    evaluations = tuple(
        run.evaluation() if run.recipe().shot_groups == (few, many) else full_evaluation(each, (few, many))
        for run, each in zip(runs, seeds, strict=True)
    )
    return Subject(name, seeds, evaluations, (few, many), tuple(runs))


def read_subjects(paths: Sequence[str], shot_groups: tuple[int, int] | None = None) -> list[Subject]:
    """Read several, which must tell the same classes apart; all get the shot groups of the first."""
    first = read_subject(paths[0], shot_groups)
    subjects = [first, *(read_subject(path, first.shot_groups) for path in paths[1:])]
    names = _distinct([each.name for each in subjects], paths)
    methods = [each.runs[0].recipe().title for each in subjects if each.runs]
    if 1 < len(set(methods)) == len(subjects):  # what tells them apart, instead of where they lie
        names = methods
    subjects = [replace(each, name=name) for each, name in zip(subjects, names, strict=True)]
    for other in subjects:
        for predictions in other.predictions:
            if predictions.class_names != first.predictions[0].class_names:
                raise UserError(
                    f"{other.name} and {first.name} tell different classes apart; "
                    "report on them one by one, or on runs of one data set"
                )
    return subjects


def _distinct(names: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Names that tell all apart: with more of the path where two are alike, and at last with a number.

    >>> _distinct(["p", "p", "q"], ["a/p.npz", "b/p.npz", "q"])
    ['a/p.npz', 'b/p.npz', 'q']
    """
    found = list(names)
    for number, name in enumerate(names):
        if names.count(name) > 1:
            found[number] = "/".join(Path(paths[number]).parts[-2:])
    return [name if name not in found[:number] else f"{name} ({number + 1})" for number, name in enumerate(found)]
