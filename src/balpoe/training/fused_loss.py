"""The loss of BalPoE in kernels of our own, and whether all kernels of a fused step are right on this machine."""

import functools
from typing import Any, TypeGuard

import torch
from torch import Tensor

from balpoe.data.loading.in_memory import Batch
from balpoe.method.losses import BalPoELoss
from balpoe.networks.fused.forward import FusedForward
from balpoe.networks.fused.head import blended_cross_entropy
from balpoe.networks.fused.self_check import kernel_error, loss_error
from balpoe.private_apis import has_hooks
from balpoe.training.learner import Forward, Loss

__all__ = ["CHECKED", "fused_batch_loss", "has_kernels", "kernel_fault"]

CHECKED: set[Any] = set()
"""Kernels of our own that were found to be right in this process, by what is launched."""


def kernel_fault(forward: FusedForward, loss: Loss, batch: Batch) -> str:
    """Return what is wrong with the kernels of a fused step on this machine, in a few words; nothing, if nothing is.

    Checked once in a process: five seeds that are trained side by side launch the same kernels.
    """
    checks = {forward.launched(batch.images): functools.partial(kernel_error, forward, batch.images)}
    if has_kernels(loss, forward, batch):
        blend = _blend(batch.clone())  # lies in memory as a captured batch does
        checks[_launched(loss.offsets, *blend)] = functools.partial(loss_error, loss.offsets, *blend)
    try:
        errors = {launched: check() for launched, check in checks.items() if launched not in CHECKED}
    except torch.OutOfMemoryError:
        return "there is too little memory to check it"
    except Exception as problem:  # no C compiler for Triton, another Triton, a GPU that it does not know
        *_, last = str(problem).split("\n")
        return f"{type(problem).__name__}: {last}"
    for error in errors.values():
        if not error < 0.01:
            return f"its kernels differ from torch's by {error:.2g}"
    CHECKED.update(errors)
    return ""


def _launched(offsets: Tensor, *blend: Tensor) -> tuple[Any, ...]:
    """What decides which kernel computes the loss, and how; its numbers have no part in it."""
    return str(offsets.device), *((tensor.dtype, tuple(tensor.shape)) for tensor in (offsets, *blend))


def has_kernels(loss: Loss, forward: FusedForward, batch: Batch) -> TypeGuard[BalPoELoss]:
    """Return whether there are kernels for the loss of a batch: BalPoE's own, of labels, behind a cosine classifier."""
    if type(loss) is not BalPoELoss or has_hooks(loss) or forward.cosine is None or batch.targets.ndim != 1:
        return False
    return bool(loss.offsets.shape == forward.cosine.weight.shape[:2])


def fused_batch_loss(forward: Forward, loss: Loss, batch: Batch, progress: float | Tensor) -> Tensor:
    """Return the loss of a batch for which there are kernels."""
    assert isinstance(loss, BalPoELoss)
    return blended_cross_entropy(forward(batch.images), loss.offsets, *_blend(batch))


def _blend(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, those of what was mixed in, and the share of the first; of a batch that is not mixed, all."""
    if batch.partner_targets is None or batch.weight is None:
        return batch.targets, batch.targets, torch.ones((), device=batch.targets.device)
    return batch.targets, batch.partner_targets, batch.weight
