"""One optimisation step: forward, loss, backward, update; eager, or captured once as a CUDA graph and replayed.

An eager step of a small network keeps a GPU waiting for Python: of a thousand kernels each is launched on its
own. A captured step is launched as one. Nothing but this file knows which of the two is at work.

A step is captured at the first batch of each shape. Rates and progress are numbers on the device, so that they can
change between replays. The steps that warm up a capture change weights, statistics and the optimiser's state, which
are therefore copied before and put back after. A capture that another thread broke is made once more, in other memory;
what cannot be captured (a network that reads from the device) runs eagerly, with a warning. For `resnet32` in bfloat16
the kernels are our own (`networks.fused`), compared with torch's on the first batch; where they differ or cannot be
compiled, torch's are captured, with a warning. timing.jsonl says which step was taken.
"""

import functools
import inspect
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from balpoe.data.loading.in_memory import Batch
from balpoe.errors import UserError, unknown_name
from balpoe.method.losses import BalPoELoss
from balpoe.method.mixing import blended_loss
from balpoe.networks.fused.forward import FusedForward, can_be_fused
from balpoe.networks.fused.head import blended_cross_entropy
from balpoe.networks.fused.launch import FASTEST_WIDTHS, WIDTHS
from balpoe.networks.fused.self_check import kernel_error, loss_error
from balpoe.networks.memory import fitting_parts
from balpoe.private_apis import compiling, has_hooks
from balpoe.training.cuda_graphs import captured, outside_no_capture
from balpoe.training.engine import Engine
from balpoe.training.settings import STEPS
from balpoe.training.weight_averaging import move_mean, norms_in_training

__all__ = ["CapturedStep", "EagerStep", "Learner", "Step", "training_step"]

Loss = Callable[..., Tensor]
Forward = Callable[[Tensor], Tensor]
BatchLoss = Callable[[Forward, Loss, Batch, float | Tensor], Tensor]
PREPARING = threading.Lock()  # one thread at a time compiles and captures
CHECKED: set[Any] = set()  # kernels of our own that were found to be right in this process, by what is launched


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


