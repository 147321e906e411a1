"""A training under way: the one loop, what a checkpoint holds of it, and how it goes on."""

import functools
import json
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from balpoe.data.loading.epoch_plan import EpochPlan, plan_epoch, samples_seen
from balpoe.data.loading.image_files import Samples
from balpoe.data.loading.in_memory import Batch
from balpoe.data.loading.streaming import batch_source
from balpoe.errors import UserError
from balpoe.files import write_text
from balpoe.method.losses import BalPoELoss, LogitAdjustedLoss
from balpoe.networks.frozen_weights import check_frozen, frozen_digest, load_trained, tensor_bytes, trained_state
from balpoe.networks.synchronised import synchronised
from balpoe.progress import TrainingProgress
from balpoe.training.checkpoints import load_checkpoint, save_checkpoint
from balpoe.training.concurrent import Work
from balpoe.training.engine import Engine
from balpoe.training.interrupts import Interrupt
from balpoe.training.learner import Learner
from balpoe.training.loggers import Tracking
from balpoe.training.optimizers import make_optimizer
from balpoe.training.random_state import seed_layers
from balpoe.training.settings import FitSettings, changed_identity
from balpoe.training.sharding import own_part, parts_like, shard_network, whole
from balpoe.training.step import training_step
from balpoe.training.weight_averaging import averaged, first_mean, fresh_statistics, norms_in_training

__all__ = ["History", "Trainer"]

History = list[dict[str, float]]


