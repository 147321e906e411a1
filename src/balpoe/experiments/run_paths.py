"""Where a run is that somebody names: by its path, by its short name, or as the latest."""

import os
import re
from pathlib import Path

from balpoe.errors import UserError

__all__ = ["LATEST", "RUNS", "holds_run", "is_file_of_run", "run_path"]

RUNS = "runs"
LATEST = "latest"


def run_path(name: str | Path) -> Path:
    """Return the path of a run, or of anything else that is there.

    Args:
        name: A path; a name of a run below `runs`, such as photos-2; or "latest" for the run that was finished last
            ("elsewhere/latest" for one below another folder).

    >>> run_path("somewhere/model.safetensors").as_posix()
    'somewhere/model.safetensors'
    """
    path = Path(name)
    if path.is_file() or holds_run(path):
        return path
    if path.name == LATEST and not path.exists():
        return _latest(path.parent if len(path.parts) > 1 else Path(RUNS))
    below = Path(RUNS) / path
    return below if not path.is_absolute() and holds_run(below) else path


FILES_OF_RUN = {
    "recipe.toml", "environment.json", "classes.json", "history.jsonl", "timing.jsonl", "history.csv", "tensorboard",
    "wandb.txt", ".lock", "calibration.json", "checkpoint.pt", "model.safetensors", "predictions", "evaluation.json",
}  # fmt: skip


def is_file_of_run(path: str | Path) -> bool:
    """Return whether a run keeps a file of its own at a path, or would.

    Args:
        path: Path that something else is to be written to.

    >>> is_file_of_run("nowhere/evaluation.json")
    False
    """
    whole = Path(os.path.realpath(path))  # a link onto itself leads nowhere, and is told elsewhere
    both = ("recipe.toml", "environment.json")  # people keep recipes in folders of their own
    inside = (folder for folder in whole.parents if all((folder / name).is_file() for name in both))
    firsts = (whole.relative_to(folder).parts[0] for folder in inside)
    return any(first in FILES_OF_RUN or first.startswith("stage-") for first in firsts)


def holds_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, or of all seeds of one.

    Args:
        folder: Any path.
    """
    return (folder / "recipe.toml").is_file() or any(folder.glob("seed-*/recipe.toml"))


def _latest(root: Path) -> Path:
    """The folder of all seeds of the run that was finished last."""
    ends = [end for end in root.glob("*/seed-*/evaluation.json") if re.fullmatch(r"seed-\d+", end.parent.name)]
    if not ends:
        raise UserError(f"there is no finished run in {root}; train one, or give its path")
    return max(ends, key=lambda end: end.stat().st_mtime_ns).parent.parent
