"""What a step changes, the loss of a batch, and its parts where it goes through the network in several."""

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from balpoe.data.loading.in_memory import Batch
from balpoe.errors import UserError
from balpoe.method.mixing import blended_loss
from balpoe.networks.memory import fitting_parts
from balpoe.training.engine import Engine
from balpoe.training.weight_averaging import move_mean, norms_in_training

__all__ = ["BatchLoss", "Forward", "Learner", "Loss", "batch_loss", "batch_parts", "torch_errors_explained"]

Loss = Callable[..., Tensor]
Forward = Callable[[Tensor], Tensor]
BatchLoss = Callable[[Forward, Loss, Batch, float | Tensor], Tensor]


class Learner(NamedTuple):
    """What a step changes, and how."""

    network: nn.Module
    loss: Loss
    """From expert logits and targets to a number; also given `progress`."""
    optimizer: torch.optim.Optimizer
    clip_gradients: float = 0.0
    """Largest norm of all gradients together; 0 for any."""
    mean: list[Tensor] = []  # noqa: RUF012 (a NamedTuple's default)
    """Exponential mean of the weights that training changes; empty where there is none."""
    mean_decay: float = 0.0
    accumulate: int = 1
    """Number of parts of a batch that go through the network one after the other."""

    def parts_of(self, rows: int) -> int:
        """Return in how many parts so many rows go through the network, none of them too small for it."""
        return 1 if self.accumulate == 1 else min(self.accumulate, max(1, rows // self.smallest_part))

    @property
    def smallest_part(self) -> int:
        """Least number of rows of a part: of one alone, batch normalisation would have no deviation."""
        return 2 if norms_in_training(self.network) else 1

    @property
    def weights(self) -> list[nn.Parameter]:
        """The weights that training changes."""
        return [parameter for parameter in self.network.parameters() if parameter.requires_grad]

    def too_large(self, batch: Batch, engine: Engine, error: torch.OutOfMemoryError) -> UserError:
        """Return what to say of a batch for which there is too little memory: in how many parts it fits, alone tried.

        Several processes would have to try together, and one of them may be the only one that fails.
        """
        rows, least = len(batch.targets), self.smallest_part
        parts, most = self.parts_of(rows), max(1, rows // least)
        what = f"a step of {rows} samples in {parts} part{'s' * (parts > 1)} does not fit into the memory of the GPU"
        if len(batch.images) > rows:  # two views of each, which cannot be parted
            return UserError(f"{what}; take a smaller --batch-size, such as {max(1, rows // 2)}")
        if engine.world_size == 1:
            found = fitting_parts(most, parts, functools.partial(self._try_part, batch, engine), error)
            fit = ", which fit"
        else:
            found, fit = (2 * parts if 2 * parts <= most else None), ""
        if found is None:
            return UserError(
                f"{what}, nor does one of {'a single sample' if least == 1 else 'two samples'}; take smaller images "
                "(--image-size), a smaller --network, --gradient-checkpointing, or --tune head"
            )
        smaller = f"add --accumulate {found} for the same training in parts of {-(-rows // found)}{fit}"
        return UserError(f"{what}; {smaller}, or take a smaller --batch-size")

    def _try_part(self, batch: Batch, engine: Engine, parts: int) -> None:
        """Compute the gradients of one of so many parts of a batch, beside all that a step keeps in memory."""
        self.optimizer.zero_grad()
        room = [torch.empty_like(weight) for weight in self.weights * 2 if not self.optimizer.state]  # for AdamW's
        with engine.autocast():
            batch_loss(self.network, self.loss, batch_parts(batch, parts)[0], 0.0).backward()
        self.optimizer.zero_grad()
        del room

    def move_mean(self) -> None:
        """Take the weights after a step into their mean."""
        if self.mean:
            move_mean(self.mean, self.weights, self.mean_decay)


def batch_loss(forward: Forward, loss: Loss, batch: Batch, progress: float | Tensor) -> Tensor:
    """Return the loss of a batch, mixed as its samples are.

    Args:
        forward: From images to expert logits.
        loss: From expert logits and targets to a number; also given `progress`.
        batch: Batch on the device.
        progress: Part of the training that is done.
    """
    expert_logits = forward(batch.images)
    if batch.partner_targets is None or batch.weight is None:
        return loss(expert_logits, batch.targets, progress=progress)
    parts = batch.targets, batch.partner_targets, batch.weight
    if batch.weight.ndim:  # one for each sample
        return blended_loss(loss, expert_logits, *parts, progress=progress, reduction="none").mean()
    return blended_loss(loss, expert_logits, *parts, progress=progress)


def batch_parts(batch: Batch, number: int) -> list[Batch]:
    """Return a batch in so many parts, or one for each row, each with its share of the batch; itself, if it is one."""
    rows, parts = len(batch.targets), list[Batch]()
    if min(number, rows) <= 1:
        return [batch]
    for images in batch.images.tensor_split(min(number, rows)):
        start = sum(len(part.targets) for part in parts)
        chosen = slice(start, start + len(images))
        partner = None if batch.partner_targets is None else batch.partner_targets[chosen]
        weight = batch.weight if batch.weight is None or not batch.weight.ndim else batch.weight[chosen]
        parts.append(Batch(images, batch.targets[chosen], partner, weight, batch.part * len(images) / rows))
    return parts


@contextmanager
def torch_errors_explained() -> Iterator[None]:
    """Say in a sentence what torch refuses, where it can be known only from what a network does with its input."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            "batch normalisation gets one value of each channel, which has no deviation; leave each process at least "
            "two samples in every step and part (batch_size, accumulate)"
        ) from error
    except IndexError as error:
        if not (found := re.fullmatch(r"Target (\d+) is out of bounds\.", str(error))):
            raise
        raise UserError(
            f"the training samples have a label {found[1]}, but the network has fewer classes; make loss and network "
            "for all classes, as by class_counts and class_names of the data"
        ) from error
