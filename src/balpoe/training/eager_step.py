"""A step whose operations are launched as Python comes to them."""

from typing import Any

import torch
from torch import Tensor

from balpoe.data.loading.in_memory import Batch
from balpoe.training.engine import Engine
from balpoe.training.learner import Learner, batch_loss, batch_parts, torch_errors_explained

__all__ = ["EagerStep"]


class EagerStep:
    """Every operation as Python comes to it; on any device, in any number of processes."""

    kind = "eager"

    def __init__(self, engine: Engine, learner: Learner) -> None:
        self.engine = engine
        self.network: Any
        self.optimizer: Any
        self.network, self.optimizer = engine.setup(learner.network, learner.optimizer)
        self.learner = learner

    def __call__(self, batch: Batch, lr: float, progress: float) -> Tensor:
        """Change the weights by one batch."""
        try:
            with torch_errors_explained():
                return self._changed(batch, lr, progress)
        except torch.OutOfMemoryError as error:
            raise self.learner.too_large(batch, self.engine, error) from error

    def _changed(self, batch: Batch, lr: float, progress: float) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["rate"]
        self.optimizer.zero_grad()
        # As many in all processes, which pass through a network in parts together; rows differ by one between them.
        fewest_rows = round(len(batch.targets) / batch.part) // self.engine.world_size
        values, parts = [], batch_parts(batch, self.learner.parts_of(fewest_rows))
        for number, part in enumerate(parts, start=1):
            with self.engine.no_backward_sync(self.network, enabled=number < len(parts)):
                value = batch_loss(self.network, self.learner.loss, part, progress) * part.part
                # Fabric averages gradients over the processes; the parts' losses are to be summed.
                self.engine.backward(value * self.engine.world_size)
            values.append(value.detach())
        if limit := self.learner.clip_gradients:
            self.engine.clip_gradients(self.network, self.optimizer, max_norm=limit, error_if_nonfinite=False)
        self.optimizer.step()
        self.learner.move_mean()
        return sum(values[1:], values[0])

    def preparation(self, batch: Batch) -> None:
        """Return nothing: every batch is as good as the first."""

    def outputs(self, images: Tensor) -> Tensor:
        """Return the network's expert logits."""
        expert_logits: Tensor = self.network(images)
        return expert_logits
