"""A step that is captured as a CUDA graph and replayed: a thousand launches as one.

It is captured at the first batch of each shape. Rates and progress are numbers on the device, so that they can change
between replays. The steps that warm up a capture change weights, statistics and the optimiser's state, which are
therefore copied before and put back after. A capture that another thread broke is made once more, in other memory; what
cannot be captured (a network that reads from the device) runs eagerly, with a warning. Where kernels of our own
(`networks.fused`) differ from torch's on the first batch, or cannot be compiled, torch's are captured, with a warning.
"""

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from balpoe.data.loading.in_memory import Batch
from balpoe.networks.fused.forward import FusedForward
from balpoe.private_apis import compiling
from balpoe.training.cuda_graphs import captured, outside_no_capture
from balpoe.training.eager_step import EagerStep
from balpoe.training.engine import Engine
from balpoe.training.fused_loss import fused_batch_loss, has_kernels, kernel_fault
from balpoe.training.learner import BatchLoss, Forward, Learner, batch_loss, batch_parts, torch_errors_explained

__all__ = ["CapturedStep"]

PREPARING = threading.Lock()  # one thread at a time compiles and captures


class CapturedStep:
    """A CUDA graph per shape of batch, captured at the first batch of that shape.

    Rates and progress are numbers on the device, so that they can change between replays; `loss` gets `progress` as
    such a number. What cannot be captured (a network that reads from the device) runs eagerly, with a warning.
    """

    def __init__(
        self, engine: Engine, learner: Learner, forward: FusedForward | None = None, *, compiled: bool = False
    ) -> None:
        self.engine, self.learner = engine, learner
        self.forward: Forward = forward or learner.network
        learner.network.to(engine.device)
        self.progress = torch.zeros((), device=engine.device)
        self.rates = [torch.zeros((), device=engine.device) for _ in learner.optimizer.param_groups]
        self.pool: Any = None  # of the captures, which do not run at the same time
        self.captures: dict[Any, _Capture] = {}
        self.eager: EagerStep | None = None
        self.compiled = torch.compile(batch_loss, dynamic=False) if compiled else None

    def __call__(self, batch: Batch, lr: float, progress: float) -> Tensor:
        """Change the weights by one batch."""
        if (prepare := self.preparation(batch)) is not None:
            prepare()
        if self.eager is not None:
            return self.eager(batch, lr, progress)
        capture = self.captures[_shape(batch)]
        for rate, group in zip(self.rates, self.learner.optimizer.param_groups, strict=True):
            rate.fill_(lr * group["rate"])
        self.progress.fill_(progress)
        for place, tensor in zip(capture.inputs.tensors(), batch.tensors(), strict=True):
            place.copy_(tensor)
        capture.graph.replay()
        return capture.loss

    @property
    def kind(self) -> str:
        """What it turned out to be, after what could not be done here."""
        if self.eager is not None:
            return self.eager.kind
        return "fused" if isinstance(self.forward, FusedForward) else "compiled" if self.compiled else "captured"

    def preparation(self, batch: Batch) -> Callable[[], object] | None:
        """Return what compiles and captures for batches of this shape; None if that is done."""
        done = self.eager is not None or _shape(batch) in self.captures
        return None if done else functools.partial(self._prepare, batch)

    def outputs(self, images: Tensor) -> Tensor:
        """Return the network's expert logits, by torch's own kernels."""
        with self.engine.autocast():
            expert_logits: Tensor = self.learner.network(images)
        return expert_logits

    def _prepare(self, batch: Batch) -> None:
        with outside_no_capture(), PREPARING:
            before = _State(self.learner)
            try:
                _check_first_state(self.learner.optimizer)
                if isinstance(self.forward, FusedForward) and (
                    fault := kernel_fault(self.forward, self.learner.loss, batch)
                ):
                    warnings.warn(f"the fused step is replaced by the captured one: {fault}", stacklevel=2)
                    self.forward = self.learner.network
                    self.captures.clear()  # those of other shapes: all steps are to be of one kind
                with torch_errors_explained():
                    self.captures[_shape(batch)] = self._captured(batch, before)
            except torch.OutOfMemoryError as error:
                raise self.learner.too_large(batch, self.engine, error) from error
            except RuntimeError as error:
                reason = str(error).strip().partition("\n")[0]
                warnings.warn(f"the training step cannot be captured and runs eagerly: {reason}", stacklevel=2)
                self.eager = EagerStep(self.engine, self.learner)
            finally:
                before.restore()

    def _captured(self, batch: Batch, before: "_State") -> "_Capture":
        """Capture; if that fails, once more: another thread of the process can have broken it."""
        try:
            return self._capture(batch.clone())
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            before.restore()
            self.pool = None  # that of a capture that failed cannot be used again
            return self._capture(batch.clone())

    def _capture(self, inputs: Batch) -> "_Capture":
        optimizer = self.learner.optimizer
        for rate, group in zip(self.rates, optimizer.param_groups, strict=True):
            group["lr"] = rate
        device = self.engine.device
        aside, graph = _capture_stream(device), torch.cuda.CUDAGraph()
        aside.wait_stream(torch.cuda.current_stream(device))
        # The first shape is that of almost all batches; an epoch's last one is not worth the time to compile.
        value_of = batch_loss if self.compiled is None or self.captures else self.compiled
        if isinstance(self.forward, FusedForward) and has_kernels(self.learner.loss, self.forward, inputs):
            value_of = fused_batch_loss
        try:
            with torch.cuda.stream(aside), compiling() if self.compiled else nullcontext():
                with nullcontext() if isinstance(self.forward, FusedForward) else _fastest_algorithms():
                    for _ in range(3):  # choose algorithms, compile, allocate: none of this belongs into the graph
                        self._work(inputs, value_of)
                aside.synchronize()
                optimizer.zero_grad()  # gradients are to live in the graph's own memory
                self.pool = self.pool or torch.cuda.graph_pool_handle()
                with captured(graph, self.pool):
                    value = self._work(inputs, value_of)
        finally:  # also after an error: what was begun aside is not to write into what is then restored
            torch.cuda.current_stream(device).wait_stream(aside)
        return _Capture(graph, inputs, value, self.forward)

    def _work(self, batch: Batch, value_of: BatchLoss) -> Tensor:
        self.learner.optimizer.zero_grad()
        values = []
        for part in batch_parts(batch, self.learner.parts_of(len(batch.targets))):
            with self.engine.autocast():
                value = value_of(self.forward, self.learner.loss, part, self.progress)
            if self.learner.accumulate > 1:
                value = value * part.part
            value.backward()
            values.append(value.detach())
        if limit := self.learner.clip_gradients:
            nn.utils.clip_grad_norm_(self.learner.weights, limit)
        self.learner.optimizer.step()
        self.learner.move_mean()
        return sum(values[1:], values[0])


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all: torch gives its 32 streams out again and again, also one that another training is using.

    What is captured on it goes first; gradients of weights, which nothing waits for, are captured on another.
    """
    return torch.cuda.Stream(device, priority=-2)


def _fastest_algorithms() -> "AbstractContextManager[None]":
    """Let cuDNN try its algorithms, in all threads; None leaves its other settings (TF32, say) as the user has them.

    Not while a graph is captured: to try them, another thread would wait for the GPU, which breaks the capture.
    """
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(None, True, None, None, None, None)
    return flags


class _Capture(NamedTuple):
    graph: Any
    inputs: Batch
    """What the graph reads; a batch is copied here before a replay."""
    loss: Tensor
    forward: Forward
    """Holds what the graph reads besides."""


class _State:
    """All that a step changes: weights, statistics, means, the optimiser's state; copied, to undo warm-up steps."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.tensors = [tensor.detach().clone() for tensor in self._tensors()]
        self.optimizer = {(parameter, name): value.clone() for parameter, name, value in self._optimizer_tensors()}

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, before in zip(self._tensors(), self.tensors, strict=True):
                tensor.copy_(before)
            for parameter, name, value in self._optimizer_tensors():
                # What the optimiser had not made yet begins at zero: momentum, means, the number of steps.
                value.copy_(self.optimizer[parameter, name]) if (parameter, name) in self.optimizer else value.zero_()

    def _tensors(self) -> list[Tensor]:
        network = self.learner.network
        return [*network.parameters(), *network.buffers(), *self.learner.mean]

    def _optimizer_tensors(self) -> Iterator[tuple[Tensor, str, Tensor]]:
        for parameter, state in self.learner.optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    yield parameter, name, value


def _check_first_state(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimiser whose first state is not zero: what warm-up steps made could not be put back.

    A twin takes a step on a weight without a gradient, after which a state that began at zero is zero still.
    """
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    on_a_gpu = ("fused", "capturable")
    known = set(inspect.signature(type(optimizer)).parameters).difference(on_a_gpu)
    twin = type(optimizer)([weight], **{name: value for name, value in optimizer.defaults.items() if name in known})
    twin.step()
    for name, value in twin.state[weight].items():
        if name != "step" and isinstance(value, Tensor) and bool(value.any()):
            raise RuntimeError(f"the optimiser {type(optimizer).__name__} begins with a {name} that is not zero")


def _shape(batch: Batch) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in batch.tensors())
