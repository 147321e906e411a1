"""An exported file against the model that it was made of, on the same samples."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from balpoe.deployment.model import Model
from balpoe.errors import UserError

__all__ = ["LARGEST_DIFFERENCE", "FileCheck", "checked_file"]

LARGEST_DIFFERENCE = 1e-4  # of a probability, in float32
BATCHES = (1, 2, 7)  # exporters may freeze the batch that they have seen
AT_ONCE = 64


class FileCheck(NamedTuple):
    """How far the probabilities of a file are from those of its model."""

    samples: int
    difference: float
    """Largest difference of a probability, under the model's own prior and under its training prior."""
    agreement: float
    """Share of the samples with the same answer."""


def checked_file(
    model: Model, outputs: Callable[..., Sequence[Tensor]], samples: Tensor, precision: str, path: Path
) -> FileCheck:
    """Return how a file compares with its model; in float32 one that says something else is refused.

    Args:
        model: Model that was exported.
        outputs: Function of raw samples, and of a log prior or None, that runs the file: logits, probabilities, expert
            logits.
        samples: Raw samples.
        precision: Precision of the file.
        path: Path of the file, for messages.
    """
    blocks = [samples.repeat(-(-rows // len(samples)), *[1] * (samples.ndim - 1))[:rows] for rows in BATCHES]
    found = [_compared(model, outputs, block, path) for block in (*blocks, *samples.split(AT_ONCE))]
    difference = max(each.difference for each in found)
    if precision == "fp32" and not (difference <= LARGEST_DIFFERENCE and all(each.clear_agree for each in found)):
        raise UserError(
            f"{path} would not say what the model says: probabilities differ by up to {difference:.2g}, and "
            f"{LARGEST_DIFFERENCE:g} is allowed; it was not written"
        )
    same = sum(each.same for each in found[len(BATCHES) :])
    return FileCheck(len(samples), difference, same / len(samples))


class _Compared(NamedTuple):
    difference: float
    clear_agree: bool
    """Whether the answers are the same wherever the two best of the model differ by more than is allowed."""
    same: int
    """How many answers are the same, under the model's own prior."""


def _compared(model: Model, outputs: Callable[..., Sequence[Tensor]], block: Tensor, path: Path) -> _Compared:
    parts = []
    for prior in (None,) if model.source_prior is None else (None, model.train_prior):
        expected = model.predict(block, prior)
        _, found, expert_logits = outputs(block, None if prior is None else prior.log())
        if found.shape != expected.shape or len(expert_logits) != len(block):
            raise UserError(
                f"{path} froze the batch: {len(block)} samples gave {len(found)} answers; it was not written"
            )
        best = expected.topk(2, dim=1).values
        agree = found.argmax(dim=1) == expected.argmax(dim=1)
        clear = best[:, 0] - best[:, 1] > LARGEST_DIFFERENCE
        difference = float((found - expected).abs().nan_to_num(nan=1.0).max())
        parts.append(_Compared(difference, bool(agree[clear].all()), int(agree.sum())))
    return _Compared(max(each.difference for each in parts), all(each.clear_agree for each in parts), parts[0].same)
