"""One optimisation step: forward, loss, backward, update; eager, or recorded once as a CUDA graph and replayed.

An eager step of a small network keeps a GPU waiting for Python: of a thousand kernels each is launched on its
own. A recorded step is launched as one. Nothing but this file knows which of the two is at work.
"""

import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from balpoe.data.loading.in_memory import Batch
from balpoe.errors import UserError, unknown_name
from balpoe.method.mixing import blended_loss
from balpoe.networks.fused.forward import FusedForward, can_be_fused
from balpoe.networks.fused.self_check import kernel_error
from balpoe.training.cuda_graphs import captured

__all__ = ["CapturedStep", "EagerStep", "Step", "training_step"]

KINDS = ("auto", "eager", "captured", "compiled", "fused")
Loss = Callable[..., Tensor]
Forward = Callable[[Tensor], Tensor]
BatchLoss = Callable[[Forward, Loss, Batch, float | Tensor], Tensor]
PREPARING = threading.Lock()  # one thread at a time compiles and records


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


def training_step(fabric: Fabric, network: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, kind: str) -> Step:
    """Return the step that does the work here: recorded on one GPU, eager elsewhere.

    Args:
        fabric: The engine: device, precision, and the mean of the gradients over the processes.
        network: Trained in place; moved to the device.
        loss: From expert logits and targets to a number; also given `progress`.
        optimizer: Of the network's parameters.
        kind: "auto", "eager", "captured", "compiled" (captured, with kernels of torch's compiler: a minute to make,
            then faster) or "fused" (captured, with kernels of our own, for `resnet32` in bfloat16: faster still).
    """
    if kind not in KINDS:
        raise unknown_name("step", kind, KINDS)
    # A scaler of float16 gradients decides on the CPU whether to step; several processes wait for each other.
    precise = fabric._precision.precision in ("32-true", "bf16-mixed")
    able = fabric.device.type == "cuda" and fabric.world_size == 1 and precise
    if kind in ("captured", "compiled", "fused") and not able:
        raise UserError(f"step {kind!r} needs one CUDA device and precision 32-true or bf16-mixed; use 'auto'")
    if kind == "eager" or not able:
        return EagerStep(fabric, network, loss, optimizer)
    if kind in ("auto", "fused"):
        if fabric._precision.precision == "bf16-mixed" and can_be_fused(network, fabric.device):
            return CapturedStep(fabric, network, loss, optimizer, FusedForward(network))
        if kind == "fused":
            widths = "16, 32 or 64 channels in each stage"
            raise UserError(f"step 'fused' needs a resnet32 with {widths}, precision bf16-mixed and Triton; use 'auto'")
    return CapturedStep(fabric, network, loss, optimizer, compiled=kind == "compiled")


class EagerStep:
    """Every operation as Python comes to it; on any device, in any number of processes."""

    kind = "eager"

    def __init__(self, fabric: Fabric, network: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer) -> None:
        self.fabric, self.loss = fabric, loss
        self.network: Any
        self.network, self.optimizer = fabric.setup(network, optimizer)

    def __call__(self, batch: Batch, lr: float, progress: float) -> Tensor:
        """Change the weights by one batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        value = _batch_loss(self.network, self.loss, batch, progress) * batch.part
        # Fabric averages gradients over the processes; the parts' losses are to be summed.
        self.fabric.backward(value * self.fabric.world_size)
        self.optimizer.step()
        return value.detach()

    def preparation(self, batch: Batch) -> None:
        """Return nothing: every batch is as good as the first."""

    def outputs(self, images: Tensor) -> Tensor:
        """Return the network's expert logits."""
        expert_logits: Tensor = self.network(images)
        return expert_logits


