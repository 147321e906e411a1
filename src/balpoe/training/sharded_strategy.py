"""Fabric's part in networks whose weights are in parts (`sharding`): how their processes begin."""

from typing import Any

from lightning_fabric.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import nn

__all__ = ["ShardedStrategy"]


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
