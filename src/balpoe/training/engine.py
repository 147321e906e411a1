"""What a training asks of its engine: a device, a precision, and other processes, where there are any.

Several processes are Lightning Fabric's. One process needs little of it, and importing it takes seconds: with it comes
torch's compiler. So one process has an engine of its own, which computes the same, to the bit.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Engine", "OneProcess"]

Engine: TypeAlias = "Fabric | OneProcess"


class OneProcess:
    """The engine of a training in this process alone, under the names of Fabric's methods.

    Args:
        device: Where it computes.
        precision: "32-true" or "bf16-mixed".
    """

    PRECISIONS = ("32-true", "bf16-mixed")
    world_size, global_rank, is_global_zero = 1, 0, True

    def __init__(self, device: torch.device, precision: str) -> None:
        assert precision in self.PRECISIONS
        self.device, self.mixed = device, precision == "bf16-mixed"
        if device.type == "cuda":
            torch.cuda.set_device(device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return what a forward pass is computed under."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.mixed else nullcontext()

    def setup(
        self, network: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[Callable[[Tensor], Tensor], torch.optim.Optimizer]:
        """Return the forward pass of a network, which is moved to the device, and its optimiser."""
        network.to(self.device)
        return (self._mixed_pass(network) if self.mixed else network), optimizer

    def _mixed_pass(self, network: nn.Module) -> Callable[[Tensor], Tensor]:
        def forward(images: Tensor) -> Tensor:
            with self.autocast():
                outputs: Tensor = network(images.bfloat16() if images.is_floating_point() else images)
            return outputs.float()

        return forward

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients."""
        loss.backward()

    def no_backward_sync(self, network: Any, enabled: bool) -> AbstractContextManager[Any]:
        """Return a context that changes nothing: no other process has gradients."""
        return nullcontext()

    def clip_gradients(self, network: Any, optimizer: Any, *, max_norm: float, error_if_nonfinite: bool) -> Tensor:
        """Shorten the gradients of all weights together to a length; return theirs."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        return nn.utils.clip_grad_norm_(weights, max_norm, error_if_nonfinite=error_if_nonfinite)

    def broadcast(self, value: Any) -> Any:
        """Return the first process's value, which is this one's."""
        return value

    def all_reduce(self, value: Tensor, reduce_op: str) -> Tensor:
        """Return the sum over all processes, of which there is this one."""
        return value
