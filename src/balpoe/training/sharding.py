"""Weights in parts, one for each process, for networks that do not fit one GPU: torch's FSDP2, through Fabric.

Each process keeps some rows of every weight (a `DTensor`), with their gradients and the optimiser's state. While a
block computes, all processes have the whole of it; so they pass through the network together. What is saved or goes
home is whole, and in tensors as without parts.
"""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from torch import Tensor, nn

from balpoe.networks.expert_layers import ExpertLayer
from balpoe.training.engine import Engine, OneProcess

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from balpoe.training.sharded_strategy import ShardedStrategy

__all__ = ["in_parts", "own_part", "parts_like", "shard_network", "whole"]

SEQUENCES = (nn.Sequential, nn.ModuleList)
LEAST_WEIGHTS = 2**15  # of a block: fewer are not worth messages of their own


def shard_network(engine: Engine, network: nn.Module) -> None:
    """Leave each process its part of a network's weights, in place, block by block.

    Args:
        engine: Engine with a `ShardedStrategy`.
        network: The same network in all processes.
    """
    from torch.distributed.fsdp import fully_shard

    assert not isinstance(engine, OneProcess)
    mesh = cast("ShardedStrategy", engine.strategy).device_mesh["data_parallel"]
    for block in (*_blocks(network), network):
        fully_shard(block, mesh=mesh, reshard_after_forward=True)


def _blocks(network: nn.Module) -> list[nn.Module]:
    """Entries of sequences that have weights enough beside those of entries within them, which come first."""
    blocks: list[nn.Module] = []
    taken: set[nn.Parameter] = set()
    for module in reversed([module for module in network.modules() if isinstance(module, SEQUENCES)]):
        for entry in module.children():
            own = set(entry.parameters()) - taken
            if _is_called(entry) and sum(weight.numel() for weight in own) >= LEAST_WEIGHTS:
                blocks.append(entry)
                taken |= own
    return blocks


def _is_called(module: nn.Module) -> bool:
    """Whether a module is only used by calling it, which is when its weights are brought together."""
    by_expert = isinstance(module, ExpertLayer) and type(module).each is not ExpertLayer.each
    return not by_expert and not isinstance(module, SEQUENCES)


def _is_part(value: Any) -> "TypeGuard[DTensor]":
    """Whether a value is a tensor in parts; before torch's module of these is imported, which takes long, none is."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)  # none while a thread imports it
    return kind is not None and isinstance(value, kind)


def in_parts(tensors: Iterable[Tensor]) -> bool:
    """Return whether processes have parts of some of these tensors.

    >>> in_parts(nn.Linear(2, 1).parameters())
    False
    """
    return any(map(_is_part, tensors))


def own_part(tensor: Tensor) -> Tensor:
    """Return the rows that this process has; all of a tensor that is not in parts."""
    return tensor.to_local() if _is_part(tensor) else tensor


def whole(value: Any, keep: bool = True) -> Any:
    """Return dictionaries and lists of tensors with those in parts brought together, on the CPU.

    All processes call it at the same time. What is not in parts is returned as it is.

    Args:
        value: A tensor, or a dictionary or list of such values.
        keep: Whether this process wants the tensors; one that does not has None in their places.
    """
    if isinstance(value, dict):
        return {name: whole(each, keep) for name, each in value.items()}
    if isinstance(value, list):
        return [whole(each, keep) for each in value]
    if not _is_part(value):
        return value
    tensor = value.detach().full_tensor()
    return tensor.cpu() if keep else None


def parts_like(tensor: Any, like: Tensor | None) -> Any:
    """Return this process's part of a whole tensor, where another of that shape is in parts; else what was given.

    Args:
        tensor: What all processes have, such as a checkpoint's tensor.
        like: Tensor whose place it takes.
    """
    if not _is_part(like) or not isinstance(tensor, Tensor) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
