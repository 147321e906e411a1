"""A table of all runs: method, seeds, score, and what differs from the first of their name."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from rich.table import Table

from balpoe.errors import UserError
from balpoe.experiments.presets import PRESETS, preset
from balpoe.experiments.recipe import Recipe
from balpoe.experiments.run_folder import Run, runs_of
from balpoe.experiments.run_names import differences_text
from balpoe.report.console import console, mean_and_deviation

__all__ = ["print_runs"]


def print_runs(root: Path) -> None:
    """Print the runs below a folder, the latest first.

    Args:
        root: Folder of all runs.
    """
    found = {path.name: runs for path in root.glob("*") if (runs := _runs_in(path))}
    if not found:
        raise UserError(f"there are no runs in {root}; train one, or say with --runs where they are")
    recipes = {name: runs[0].recipe() for name, runs in found.items()}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("run", "changed", "method", "seeds", "balanced %", "differs in"):
        table.add_column(heading, justify="right" if heading == "balanced %" else "left", overflow="fold")
    for name, runs in sorted(found.items(), key=lambda item: -_changed(item[1])):
        when = datetime.fromtimestamp(_changed(runs)).strftime("%Y-%m-%d %H:%M")
        table.add_row(name, when, recipes[name].title, _seeds(runs), _score(runs), _difference(name, recipes))
    console().print(table)


def _runs_in(folder: Path) -> list[Run]:
    try:
        return runs_of(folder)
    except UserError:  # something else that lies there
        return []


def _changed(runs: Iterable[Run]) -> float:
    return max((run.folder / "recipe.toml").stat().st_mtime for run in runs)


def _seeds(runs: Iterable[Run]) -> str:
    return ", ".join(f"{run.recipe().seed}{'' if run.finished else ' (unfinished)'}" for run in runs)


def _score(runs: Iterable[Run]) -> str:
    return mean_and_deviation([run.evaluation()["balanced_accuracy"] for run in runs if run.finished], per_cent=True)


def _difference(name: str, recipes: Mapping[str, Recipe]) -> str:
    """What differs from the run with the shortest name that this one begins with, or else from such a preset.

    >>> _difference("photos-2", {"photos": Recipe(), "photos-2": Recipe(epochs=40)})
    'epochs 40'
    """
    first = min((each for each in recipes if name == each or name.startswith(f"{each}-")), key=len)
    if first != name:
        return differences_text(recipes[name], recipes[first])
    base = max((each for each in PRESETS if name == each or name.startswith(f"{each}-")), key=len, default=None)
    return differences_text(recipes[name], preset(base)) if base else ""
