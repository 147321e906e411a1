"""One optimisation step: forward, loss, backward, update; eager, or captured once as a CUDA graph and replayed.

An eager step of a small network keeps a GPU waiting for Python: of a thousand kernels each is launched on its
own. A captured step is launched as one. For `resnet32` in bfloat16 its kernels are our own (`networks.fused`). Nothing
but this file knows which of them is at work; timing.jsonl says which was taken.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from balpoe.data.loading.in_memory import Batch
from balpoe.errors import UserError, unknown_name
from balpoe.networks.fused.forward import FusedForward, can_be_fused
from balpoe.networks.fused.launch_table import FASTEST_WIDTHS, WIDTHS
from balpoe.training.captured_step import CapturedStep
from balpoe.training.eager_step import EagerStep
from balpoe.training.engine import Engine
from balpoe.training.learner import Learner
from balpoe.training.settings import STEPS

__all__ = ["Step", "training_step"]


class Step(Protocol):
    """Changes the weights by one batch."""

    @property
    def kind(self) -> str:
        """What it turned out to be: eager, captured, compiled or fused."""
        ...

    def __call__(self, batch: Batch, lr: float, progress: float) -> Tensor:
        """Return this process's share of the batch's loss, still on the device, valid until the next call."""
        ...

    def preparation(self, batch: Batch) -> Callable[[], object] | None:
        """Return what may be done, also in another thread, before the first batch of this shape; None: nothing."""
        ...

    def outputs(self, images: Tensor) -> Tensor:
        """Return the network's expert logits, in the precision of the training."""
        ...


def training_step(engine: Engine, learner: Learner, kind: str, precision: str) -> Step:
    """Return the step that does the work here: captured on one GPU, eager elsewhere.

    Args:
        engine: Engine: device, precision, and the mean of the gradients over the processes.
        learner: Network, trained in place and moved to the device, with loss and optimiser.
        kind: "auto", "eager", "captured", "compiled" (captured, with kernels of torch's compiler: a minute to make,
            then faster) or "fused" (captured, with kernels of our own, for `resnet32` in bfloat16: faster still).
        precision: The engine's.
    """
    if kind not in STEPS:
        raise unknown_name("step", kind, STEPS)
    # A scaler of float16 gradients decides on the CPU whether to step; several processes wait for each other.
    able = engine.device.type == "cuda" and engine.world_size == 1 and precision in ("32-true", "bf16-mixed")
    if kind in ("captured", "compiled", "fused") and not able:
        raise UserError(f"step {kind!r} needs one CUDA device and precision 32-true or bf16-mixed; use 'auto'")
    if kind == "eager" or not able:
        return EagerStep(engine, learner)
    if kind in ("auto", "fused"):
        network, widths = learner.network, FASTEST_WIDTHS if kind == "auto" else WIDTHS
        plain = precision == "bf16-mixed" and learner.accumulate == 1
        if plain and can_be_fused(network, engine.device, widths):
            return CapturedStep(engine, learner, FusedForward(network))
        if kind == "fused":
            channels = f"{', '.join(map(str, WIDTHS[:-1]))} or {WIDTHS[-1]} channels in each stage"
            raise UserError(
                f"step 'fused' needs a resnet32 with {channels}, precision bf16-mixed and Triton; use 'auto'"
            )
    return CapturedStep(engine, learner, compiled=kind == "compiled")