class Trainer:
    """The state of a training: what a checkpoint holds, and how it goes on."""

    def __init__(
        self, engine: Engine, network: nn.Module, loss: Callable[..., Tensor], train: Samples, settings: FitSettings
    ) -> None:
        _check_labels(loss, train.targets)
        if settings.sync_batchnorm and engine.world_size > 1:  # of several processes each has a copy of the network
            synchronised(network)
        self.frozen = frozen_digest(network) if settings.run else ""
        if settings.shard:
            shard_network(engine, network)
        network.train()  # one that was loaded is ready for evaluation
        self.engine, self.network, self.settings, self.folder = engine, network, settings, settings.run
        self.data = batch_source(
            train, engine.device, settings.augmentation, settings.seed, settings.workers, settings.second_view
        )
        self.num_samples, self.targets = len(train), train.targets
        self.samples_an_epoch = samples_seen(len(train), settings.batch_size, settings.drop_last)
        self.optimizer = make_optimizer(network, settings, engine.device)
        self.mean: list[Tensor] = []  # of the weights, until the network has it
        if settings.weight_average_decay:
            self.mean = [each.to(engine.device) for each in first_mean(self._trained())]
        if engine.device.type == "cuda" and len(train.preprocessing.size) == 3 and not settings.shard:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if isinstance(loss, nn.Module):
            loss.to(engine.device)
        decay = settings.weight_average_decay
        mean = self.mean if decay else []
        learner = Learner(network, loss, self.optimizer, settings.clip_gradients, mean, decay, settings.accumulate)
        self.step = training_step(engine, learner, settings.step, settings.precision)
        self.identity = {
            **settings.identity(),
            "loss": _fingerprint(loss),
            "data": f"{type(train).__name__}-{train.checksum():08x}",
            "interpolation": train.preprocessing.interpolation,
        }
        self.epoch, self.losses, self.seconds = 0, torch.zeros(0), 0.0
        self.begun: _Epoch | None = None
        averaging = settings.averaged_epochs or settings.weight_average_decay
        self.norms = norms_in_training(network) if averaging else []
        self.history: History = []
        self.timing: list[dict[str, Any]] = []

    def run(self, interrupt: Interrupt, display: TrainingProgress, tracking: Tracking) -> "Work[None]":
        """Go on to the last epoch, or until an interrupt comes; save."""
        saved = time.monotonic()
        while self.epoch < self.settings.epochs and not self._agreed(interrupt):
            yield from self._run_epoch(interrupt, display, tracking)
            due = self._any(time.monotonic() - saved >= self.settings.checkpoint_seconds)
            if due and self.epoch < self.settings.epochs:
                yield self.save
                saved = time.monotonic()
        yield self.save
        if self.mean and self.epoch == self.settings.epochs and not self._agreed(interrupt):
            yield from self._take_mean(interrupt, display)
            if self.finished:
                yield self.save

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.epoch == self.settings.epochs and not self.mean

    def _begin(self, epoch: int, first: int = 0, mixed: bool = True) -> "_Epoch":
        """Plan an epoch and make its batches from number `first` on, the first of them at once."""
        rank, world, settings = self.engine.global_rank, self.engine.world_size, self.settings
        if not mixed:
            settings = replace(settings, mixup_alpha=0.0, cutmix_probability=0.0, mixing=None)
        plan = plan_epoch(
            settings.seed, epoch, self.num_samples, settings.batch_size,
            mixup_alpha=settings.mixup_alpha, cutmix_probability=settings.cutmix_probability, smallest_batch=2 * world,
            mixing=settings.mixing, class_balanced=settings.class_balanced, targets=self.targets,
            epochs=settings.epochs, drop_last=settings.drop_last,
        )  # fmt: skip
        batches = iter(self.data.batches(plan, epoch, first=first, rank=rank, world=world))
        return _Epoch(plan, next(batches, None), batches)

    def _run_epoch(self, interrupt: Interrupt, display: TrainingProgress, tracking: Tracking) -> "Work[None]":
        """Train an epoch, or what an interrupted one has left; alone, an interrupt ends it after any step."""
        rank, world, settings = self.engine.global_rank, self.engine.world_size, self.settings
        started, first = time.monotonic(), len(self.losses)
        (plan, batch, batches), self.begun = self.begun or self._begin(self.epoch, first), None
        lr = settings.lr * settings.schedule(self.epoch, settings.epochs)
        done, steps = first, len(plan.batches)
        losses = torch.zeros(steps, device=self.engine.device)
        while batch is not None:
            yield self.step.preparation(batch)
            seed_layers(self.engine.device, settings.seed, self.epoch, done, rank)
            losses[done] = self.step(batch, lr, (self.epoch + done / steps) / settings.epochs)
            display.advance(plan.batches[done].stop - plan.batches[done].start, lr)
            done += 1
            if interrupt.requested and world == 1:
                break
            batch = next(batches, None)
        else:
            if self.epoch + 1 < settings.epochs:  # now, while the GPU is busy with these steps: later it would wait
                self.begun = self._begin(self.epoch + 1)
        # The only moment at which anything is read from the device.
        yield functools.partial(self._read, losses[first:done], first, steps)
        self.seconds += time.monotonic() - started
        if done == steps:
            sizes = torch.tensor([batch.stop - batch.start for batch in plan.batches], dtype=torch.float64)
            self._end_epoch(lr, float(self.losses.double() @ sizes / sizes.sum()))
            self._average()
            display.end_epoch(self.history[-1]["loss"])
            tracking.log(self._rows())

    def _end_epoch(self, lr: float, loss: float) -> None:
        self.history.append({"epoch": self.epoch, "lr": lr, "loss": loss})
        rate = self.samples_an_epoch / max(self.seconds, 1e-9)
        took = {"epoch": self.epoch, "seconds": self.seconds, "images_per_second": rate, "step": self.step.kind}
        self.timing.append(took)
        self.epoch, self.losses, self.seconds = self.epoch + 1, torch.zeros(0), 0.0

    def _average(self) -> None:
        """Take the weights after an epoch into their mean, if it is one of the last."""
        number = self.epoch - (self.settings.epochs - self.settings.averaged_epochs)
        if number > 0:
            self.mean = averaged(self.mean, self._trained(), number)

    def _trained(self) -> list[nn.Parameter]:
        """The weights that training changes."""
        return [parameter for parameter in self.network.parameters() if parameter.requires_grad]

    def _take_mean(self, interrupt: Interrupt, display: TrainingProgress) -> "Work[None]":
        """Give the network the mean of its weights, and statistics of batch normalisation of one more pass.

        An interrupt ends it in between; what was saved before it does it again.
        """
        with torch.no_grad():
            for weight, mean in zip(self._trained(), self.mean, strict=True):
                weight.copy_(mean)
        with fresh_statistics(self.norms):
            if self.norms and not (yield from self._pass(interrupt, display)):
                return
        self.mean = []

    def _pass(self, interrupt: Interrupt, display: TrainingProgress) -> "Work[bool]":
        """Let the batches of an epoch more go through the network; return whether all did.

        They are as those that are trained on, or not mixed, as test images are not.
        """
        rank, world, epoch = self.engine.global_rank, self.engine.world_size, self.settings.epochs
        (plan, batch, batches), done = self._begin(epoch, mixed=not self.settings.unmixed_statistics), 0
        while batch is not None and not (interrupt.requested and world == 1):
            seed_layers(self.engine.device, self.settings.seed, epoch, done, rank)
            with torch.no_grad():
                self.step.outputs(batch.images)
            display.advance(plan.batches[done].stop - plan.batches[done].start, 0.0)
            done += 1
            yield None
            batch = next(batches, None)
        display.end_epoch(self.history[-1]["loss"])
        return batch is None

    def _rows(self) -> History:
        """What a log shows of each epoch."""
        pairs = zip(self.history, self.timing, strict=True)
        return [{**entry, "images_per_second": timing["images_per_second"]} for entry, timing in pairs]

    def _read(self, losses: Tensor, first: int, steps: int) -> None:
        """Keep the losses of all processes together, from step `first` on, unless one is not finite."""
        summed: Any = self.engine.all_reduce(losses, reduce_op="sum")
        losses = summed.cpu()
        wrong = (~torch.isfinite(losses)).nonzero()
        if len(wrong):
            raise self._diverged(
                f"the loss became {float(losses[wrong[0]])} in epoch {self.epoch + 1} of {self.settings.epochs}, "
                f"step {first + int(wrong[0]) + 1} of {steps}"
            )
        self.losses = torch.cat([self.losses, losses])

    def _diverged(self, what: str) -> UserError:
        checkpoint = self.folder / "checkpoint.pt" if self.folder else None
        kept = f"; {checkpoint} of an earlier epoch is kept" if checkpoint and checkpoint.exists() else ""
        return UserError(f"{what}: lower the learning rate (now {self.settings.lr:g}) or check the data{kept}")

    def _agreed(self, interrupt: Interrupt) -> bool:
        """Whether to stop: any process's interrupt stops all of them, at the end of an epoch."""
        return self._any(interrupt.requested)

    def _any(self, here: bool) -> bool:
        """Whether something is so in any process; all of them ask at the same time."""
        if self.engine.world_size == 1:
            return here
        return bool(self.engine.all_reduce(torch.tensor(float(here), device=self.engine.device), reduce_op="sum"))

    def samples_done(self) -> int:
        """Samples that earlier calls have already trained on."""
        return self.epoch * self.samples_an_epoch + len(self.losses) * self.settings.batch_size

    def save(self) -> None:
        """Write checkpoint, history and timing, of weights that are finite: the losses do not see the last update."""
        finite = [torch.isfinite(own_part(parameter)).all() for parameter in self.network.parameters()]
        if finite and self._any(not bool(torch.stack(finite).all())):  # one read from the device
            raise self._diverged(f"the weights stopped being finite by epoch {self.epoch} of {self.settings.epochs}")
        if self.folder is None:
            return
        learned = {
            "network": trained_state(self.network),
            "optimizer": self.optimizer.state_dict()["state"],
            "mean": self.mean,
        }
        learned = whole(learned, keep=self.engine.is_global_zero)
        if not self.engine.is_global_zero:
            return
        state = {
            **learned,
            "identity": self.identity,
            "processes": self.engine.world_size,
            "frozen": self.frozen,
            "epoch": self.epoch,
            "losses": self.losses,
            "seconds": self.seconds,
            "history": self.history,
            "timing": self.timing,
        }
        save_checkpoint(self.folder / "checkpoint.pt", state)
        self._write_lines()

    def resume(self) -> None:
        """Take up the state of the run's checkpoint, if there is one: the first process reads it, for all."""
        if self.folder is None:
            return
        path = self.folder / "checkpoint.pt"
        state = load_checkpoint(path) if self.engine.is_global_zero and path.exists() else None
        if (state := self.engine.broadcast(state)) is None:
            return
        if changed := changed_identity(state.get("identity"), self.identity):
            raise UserError(f"{path} belongs to a training with {', '.join(changed)}; choose another folder")
        if "frozen" in state:  # earlier versions saved all weights
            check_frozen(self.frozen, str(state["frozen"]), str(path))
        try:
            ours = self.network.state_dict()
            found = {name: parts_like(each, ours.get(name)) for name, each in state["network"].items()}
            load_trained(self.network, found)
            groups = self.optimizer.state_dict()["param_groups"]  # ours: a CPU's may differ from a GPU's
            self.optimizer.load_state_dict({"state": self._own_parts(state["optimizer"]), "param_groups": groups})
            self.epoch, self.losses, self.seconds = state["epoch"], state["losses"].cpu(), state["seconds"]
            self.history, self.timing = list(state["history"]), list(state["timing"])
            if not len(self.history) == len(self.timing) == self.epoch <= self.settings.epochs or self.losses.ndim != 1:
                raise ValueError("its parts contradict each other")
            float(self.seconds)
            self._take_up_mean(state["mean"])
        except (LookupError, RuntimeError, ValueError, AttributeError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path} does not fit this network: {reason}; choose another folder") from error
        if self.engine.is_global_zero:
            self._write_lines()  # a crash may have come between the checkpoint and these
            self._say_processes(state.get("processes", 1))

    def _own_parts(self, optimizer: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """The optimiser's state of a checkpoint, as this process has it."""
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        return {
            number: {name: parts_like(value, weights[number]) for name, value in state.items()}
            for number, state in optimizer.items()
        }

    def _take_up_mean(self, found: list[Tensor]) -> None:
        """Go on with a checkpoint's mean of the weights, in place: a captured step writes into an exponential one."""
        settings, weights = self.settings, self._trained()
        if found == [] and self.epoch == settings.epochs:  # the network has it
            self.mean = []
            return
        begun = self.epoch > settings.epochs - settings.averaged_epochs or settings.weight_average_decay
        if [each.shape for each in found] != [each.shape for each in weights if begun]:
            raise ValueError("its mean of the weights is not of these")
        found = [parts_like(each, weight) for each, weight in zip(found, weights, strict=False)]  # of none, none
        if self.mean:
            for place, each in zip(self.mean, found, strict=True):
                place.copy_(each)
        else:
            self.mean = [each.to(self.engine.device) for each in found]

    def _say_processes(self, before: int) -> None:
        now = self.engine.world_size
        if now != before and self.epoch < self.settings.epochs:
            warnings.warn(
                f"{self.folder} continues with {now} process{'es' * (now > 1)} where {before} began: "
                f"not bit for bit what {before} would have given",
                stacklevel=2,
            )

    def _write_lines(self) -> None:
        assert self.folder is not None
        for name, entries in (("history.jsonl", self.history), ("timing.jsonl", self.timing)):
            write_text(self.folder / name, "".join(json.dumps(entry) + "\n" for entry in entries))


class _Epoch(NamedTuple):
    """An epoch that is planned, its first batch made."""

    plan: EpochPlan
    batch: Batch | None
    batches: Iterator[Batch]
    """Those after it."""


def _check_labels(loss: Any, targets: Tensor) -> None:
    """Refuse labels that a loss of this package has no class for: on a GPU they would end the whole process."""
    if not isinstance(loss, BalPoELoss | LogitAdjustedLoss):
        return
    largest, classes = int(targets.max()), loss.offsets.shape[-1]
    if largest >= classes:
        raise UserError(
            f"the training samples have a label {largest}, but the loss is made for {classes} classes, 0 to "
            f"{classes - 1}; make loss and network for all classes, as by class_counts and class_names of the data"
        )


def _fingerprint(thing: Any) -> str:
    """Tell one loss from another: a name and a checksum of its tensors."""
    tensors = list(thing.state_dict().values()) if isinstance(thing, nn.Module) else []
    checksum = 0
    for tensor in tensors:
        checksum = zlib.crc32(tensor_bytes(tensor), checksum)
    return f"{getattr(thing, '__name__', type(thing).__name__)}-{checksum:08x}"
