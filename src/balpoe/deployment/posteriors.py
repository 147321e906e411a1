"""Posteriors of many samples under a deployment prior, a block of rows at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.evaluation.deployment_prior import target_prior as resolved_prior
from balpoe.evaluation.predictions import Predictions
from balpoe.method.ensemble import at_least_float32, shift_prior
from balpoe.method.priors import checked_prior

__all__ = ["Posteriors", "label_weights"]

BLOCK_VALUES = 2**19  # logits looked at together: a few megabytes, which stay in the processor's cache


class Posteriors:
    """Logits of many samples, moved to a deployment prior block by block: a mapped file is never read as a whole.

    Args:
        logits: Logits (samples, classes), posteriors under `source_prior`: a tensor, an array (mapped, if it is large),
            or labelled `Predictions`, which know their source prior.
        target_prior: Deployment prior, (classes,); None: uniform. With predictions also in the other forms of
            `balpoe.target_prior`, such as "train".
        source_prior: Prior that the logits are made for; None: uniform, or that of the predictions.
        num_classes: Number of classes that there must be, if that is known.

    >>> posteriors = Posteriors(torch.zeros(3, 2), target_prior=[0.75, 0.25])
    >>> [(rows, block[0].float()) for rows, block in posteriors.probabilities()]
    [(slice(0, 3, None), tensor([0.7500, 0.2500]))]
    """

    def __init__(
        self, logits: Any, target_prior: Any = None, source_prior: Any = None, num_classes: int | None = None
    ) -> None:
        self._predictions = logits if isinstance(logits, Predictions) else None
        if self._predictions is not None:
            source_prior = _source_of(self._predictions, source_prior)
            shape = (len(self._predictions), self._predictions.num_classes)
        else:
            self._table = _table(logits)
            shape = tuple(self._table.shape)
        self.samples, self.num_classes = shape
        if num_classes not in (None, self.num_classes):
            raise UserError(
                f"the logits have {self.num_classes} classes, but {num_classes} are wanted; give logits of the model "
                "that this was made for"
            )
        if self._predictions is not None and target_prior is not None:
            target_prior = resolved_prior(target_prior, self._predictions)
        uniform = torch.full((self.num_classes,), 1 / self.num_classes, dtype=torch.float64)
        self.target_prior = (
            uniform if target_prior is None else checked_prior(target_prior, self.num_classes, "target_prior")
        )
        self._shift = shift_prior(torch.zeros_like(uniform), self.target_prior, source_prior)

    def __len__(self) -> int:
        return self.samples

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class; numbers where only logits were given."""
        if self._predictions is not None:
            return self._predictions.class_names
        return tuple(map(str, range(self.num_classes)))

    def logits(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows and their logits under the deployment prior, in float32 or, if they were given so, in float64."""
        experts = 1 if self._predictions is None else self._predictions.num_experts
        size = max(1, BLOCK_VALUES // (experts * self.num_classes))
        for start in range(0, len(self), size):
            rows = slice(start, min(start + size, len(self)))
            block = self._block(rows)
            block = block + self._shift.to(block)
            wrong = ~block.amax(dim=1).isfinite()
            if bool(wrong.any()):
                row = start + int(wrong.nonzero()[0])
                raise UserError(
                    f"the logits of sample {row} are not numbers, infinite, or exclude every class; check the network "
                    "that gave them"
                )
            yield rows, block

    def probabilities(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows and their probabilities under the deployment prior, in float64."""
        for rows, block in self.logits():
            yield rows, block.double().softmax(dim=1)

    def _block(self, rows: slice) -> Tensor:
        if self._predictions is not None:
            return self._predictions.product(self._predictions.calibrated(rows))
        block = self._table[rows]
        # A copy: torch warns of arrays that cannot be written to, and mapped ones cannot.
        return at_least_float32(torch.from_numpy(np.array(block)) if isinstance(block, np.ndarray) else block)


def label_weights(predictions: Predictions, target_prior: Tensor) -> Tensor:
    """Return a weight for each labelled sample, (samples,), that makes them stand for a deployment prior; 1 on average.

    A class without samples has no part in it: those that have some keep their proportions.

    >>> predictions = Predictions(torch.zeros(4, 1, 2), torch.tensor([0, 0, 0, 1]), [3, 1], [0])
    >>> label_weights(predictions, torch.tensor([0.5, 0.5])).tolist()
    [0.6666666666666666, 0.6666666666666666, 0.6666666666666666, 2.0]
    """
    if not len(predictions):
        raise UserError("there is no labelled sample to fit on; give held-out predictions that have some")
    counts = torch.bincount(predictions.targets, minlength=predictions.num_classes)
    weights = (target_prior.double() / counts.clamp(min=1))[predictions.targets]
    if not bool(weights.any()):
        raise UserError("the target prior excludes every class of the labelled samples; give samples of its classes")
    return weights * (len(weights) / weights.sum())


def _source_of(predictions: Predictions, source_prior: Any) -> Tensor:
    if source_prior is not None:
        raise UserError("predictions know their source prior; leave source_prior out")
    if predictions.source_prior is None:
        raise UserError(
            "the scores of these predictions are not probabilities for a known class mix, so that no decision can "
            "rest on them; predict with a method that has a source prior, such as balpoe or cross-entropy"
        )
    return predictions.source_prior


def _table(logits: Any) -> Any:
    """A tensor or an array of two dimensions and floats."""
    if not isinstance(logits, Tensor | np.ndarray):
        try:
            logits = torch.as_tensor(logits, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"logits must be a table of numbers, (samples, classes): {error}") from error
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise UserError(
            f"logits must have shape (samples, classes), but have {tuple(logits.shape)}; balpoe.product_of_experts "
            "makes them from (samples, experts, classes)"
        )
    floating = logits.dtype.kind == "f" if isinstance(logits, np.ndarray) else logits.is_floating_point()
    if not floating:
        raise UserError(f"logits must be floating-point numbers, but are {logits.dtype}")
    return logits