class CapturedStep:
    """A CUDA graph per shape of batch, recorded at the first batch of that shape.

    Learning rate and progress are numbers on the device, so that they can change between replays; `loss` gets
    `progress` as such a number. What cannot be recorded (a network that reads from the device) runs eagerly,
    with a warning.
    """

    def __init__(
        self,
        fabric: Fabric,
        network: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        forward: FusedForward | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        self.fabric, self.network, self.loss, self.optimizer = fabric, network, loss, optimizer
        self.forward: Forward = forward or network
        network.to(fabric.device)
        self.lr, self.progress = torch.zeros(2, device=fabric.device).unbind()
        self.pool: Any = None  # of the recordings, which do not run at the same time
        self.recordings: dict[Any, _Recording] = {}
        self.eager: EagerStep | None = None
        self.compiled = torch.compile(_batch_loss, dynamic=False) if compiled else None

    def __call__(self, batch: Batch, lr: float, progress: float) -> Tensor:
        """Change the weights by one batch."""
        if (prepare := self.preparation(batch)) is not None:
            prepare()
        if self.eager is not None:
            return self.eager(batch, lr, progress)
        recording = self.recordings[_shape(batch)]
        self.lr.fill_(lr)
        self.progress.fill_(progress)
        for place, tensor in zip(recording.inputs.tensors(), batch.tensors(), strict=True):
            place.copy_(tensor)
        recording.graph.replay()
        return recording.loss

    @property
    def kind(self) -> str:
        """What it turned out to be, after what could not be done here."""
        if self.eager is not None:
            return self.eager.kind
        return "fused" if isinstance(self.forward, FusedForward) else "compiled" if self.compiled else "captured"

    def preparation(self, batch: Batch) -> Callable[[], object] | None:
        """Return what compiles and records for batches of this shape; None if that is done."""
        done = self.eager is not None or _shape(batch) in self.recordings
        return None if done else functools.partial(self._prepare, batch)

    def outputs(self, images: Tensor) -> Tensor:
        """Return the network's expert logits, by torch's own kernels."""
        with self.fabric.autocast():
            expert_logits: Tensor = self.network(images)
        return expert_logits

    def _prepare(self, batch: Batch) -> None:
        with PREPARING:
            before = _State(self.network, self.optimizer)
            try:
                if isinstance(self.forward, FusedForward) and (fault := _fault(self.forward, batch.images)):
                    warnings.warn(f"the fused step is replaced by the captured one: {fault}", stacklevel=2)
                    self.forward = self.network
                    self.recordings.clear()  # those of other shapes: all steps are to be of one kind
                self.recordings[_shape(batch)] = self._recorded(batch, before)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                reason = str(error).strip().partition("\n")[0]
                warnings.warn(f"the training step cannot be captured and runs eagerly: {reason}", stacklevel=2)
                self.eager = EagerStep(self.fabric, self.network, self.loss, self.optimizer)
            finally:
                before.restore()

    def _recorded(self, batch: Batch, before: "_State") -> "_Recording":
        """Record; if that fails, once more: another thread of the process can have broken it."""
        try:
            return self._record(batch.clone())
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            before.restore()
            self.pool = None  # that of a recording that failed cannot be used again
            return self._record(batch.clone())

    def _record(self, inputs: Batch) -> "_Recording":
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        device = self.fabric.device
        aside, graph = _recording_stream(device), torch.cuda.CUDAGraph()
        aside.wait_stream(torch.cuda.current_stream(device))
        # The first shape is that of almost all batches; an epoch's last one is not worth the time to compile.
        batch_loss = _batch_loss if self.compiled is None or self.recordings else self.compiled
        try:
            with torch.cuda.stream(aside), _compiling() if self.compiled else nullcontext():
                with nullcontext() if isinstance(self.forward, FusedForward) else _fastest_algorithms():
                    for _ in range(3):  # choose algorithms, compile, allocate: none of this belongs into the graph
                        self._work(inputs, batch_loss)
                aside.synchronize()
                self.optimizer.zero_grad()  # gradients are to live in the graph's own memory
                self.pool = self.pool or torch.cuda.graph_pool_handle()
                with captured(graph, self.pool):
                    value = self._work(inputs, batch_loss)
        finally:  # also after an error: what was begun aside is not to write into what is then restored
            torch.cuda.current_stream(device).wait_stream(aside)
        return _Recording(graph, inputs, value, self.forward)

    def _work(self, batch: Batch, batch_loss: BatchLoss) -> Tensor:
        self.optimizer.zero_grad()
        with self.fabric.autocast():
            value = batch_loss(self.forward, self.loss, batch, self.progress)
        value.backward()
        self.optimizer.step()
        return value.detach()


def _fault(forward: FusedForward, images: Tensor) -> str:
    """What is wrong with the kernels of a fused step on this machine, in a few words; nothing, if nothing is."""
    try:
        error = kernel_error(forward, images)
    except torch.OutOfMemoryError:
        return "there is too little memory to check it"
    except Exception as problem:  # no C compiler for Triton, another Triton, a GPU that it does not know
        *_, last = str(problem).split("\n")
        return f"{type(problem).__name__}: {last}"
    return "" if error < 0.01 else f"its kernels differ from torch's by {error:.2g}"


@functools.cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all: torch gives its 32 streams out again and again, also one that another training is using.

    What is recorded on it goes first; gradients of weights, which nothing waits for, are recorded on another.
    """
    return torch.cuda.Stream(device, priority=-2)


def _fastest_algorithms() -> "AbstractContextManager[None]":
    """Let cuDNN try its algorithms, in all threads; None leaves its other settings (TF32, say) as the user has them.

    Not while a graph is recorded: to try them, another thread would wait for the GPU, which breaks the recording.
    """
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(None, True, None, None, None, None)
    return flags


@contextmanager
def _compiling() -> Iterator[None]:
    """Let torch compile the step of many networks in one process; by default it gives up, silently, after eight.

    And let it compute gradients in the precision of what they are of: by default all of them are under autocast, also
    those of a classifier that is computed in float32.
    """
    import torch._dynamo
    import torch._functorch.config

    precision = torch._functorch.config.patch({"backward_pass_autocast": "off"})
    with torch._dynamo.config.patch(recompile_limit=256), precision:
        yield


class _Recording(NamedTuple):
    graph: Any
    inputs: Batch
    """What the graph reads; a batch is copied here before a replay."""
    loss: Tensor
    forward: Forward
    """Holds what the graph reads besides."""


class _State:
    """All that a step changes: weights, statistics, momentum; copied, to undo the steps that warm up a recording."""

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.network, self.optimizer = network, optimizer
        self.tensors = [tensor.detach().clone() for tensor in self._network_tensors()]
        self.momentum = {
            key: state["momentum_buffer"].clone()
            for key, state in optimizer.state.items()
            if state.get("momentum_buffer") is not None
        }

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, before in zip(self._network_tensors(), self.tensors, strict=True):
                tensor.copy_(before)
            for key, state in self.optimizer.state.items():
                if (momentum := state.get("momentum_buffer")) is not None:
                    momentum.copy_(self.momentum[key]) if key in self.momentum else momentum.zero_()

    def _network_tensors(self) -> list[Tensor]:
        return [*self.network.parameters(), *self.network.buffers()]


def _shape(batch: Batch) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in batch.tensors())


def _batch_loss(forward: Forward, loss: Loss, batch: Batch, progress: float | Tensor) -> Tensor:
    expert_logits = forward(batch.images)
    if batch.partner_targets is None or batch.weight is None:
        return loss(expert_logits, batch.targets, progress=progress)
    return blended_loss(loss, expert_logits, batch.targets, batch.partner_targets, batch.weight, progress=progress)
