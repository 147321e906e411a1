"""Predictions of any other program, in a .npz: what its arrays say, checked."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balpoe.errors import UserError

__all__ = ["ARRAYS", "prediction_arguments"]

# What a .npz may hold; the last two are known in order to be refused.
ARRAYS = (
    "logits",
    "log_probabilities",
    "targets",
    "class_counts",
    "class_names",
    "lambdas",
    "source_prior",
    "groups",
    "probabilities",
    "probs",
)


def prediction_arguments(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the arguments of `Predictions` that arrays of a file say, or in one sentence what is wrong with them.

    Args:
        arrays: Arrays by name, those of `ARRAYS`; `load_predictions` tells of each.

    >>> arrays = {"logits": np.eye(2), "targets": np.array([0, 1]), "class_counts": np.array([90, 10])}
    >>> prediction_arguments(arrays)["expert_logits"].shape
    torch.Size([2, 1, 2])
    """
    logits = _expert_logits(arrays)
    if "targets" not in arrays:
        raise UserError("there is no array targets; save the label of each sample")
    if "class_counts" not in arrays:
        raise UserError("there is no array class_counts; save the training samples of each class")
    names = arrays.get("class_names", np.array([], dtype=str))
    if names.dtype.kind != "U" or names.ndim != 1:
        raise UserError("class_names must be one row of text; save numpy.array(names)")
    counts = _whole_or_float(arrays, "class_counts")
    if counts.ndim != 1 or counts.is_floating_point():
        raise UserError("class_counts must be one row of whole numbers; save the training samples of each class")
    lambdas, source = _lambdas_or_source(arrays, logits.shape[1])
    targets = _whole_or_float(arrays, "targets")
    groups = torch.from_numpy(np.unique(arrays["groups"], return_inverse=True)[1]) if "groups" in arrays else None
    return {
        "expert_logits": logits,
        "targets": targets,
        "class_counts": counts,
        "lambdas": lambdas,
        "class_names": tuple(names.tolist()),
        "source_prior": source,
        "groups": groups,
    }


def _lambdas_or_source(arrays: Mapping[str, np.ndarray], experts: int) -> tuple[Tensor | None, Tensor | None]:
    """What a file says about the prior of its logits; both are None where they are no posterior."""
    if "source_prior" not in arrays:
        return _whole_or_float(arrays, "lambdas") if "lambdas" in arrays else torch.ones(experts), None
    if "lambdas" in arrays:
        raise UserError("lambdas and source_prior both say what prior the logits are made for; save one of them")
    source = _whole_or_float(arrays, "source_prior")
    return None, source if source.numel() else None


def _expert_logits(arrays: Mapping[str, np.ndarray]) -> Tensor:
    """Logits of shape (samples, experts, classes), each row with a finite sum of exponentials."""
    if "probabilities" in arrays or "probs" in arrays:
        raise UserError("probabilities lose what is close to 0 and 1; save their logarithm as log_probabilities")
    given = [name for name in ("logits", "log_probabilities") if name in arrays]
    if len(given) != 1:
        raise UserError(f"there are {len(given)} arrays named logits or log_probabilities; save one of them")
    values = _whole_or_float(arrays, given[0])
    if values.ndim not in (2, 3) or not values.numel():
        raise UserError(
            f"{given[0]} must have shape (samples, classes) or (samples, experts, classes), "
            f"but has {tuple(values.shape)}"
        )
    values = values if values.is_floating_point() else values.float()
    expert_logits = values[:, None] if values.ndim == 2 else values
    log_sums = torch.cat([block.double().logsumexp(dim=2) for block in expert_logits.split(1024)])
    wrong = ~log_sums.isfinite().all(dim=1)
    if bool(wrong.any()):
        raise UserError(f"{given[0]} of sample {int(wrong.nonzero()[0])} are not all numbers; look at what gave them")
    wrong = (log_sums.abs() > 0.01).any(dim=1)  # as far as float16 gets over many classes
    if given == ["log_probabilities"] and bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        total = float(log_sums[row].exp().max())
        raise UserError(
            f"probabilities of sample {row} sum to {total:g}, not to 1; if log_probabilities are logits, call them so"
        )
    return expert_logits


def _whole_or_float(arrays: Mapping[str, np.ndarray], name: str) -> Tensor:
    array = arrays[name]
    if array.dtype.kind not in "fiu":
        raise UserError(f"{name} must be numbers, but is text")
    return torch.from_numpy(array if array.dtype.kind == "f" else array.astype(np.int64))
