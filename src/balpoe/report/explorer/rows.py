"""Posteriors packed into a page: of each sample, how far each class lies below the most probable one, in 8 or 16 bits.

Small tables are held whole; of large ones the most probable classes of a stratified part of the samples.
"""

import base64
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions

__all__ = ["COARSE", "DEEPEST", "FINE", "PackedRows", "base64_numbers", "packed_rows"]

DEEPEST = 20.0  # nats below the most probable class: exp(-20) is nothing for all but absurd priors
COARSE, FINE = 2**8 - 1, 2**16 - 1


@dataclass(frozen=True)
class PackedRows:
    """What a page knows of predictions."""

    codes: Tensor
    """(rows, kept): the distance to the row's largest logit, square-root coded; fine where classes compete."""
    labels: Tensor | None
    """(rows, kept): the classes of the codes; None for all classes in order."""
    rest: Tensor
    """(rows,): the probability of all other classes, in units of the most probable one's."""
    spread: Tensor
    """(classes,): how `rest` is divided among the classes, on average; sums to 1, or to 0 where nothing is left."""
    targets: Tensor
    levels: int
    """The largest code."""

    @property
    def wide(self) -> bool:
        """Whether labels take four bytes."""
        return len(self.spread) > np.iinfo(np.uint16).max

    def data(self) -> dict[str, object]:
        """Return what a script reads; arrays as base64 of little-endian numbers."""
        whole = np.uint32 if self.wide else np.uint16
        found: dict[str, object] = {
            "deepest": DEEPEST,
            "wide": self.wide,
            "levels": self.levels,
            "kept": self.codes.shape[1],
            "targets": base64_numbers(self.targets, whole),
            "codes": base64_numbers(self.codes, np.uint8 if self.levels == COARSE else np.uint16),
        }
        if self.labels is not None:
            found["labels"] = base64_numbers(self.labels, whole)
            found["rest"] = base64_numbers(self.rest, np.float32)
            found["spread"] = base64_numbers(self.spread, np.float32)
        return found


def packed_rows(
    predictions: Predictions, samples: int, kept: int | None, levels: int, *, with_own: bool = False
) -> PackedRows:
    """Return predictions as a page holds them, read block by block.

    Args:
        predictions: Labelled predictions.
        samples: Number of samples to keep, as many of each class as can be.
        kept: Number of classes to keep of each sample, the most probable ones; None: all, in their order.
        levels: The largest code, `COARSE` or `FINE`.
        with_own: Whether a sample's own class is among those kept, however improbable.

    >>> predictions = Predictions(torch.tensor([[[0.0, -5.0, -20.0]]]), torch.tensor([0]), [3, 2, 1], [0])
    >>> packed_rows(predictions, 1, None, COARSE).codes
    tensor([[  0, 128, 255]], dtype=torch.uint8)
    """
    chosen = torch.ones(len(predictions), dtype=torch.bool)
    if samples < len(predictions):
        chosen = _stratified(predictions.targets, _ranks(predictions), samples)
    parts, spread = [], torch.zeros(predictions.num_classes, dtype=torch.float64)
    for rows in predictions.blocks():
        logits = predictions.product(predictions.calibrated(rows).double())
        depth = logits.amax(dim=1, keepdim=True) - logits
        if bool(depth.isnan().any()):
            row = rows.start + int(depth.isnan().any(dim=1).nonzero()[0])
            raise UserError(f"the logits of sample {row} are not numbers; check the network that gave them")
        own = predictions.targets[rows][chosen[rows]] if with_own else None
        parts.append(_packed(depth[chosen[rows]], levels, kept, spread, own))
    codes, labels, rest = zip(*parts, strict=True)
    return PackedRows(
        torch.cat(codes),
        None if kept is None else torch.cat(labels),
        torch.cat(rest),
        spread / spread.sum().clamp(min=1e-300),
        predictions.targets[chosen],
        levels,
    )


def base64_numbers(values: Tensor, dtype: type) -> str:
    """Return numbers as text that a script unpacks.

    >>> base64_numbers(torch.tensor([1, 2]), np.uint8)
    'AQI='
    """
    return base64.b64encode(values.numpy().astype(np.dtype(dtype).newbyteorder("<")).tobytes()).decode()


def _packed(
    depth: Tensor, levels: int, kept: int | None, spread: Tensor, own: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, labels and rest of some rows; what is left out is added to `spread`."""
    if kept is None:
        return _codes(depth, levels), torch.empty(0), torch.zeros(len(depth))
    order = depth if own is None else depth.scatter(1, own[:, None], -1.0)  # before all others
    labels = order.topk(min(kept, depth.shape[1]), largest=False).indices
    near = depth.gather(1, labels)
    left = (-depth).exp().scatter(1, labels, 0.0)
    rest = left.sum(dim=1)
    spread += (left / (rest + (-near).exp().sum(dim=1))[:, None]).sum(dim=0)
    return _codes(near, levels), labels, rest.float()


def _codes(depth: Tensor, levels: int) -> Tensor:
    codes = (levels * (depth / DEEPEST).clamp(max=1).sqrt()).round()
    return codes.to(torch.uint8 if levels == COARSE else torch.int32)


def _ranks(predictions: Predictions) -> Tensor:
    """The place of each class by training count: 0 for the most frequent, ties in the order of the labels."""
    return predictions.class_counts.argsort(descending=True, stable=True).argsort()


def _stratified(targets: Tensor, ranks: Tensor, limit: int) -> Tensor:
    """Which samples to keep, (samples,): one of each class, a second one, and so on, up to the limit.

    Where not every class can have one more, classes are taken at equal distances from frequent to rare.
    """
    chosen = torch.zeros(len(targets), dtype=torch.bool)
    shuffled = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    order = shuffled[ranks[targets[shuffled]].argsort(stable=True)]
    sizes = torch.bincount(ranks[targets], minlength=len(ranks))
    turn = torch.arange(len(targets)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    for number in range(int(sizes.max())):
        candidates = order[turn == number]
        left = limit - int(chosen.sum())
        if left < len(candidates):
            chosen[candidates[torch.arange(left) * len(candidates) // max(1, left)]] = True
            break
        chosen[candidates] = True
    return chosen
