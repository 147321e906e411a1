"""What a tracker of a prior knows at one moment, and how that is kept in a file."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from balpoe.evaluation.prior_estimate import CHANGE_LEVEL
from balpoe.method.calibration import Calibration
from balpoe.method.ensemble import checked_source
from balpoe.method.prior_families import prior_family
from balpoe.method.shift_evidence import SIGNIFICANCE, ShiftEvidence, ValidationLogits

__all__ = ["ARRAYS", "PriorStep", "TrackerSettings", "restored_fields", "state_arrays"]

COUNTERS = ("seen", "steps", "waiting")
ARRAYS = (
    "about", "logits", "times", "source", "prior", "start", "estimate", "train", "validation_logits",
    "validation_targets", "calibrations", "history_numbers", "history_priors", "history_estimates", "history_bands",
)  # fmt: skip


@dataclass(frozen=True)
class TrackerSettings:
    """How a tracker forgets and looks."""

    half_life: float
    in_time: bool
    every: int
    most_samples: int
    seed: int


class PriorStep(NamedTuple):
    """What a tracker found at one moment."""

    at: float
    """Number of samples so far, or the time of the latest one."""
    prior: Tensor
    """Prior in use from here on, (classes,)."""
    estimate: Tensor
    """Most likely prior of the window, (classes,), in use or not."""
    band: Tensor
    """95 % interval of each share of the estimate, (2, classes)."""
    p_value: float
    """How often randomness alone explains that the estimate is more likely than the prior in use before."""
    fit_p_value: float | None
    """P-value of the best prior that may explain the window; None without a check."""

    @property
    def significant(self) -> bool:
        """Whether the window speaks against the prior in use before."""
        return self.p_value < SIGNIFICANCE

    @property
    def changed(self) -> bool | None:
        """Whether no prior explains the window: the images themselves seem to have changed."""
        return None if self.fit_p_value is None else self.fit_p_value < CHANGE_LEVEL


def state_arrays(tracker: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the fields of a `PriorTracker`, by name, as arrays of numbers and one text."""
    evidence, steps = tracker["evidence"], tracker["history"]
    classes, known = len(tracker["prior"]), evidence.validation
    about = {"settings": asdict(tracker["settings"]), "num_resamples": len(evidence.refits)}
    about |= {name: tracker[name] for name in COUNTERS}
    numbers = [(each.at, each.p_value, math.nan if each.fit_p_value is None else each.fit_p_value) for each in steps]
    nothing = torch.zeros(0, classes)
    tensors = {
        "logits": tracker["logits"],
        "times": tracker["times"],
        "source": evidence.source,
        "prior": tracker["prior"],
        "start": tracker["start"],
        "estimate": tracker["estimate"],
        "train": torch.zeros(0) if tracker["train"] is None else tracker["train"],
        "validation_logits": nothing if known is None else known.logits,
        "validation_targets": torch.zeros(0, dtype=torch.int64) if known is None else known.targets,
        "calibrations": _listed_calibrations([evidence.calibration, *evidence.refits], classes),
        "history_numbers": torch.tensor(numbers, dtype=torch.float64).reshape(-1, 3),
        "history_priors": torch.stack([each.prior for each in steps]) if steps else nothing,
        "history_estimates": torch.stack([each.estimate for each in steps]) if steps else nothing,
        "history_bands": torch.stack([each.band for each in steps]) if steps else nothing,
    }
    return {"about": np.array(json.dumps(about)), **{name: each.numpy() for name, each in tensors.items()}}


def restored_fields(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the fields of a tracker from such arrays."""
    about: dict[str, Any] = json.loads(str(arrays["about"]))
    numbers = {name: torch.from_numpy(array) for name, array in arrays.items() if name != "about"}
    source = checked_source(numbers["source"], len(numbers["source"]))
    known, refits = None, [None] * int(about["num_resamples"])
    calibrations: list[Any] = [None, *refits]
    if len(numbers["validation_targets"]):
        known = ValidationLogits(numbers["validation_logits"], numbers["validation_targets"])
        calibrations = [Calibration(float(each[0]), each[1:]) for each in numbers["calibrations"]]
    train = numbers["train"] if len(numbers["train"]) else None
    members = prior_family("free" if train is None else "tempered", train, source)
    evidence = ShiftEvidence(members, source, known, calibrations[0], calibrations[1:])
    parts = zip(*(numbers[f"history_{name}"] for name in ("numbers", "priors", "estimates", "bands")), strict=True)
    history = [
        PriorStep(float(at), prior, estimate, band, float(p_value), None if fit.isnan() else float(fit))
        for (at, p_value, fit), prior, estimate, band in parts
    ]
    return {
        "settings": TrackerSettings(**about["settings"]),
        "evidence": evidence,
        **{name: numbers[name] for name in ("prior", "start", "estimate", "logits", "times")},
        "train": train,
        "history": history,
        **{name: int(about[name]) for name in COUNTERS},
    }


def _listed_calibrations(calibrations: list[Calibration | None], classes: int) -> Tensor:
    """Scale and biases of each, (calibrations, 1 + classes)."""
    rows = [torch.cat([torch.tensor([each.scale], dtype=torch.float64), each.bias]) for each in calibrations if each]
    return torch.stack(rows) if rows else torch.zeros(0, 1 + classes)
