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
    difference, clear_answers_agree, same = 0.0, True, 0
    priors = (None,) if model.source_prior is None else (None, model.train_prior)
    for block in (*(samples[:rows] for rows in BATCHES), *samples.split(AT_ONCE)):
        expected_logits = model.expert_logits(block)
        for prior in priors:
            expected = model.predict(block, prior)
            _, found, expert_logits = outputs(block, None if prior is None else prior.log())
            if found.shape != expected.shape or expert_logits.shape != expected_logits.shape:
                raise UserError(f"{path} froze the batch: {len(block)} samples gave {tuple(found.shape)}; not written")
            difference = max(difference, float((found - expected).abs().nan_to_num(nan=1.0).max()))
            best = expected.topk(2, dim=1).values
            agree = found.argmax(dim=1) == expected.argmax(dim=1)
            clear_answers_agree &= bool(agree[best[:, 0] - best[:, 1] > LARGEST_DIFFERENCE].all())
    same = sum(
        int((outputs(block)[1].argmax(1) == model.predict(block).argmax(1)).sum()) for block in samples.split(AT_ONCE)
    )
    if precision == "fp32" and (difference > LARGEST_DIFFERENCE or not clear_answers_agree):
        raise UserError(
            f"{path} would not say what the model says: probabilities differ by up to {difference:.2g}, and "
            f"{LARGEST_DIFFERENCE:g} is allowed; it was not written"
        )
    return FileCheck(len(samples), difference, same / max(1, len(samples)))
