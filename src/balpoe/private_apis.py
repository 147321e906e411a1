"""Private names of torch and timm without a public counterpart, and why each is used; tests fail when one changes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "add_to_all",
    "between_all",
    "clear_cublas_workspaces",
    "compiling",
    "copy_to_all",
    "has_hooks",
    "leave_memory_pool",
    "leave_out_positions",
    "move_all",
    "standard_gamma",
]


def standard_gamma(concentration: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return draws of Gamma(concentration, 1); `torch.distributions.Gamma` takes no generator."""
    return torch._standard_gamma(concentration, generator=generator)


def add_to_all(tensors: Sequence[Tensor], number: float) -> None:
    """Add a number to many tensors in one kernel; a loop would launch one for each."""
    torch._foreach_add_(list(tensors), number)


def copy_to_all(places: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy many tensors in few kernels; a loop would launch one for each."""
    torch._foreach_copy_(list(places), list(tensors))


def move_all(places: Sequence[Tensor], targets: Sequence[Tensor], share: float) -> None:
    """Move many tensors by a share of the way to others, in few kernels; a loop would launch one for each."""
    torch._foreach_lerp_(list(places), list(targets), share)


def between_all(starts: Sequence[Tensor], ends: Sequence[Tensor], share: float) -> list[Tensor]:
    """Return what lies at a share of the way from tensors to others, in few kernels."""
    return list(torch._foreach_lerp(list(starts), list(ends), share))


def has_hooks(module: nn.Module) -> bool:
    """Return whether somebody's hooks are to be called around a module's forward pass; torch has no list of them."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def leave_out_positions(transformer: Any) -> None:
    """Let one of timm's transformers add no position embedding, for which no attribute of all of them is a switch."""
    transformer._pos_embed = _unchanged


def _unchanged(x: Tensor) -> Tensor:
    return x


@contextmanager
def compiling() -> Iterator[None]:
    """Let torch compile the step of many networks in one process; by default it gives up, silently, after eight.

    And let it compute gradients in the precision of what they are of: by default all of them are under autocast, also
    those of a classifier that is computed in float32.
    """
    import torch._dynamo
    import torch._functorch.config

    precision = torch._functorch.config.patch({"backward_pass_autocast": "off"})
    with torch._dynamo.config.patch(recompile_limit=256), precision:
        yield


def clear_cublas_workspaces() -> None:
    """Let cuBLAS take new workspaces: torch keeps one for each stream, and a captured graph wants its own."""
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()


def leave_memory_pool(pool: Any) -> None:
    """Stop taking memory from a graph's pool, which torch goes on with where a capture failed."""
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
