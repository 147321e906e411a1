"""Prediction sets as a .json file: lists for tensors, and null for what is infinite."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.set_scores import SetScore
from balpoe.method.expert_calibration import read_calibration

__all__ = ["plain_sets", "sets_from_plain"]

WORDS = {"alpha": float, "method": str, "class_names": tuple, "estimated": bool, "cross_fitted": bool, "grouped": bool}
TENSORS = {
    "scores": torch.float64, "targets": torch.long, "pool_of": torch.long, "rare": torch.bool,
    "target_prior": torch.float64, "validation_prior": torch.float64, "fold_of": torch.long, "spare": torch.float64,
}  # fmt: skip


def plain_sets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ConformalSets` as what JSON can hold.

    Args:
        values: Fields by name.
    """
    score, calibration = values["score"], values["calibration"]
    about: dict[str, Any] = {name: values[name] for name in WORDS}
    about |= {name: _listed(values[name]) for name in TENSORS}
    move, prevalence = _listed(score.move), _listed(score.prevalence)
    about["score"] = {"name": score.name, "move": move, "prevalence": prevalence, "seed": score.seed}
    return about | {"calibration": None if calibration is None else asdict(calibration)}


def sets_from_plain(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ConformalSets` from what JSON held.

    Args:
        about: What `plain_sets` returned.

    >>> sets_from_plain({})
    Traceback (most recent call last):
        ...
    KeyError: 'score'
    """
    score = about["score"]
    move, prevalence = (_tensor(score[name], torch.float64, -torch.inf) for name in ("move", "prevalence"))
    found: dict[str, Any] = {name: kind(about[name]) for name, kind in WORDS.items()}
    found |= {name: _tensor(about[name], kind) for name, kind in TENSORS.items()}
    found["score"] = SetScore(str(score["name"]), move, prevalence, int(score["seed"]))
    return found | {"calibration": read_calibration(about["calibration"])}


def _listed(values: Tensor | None) -> list[Any] | None:
    """Values for JSON, which has no infinity: a class that is excluded has none."""
    return None if values is None else [value if math.isfinite(value) else None for value in values.tolist()]


def _tensor(values: Any, kind: torch.dtype, missing: float = torch.inf) -> Any:
    """A tensor, or None for none."""
    if values is None:
        return None
    return torch.tensor([missing if value is None else value for value in values], dtype=kind)
