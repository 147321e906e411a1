"""One optimisation step: normalise, mix, forward, loss, backward, update."""

from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from balpoe.data.datasets import Preprocessing
from balpoe.data.resident import Batch
from balpoe.mixing import blended_loss

__all__ = ["TrainingStep"]


class TrainingStep:
    """The eager step; the loop hands it batches and gets losses, and knows nothing else of it.

    Args:
        fabric: The engine: device, precision, and the mean of the gradients over the processes.
        network: Trained in place.
        loss: From expert logits and targets to a number; also given `progress`.
        optimizer: Of the network's parameters.
        preprocessing: Applied on the device.
    """

    def __init__(
        self,
        fabric: Fabric,
        network: nn.Module,
        loss: Callable[..., Tensor],
        optimizer: torch.optim.Optimizer,
        preprocessing: Preprocessing,
    ) -> None:
        self.fabric, self.loss, self.preprocessing = fabric, loss, preprocessing
        self.channels_last = fabric.device.type == "cuda" and len(preprocessing.size) == 3
        if self.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network: Any
        self.network, self.optimizer = fabric.setup(network, optimizer)

    def __call__(self, batch: Batch, lr: float, progress: float) -> Tensor:
        """Change the weights by one batch; return this process's share of its loss, still on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        value = self._loss(batch, progress) * batch.part
        # Fabric averages gradients over the processes; the parts' losses are to be summed.
        self.fabric.backward(value * self.fabric.world_size)
        self.optimizer.step()
        return value.detach()

    def _loss(self, batch: Batch, progress: float) -> Tensor:
        images = self._input(batch.images)
        if batch.partners is None or batch.partner_targets is None or batch.share is None:
            return self.loss(self.network(images), batch.targets, progress=progress)
        images = torch.lerp(self._input(batch.partners), images, batch.share)
        return blended_loss(
            self.loss, self.network(images), batch.targets, batch.partner_targets, batch.share.mean(), progress=progress
        )

    def _input(self, raw: Tensor) -> Tensor:
        images = self.preprocessing.normalise(raw)
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images