class Learner(NamedTuple):
    """What a step changes, and how."""

    network: nn.Module
    loss: Loss
    """From expert logits and targets to a number; also given `progress`."""
    optimizer: torch.optim.Optimizer
    clip_gradients: float = 0.0
    """Largest norm of all gradients together; 0 for any."""
    mean: list[Tensor] = []  # noqa: RUF012 (a NamedTuple's default)
    """Exponential mean of the weights that training changes; empty where there is none."""
    mean_decay: float = 0.0
    accumulate: int = 1
    """Number of parts of a batch that go through the network one after the other."""

    def parts_of(self, rows: int) -> int:
        """Return in how many parts so many rows go through the network, none of them too small for it."""
        return 1 if self.accumulate == 1 else min(self.accumulate, max(1, rows // self.smallest_part))

    @property
    def smallest_part(self) -> int:
        """Least number of rows of a part: of one alone, batch normalisation would have no deviation."""
        return 2 if norms_in_training(self.network) else 1

    @property
    def weights(self) -> list[nn.Parameter]:
        """The weights that training changes."""
        return [parameter for parameter in self.network.parameters() if parameter.requires_grad]

    def too_large(self, batch: Batch, engine: Engine, error: torch.OutOfMemoryError) -> UserError:
        """Return what to say of a batch for which there is too little memory: in how many parts it fits, alone tried.

        Several processes would have to try together, and one of them may be the only one that fails.
        """
        rows, least = len(batch.targets), self.smallest_part
        parts, most = self.parts_of(rows), max(1, rows // least)
        what = f"a step of {rows} samples in {parts} part{'s' * (parts > 1)} does not fit into the memory of the GPU"
        if len(batch.images) > rows:  # two views of each, which cannot be parted
            return UserError(f"{what}; take a smaller --batch-size, such as {max(1, rows // 2)}")
        if engine.world_size == 1:
            found = fitting_parts(most, parts, functools.partial(self._try_part, batch, engine), error)
            fit = ", which fit"
        else:
            found, fit = (2 * parts if 2 * parts <= most else None), ""
        if found is None:
            return UserError(
                f"{what}, nor does one of {'a single sample' if least == 1 else 'two samples'}; take smaller images "
                "(--image-size), a smaller --network, --gradient-checkpointing, or --tune head"
            )
        smaller = f"add --accumulate {found} for the same training in parts of {-(-rows // found)}{fit}"
        return UserError(f"{what}; {smaller}, or take a smaller --batch-size")

    def _try_part(self, batch: Batch, engine: Engine, parts: int) -> None:
        """Compute the gradients of one of so many parts of a batch, beside all that a step keeps in memory."""
        self.optimizer.zero_grad()
        room = [torch.empty_like(weight) for weight in self.weights * 2 if not self.optimizer.state]  # for AdamW's
        with engine.autocast():
            _batch_loss(self.network, self.loss, _parts(batch, parts)[0], 0.0).backward()
        self.optimizer.zero_grad()
        del room

    def move_mean(self) -> None:
        """Take the weights after a step into their mean."""
        if self.mean:
            move_mean(self.mean, self.weights, self.mean_decay)


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
            with _torch_errors_explained():
                return self._changed(batch, lr, progress)
        except torch.OutOfMemoryError as error:
            raise self.learner.too_large(batch, self.engine, error) from error

    def _changed(self, batch: Batch, lr: float, progress: float) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["rate"]
        self.optimizer.zero_grad()
        # As many in all processes, which pass through a network in parts together; rows differ by one between them.
        fewest_rows = round(len(batch.targets) / batch.part) // self.engine.world_size
        values, parts = [], _parts(batch, self.learner.parts_of(fewest_rows))
        for number, part in enumerate(parts, start=1):
            with self.engine.no_backward_sync(self.network, enabled=number < len(parts)):
                value = _batch_loss(self.network, self.learner.loss, part, progress) * part.part
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
        self.compiled = torch.compile(_batch_loss, dynamic=False) if compiled else None

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
                if isinstance(self.forward, FusedForward) and (fault := _fault(self.forward, self.learner.loss, batch)):
                    warnings.warn(f"the fused step is replaced by the captured one: {fault}", stacklevel=2)
                    self.forward = self.learner.network
                    self.captures.clear()  # those of other shapes: all steps are to be of one kind
                with _torch_errors_explained():
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
        batch_loss = _batch_loss if self.compiled is None or self.captures else self.compiled
        if isinstance(self.forward, FusedForward) and _has_kernels(self.learner.loss, self.forward, inputs):
            batch_loss = _fused_batch_loss
        try:
            with torch.cuda.stream(aside), compiling() if self.compiled else nullcontext():
                with nullcontext() if isinstance(self.forward, FusedForward) else _fastest_algorithms():
                    for _ in range(3):  # choose algorithms, compile, allocate: none of this belongs into the graph
                        self._work(inputs, batch_loss)
                aside.synchronize()
                optimizer.zero_grad()  # gradients are to live in the graph's own memory
                self.pool = self.pool or torch.cuda.graph_pool_handle()
                with captured(graph, self.pool):
                    value = self._work(inputs, batch_loss)
        finally:  # also after an error: what was begun aside is not to write into what is then restored
            torch.cuda.current_stream(device).wait_stream(aside)
        return _Capture(graph, inputs, value, self.forward)

    def _work(self, batch: Batch, batch_loss: BatchLoss) -> Tensor:
        self.learner.optimizer.zero_grad()
        values = []
        for part in _parts(batch, self.learner.parts_of(len(batch.targets))):
            with self.engine.autocast():
                value = batch_loss(self.forward, self.learner.loss, part, self.progress)
            if self.learner.accumulate > 1:
                value = value * part.part
            value.backward()
            values.append(value.detach())
        if limit := self.learner.clip_gradients:
            nn.utils.clip_grad_norm_(self.learner.weights, limit)
        self.learner.optimizer.step()
        self.learner.move_mean()
        return sum(values[1:], values[0])


def _fault(forward: FusedForward, loss: Loss, batch: Batch) -> str:
    """What is wrong with the kernels of a fused step on this machine, in a few words; nothing, if nothing is.

    Checked once in a process: five seeds that are trained side by side launch the same kernels.
    """
    checks = {forward.launched(batch.images): functools.partial(kernel_error, forward, batch.images)}
    if _has_kernels(loss, forward, batch):
        blend = _blend(batch.clone())  # lies in memory as a captured batch does
        checks[_launched(loss.offsets, *blend)] = functools.partial(loss_error, loss.offsets, *blend)
    try:
        errors = {launched: check() for launched, check in checks.items() if launched not in CHECKED}
    except torch.OutOfMemoryError:
        return "there is too little memory to check it"
    except Exception as problem:  # no C compiler for Triton, another Triton, a GPU that it does not know
        *_, last = str(problem).split("\n")
        return f"{type(problem).__name__}: {last}"
    for error in errors.values():
        if not error < 0.01:
            return f"its kernels differ from torch's by {error:.2g}"
    CHECKED.update(errors)
    return ""


def _launched(offsets: Tensor, *blend: Tensor) -> tuple[Any, ...]:
    """What decides which kernel computes the loss, and how; its numbers have no part in it."""
    return str(offsets.device), *((tensor.dtype, tuple(tensor.shape)) for tensor in (offsets, *blend))


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


def _parts(batch: Batch, number: int) -> list[Batch]:
    """A batch in so many parts, or one for each row, each with its share of the batch; itself, if it is one."""
    rows, parts = len(batch.targets), list[Batch]()
    if min(number, rows) <= 1:
        return [batch]
    for images in batch.images.tensor_split(min(number, rows)):
        start = sum(len(part.targets) for part in parts)
        chosen = slice(start, start + len(images))
        partner = None if batch.partner_targets is None else batch.partner_targets[chosen]
        weight = batch.weight if batch.weight is None or not batch.weight.ndim else batch.weight[chosen]
        parts.append(Batch(images, batch.targets[chosen], partner, weight, batch.part * len(images) / rows))
    return parts


@contextmanager
def _torch_errors_explained() -> Iterator[None]:
    """Say in a sentence what torch refuses, where it can be known only from what a network does with its input."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            "batch normalisation gets one value of each channel, which has no deviation; leave each process at least "
            "two samples in every step and part (batch_size, accumulate)"
        ) from error
    except IndexError as error:
        if not (found := re.fullmatch(r"Target (\d+) is out of bounds\.", str(error))):
            raise
        raise UserError(
            f"the training samples have a label {found[1]}, but the network has fewer classes; make loss and network "
            "for all classes, as by class_counts and class_names of the data"
        ) from error


def _shape(batch: Batch) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in batch.tensors())


def _has_kernels(loss: Loss, forward: FusedForward, batch: Batch) -> TypeGuard[BalPoELoss]:
    """Whether `_fused_batch_loss` is the loss of a batch: BalPoE's own, of labels, behind a classifier with kernels."""
    if type(loss) is not BalPoELoss or has_hooks(loss) or forward.cosine is None or batch.targets.ndim != 1:
        return False
    return bool(loss.offsets.shape == forward.cosine.weight.shape[:2])


def _fused_batch_loss(forward: Forward, loss: Loss, batch: Batch, progress: float | Tensor) -> Tensor:
    assert isinstance(loss, BalPoELoss)
    return blended_cross_entropy(forward(batch.images), loss.offsets, *_blend(batch))


def _blend(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, those of what was mixed in, and the share of the first; of a batch that is not mixed, all."""
    if batch.partner_targets is None or batch.weight is None:
        return batch.targets, batch.targets, torch.ones((), device=batch.targets.device)
    return batch.targets, batch.partner_targets, batch.weight


def _batch_loss(forward: Forward, loss: Loss, batch: Batch, progress: float | Tensor) -> Tensor:
    expert_logits = forward(batch.images)
    if batch.partner_targets is None or batch.weight is None:
        return loss(expert_logits, batch.targets, progress=progress)
    parts = batch.targets, batch.partner_targets, batch.weight
    if batch.weight.ndim:  # one for each sample
        return blended_loss(loss, expert_logits, *parts, progress=progress, reduction="none").mean()
    return blended_loss(loss, expert_logits, *parts, progress=progress)
