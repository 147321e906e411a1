"""Weights in parts, one for each process, for networks that do not fit one GPU: torch's FSDP2, through Fabric.

Each process keeps some rows of every weight (a `DTensor`), with their gradients and the optimiser's state. While a
block computes, all processes have the whole of it; so they pass through the network together. What is saved or goes
home is whole, and in tensors as without parts.
"""

from collections.abc import Iterable
from typing import Any

from lightning_fabric import Fabric
from lightning_fabric.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from balpoe.networks.experts import ExpertLayer

__all__ = ["ShardedStrategy", "in_parts", "own_part", "parts_like", "shard_network", "whole"]

SEQUENCES = (nn.Sequential, nn.ModuleList)
LEAST_WEIGHTS = 2**15  # of a block: fewer are not worth messages of their own


class ShardedStrategy(ModelParallelStrategy):
    """Fabric's strategy for networks in parts, in processes that begin as those of its `ddp_spawn` do.

    Args:
        num_processes: Number of processes, over all machines.
    """

    def __init__(self, num_processes: int) -> None:
        super().__init__(_as_it_is, data_parallel_size=num_processes, tensor_parallel_size=1)

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if not self.cluster_environment.creates_processes_externally:
            self._launcher = _MultiProcessingLauncher(self, "spawn")  # Fabric's own would run the user's script again


def _as_it_is(network: nn.Module, _: Any) -> nn.Module:
    """What Fabric does to a network with its optimiser, which must be made of the parts, and so after them."""
    return network


def shard_network(fabric: Fabric, network: nn.Module) -> None:
    """Leave each process its part of a network's weights, in place, block by block.

    Args:
        fabric: Engine with a `ShardedStrategy`.
        network: The same network in all processes.
    """
    assert isinstance(fabric.strategy, ShardedStrategy)
    mesh = fabric.strategy.device_mesh["data_parallel"]
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


def in_parts(tensors: Iterable[Tensor]) -> bool:
    """Return whether processes have parts of some of these tensors.

    >>> in_parts(nn.Linear(2, 1).parameters())
    False
    """
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def own_part(tensor: Tensor) -> Tensor:
    """Return the rows that this process has; all of a tensor that is not in parts."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


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
    if not isinstance(value, DTensor):
        return value
    tensor = value.detach().full_tensor()
    return tensor.cpu() if keep else None


def parts_like(tensor: Any, like: Tensor | None) -> Any:
    """Return this process's part of a whole tensor, where another of that shape is in parts; else what was given.

    Args:
        tensor: What all processes have, such as a checkpoint's tensor.
        like: Tensor whose place it takes.
    """
    if not isinstance(like, DTensor) or not isinstance(tensor, Tensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
