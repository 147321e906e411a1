"""fit(): a network trained in place, in one process or several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lightning_fabric import Fabric
from torch import Tensor, nn

from balpoe.data.augment import Operation
from balpoe.data.datasets import Dataset
from balpoe.errors import UserError
from balpoe.interrupts import Interrupt
from balpoe.processes import launch, one_device
from balpoe.progress import TrainingProgress
from balpoe.schedules import Multistep, Schedule
from balpoe.side_by_side import Work, complete
from balpoe.trainer import History, Trainer, TrainingSettings, own_chance

__all__ = ["fit", "fit_by_step"]

PAPER_SCHEDULE = Multistep(warmup_epochs=5)


def fit(
    network: nn.Module,
    loss: Callable[..., Tensor],
    train: Dataset,
    *,
    epochs: int = 200,
    batch_size: int = 128,
    lr: float = 0.1,
    schedule: Schedule = PAPER_SCHEDULE,
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 5e-4,
    mixup_alpha: float = 0.4,
    cutmix_probability: float = 0.0,
    augmentation: Sequence[Operation] = (),
    seed: int = 0,
    run: str | Path | None = None,
    checkpoint_seconds: float = 5.0,
    device: str = "auto",
    devices: int = 1,
    precision: str = "auto",
    step: str = "auto",
    progress: bool = True,
) -> History:
    """Train a network in place and return one dictionary (epoch, lr, loss) per epoch.

    The defaults are the paper's for CIFAR. The same seed gives the same weights, bit for bit on a CPU
    with the same number of threads; with `run` an interrupted call continues where it stopped.

    Args:
        network: From normalised samples to expert logits (batch, experts, classes).
        loss: Such as `BalPoELoss`: called as loss(expert_logits, targets, progress=part_of_training_done).
        train: Raw samples with their preprocessing.
        epochs: Passes over the data.
        batch_size: Over all processes together.
        lr: Base learning rate; `schedule` maps (epoch, epochs) to a factor of it.
        schedule: See `balpoe.schedules`.
        momentum: Of SGD.
        nesterov: Nesterov's kind of momentum.
        weight_decay: On all parameters.
        mixup_alpha: 0 trains without mixup.
        cutmix_probability: The part of the batches that gets CutMix instead of mixup.
        augmentation: Operations of `balpoe.data.augment`, applied in order, anew in each epoch.
        seed: Of order, augmentation and mixing. (The network's first weights are the caller's.)
        run: A folder for checkpoint.pt, history.jsonl and timing.jsonl; None writes nothing.
        checkpoint_seconds: A checkpoint is due at the end of the first epoch after so many seconds.
        device: "auto", "cpu", "cuda" or "mps".
        devices: Processes; more than one start by themselves (guard your script with `__main__`).
        precision: "auto" is bfloat16 autocast on CUDA and float32 elsewhere; or a name of Lightning Fabric's.
        step: "eager", or recorded once as a CUDA graph and replayed, "captured", which "auto" is on one GPU; or
            "compiled", captured with fused kernels, which take a while to make.
        progress: Show a bar on a terminal, plain lines elsewhere.

    >>> import balpoe, torch
    >>> data = balpoe.Dataset(torch.randn(40, 8), torch.arange(40) % 2)
    >>> network = balpoe.expert_network("mlp", num_classes=2, num_experts=3, num_features=8)
    >>> history = fit(network, balpoe.BalPoELoss(data.class_counts), data, epochs=2, progress=False)
    >>> [entry["epoch"] for entry in history]
    [0, 1]
    """
    settings = TrainingSettings(
        epochs, batch_size, lr, schedule, momentum, nesterov, weight_decay, mixup_alpha, cutmix_probability,
        tuple(augmentation), seed,
    )  # fmt: skip
    if batch_size < devices:
        raise UserError(f"batch_size {batch_size} leaves nothing for some of {devices} processes; give them one each")
    job = _Job(loss, train, settings, Path(run) if run is not None else None, checkpoint_seconds, step, progress)
    return launch(job, network, device=device, devices=devices, precision=precision).finished()


def fit_by_step(
    network: nn.Module, loss: Callable[..., Tensor], train: Dataset, interrupt: Interrupt, **settings: Any
) -> "Work[History]":
    """Train like `fit`, on one device, as a generator that yields after each step: for `side_by_side`.

    Args:
        network: As for `fit`.
        loss: As for `fit`.
        train: As for `fit`.
        interrupt: Whose request ends the training, as a Ctrl-C ends `fit`.
        settings: Keyword arguments of `fit`.
    """
    given = {**(fit.__kwdefaults__ or {}), **settings, "augmentation": tuple(settings.get("augmentation", ()))}
    run, device, precision = (given.pop(name) for name in ("run", "device", "precision"))
    fields = {name: given[name] for name in TrainingSettings.__dataclass_fields__}
    job = _Job(
        loss, train, TrainingSettings(**fields), Path(run) if run is not None else None,
        *(given[name] for name in ("checkpoint_seconds", "step", "progress")),
    )  # fmt: skip
    outcome = yield from job.steps(one_device(device, precision), network, interrupt)
    return outcome.finished()


class _Outcome(NamedTuple):
    """Not an exception: several processes end their work together, interrupted or not."""

    history: History
    interrupted: str
    """Where an interrupted training stopped; empty when it is finished."""

    def finished(self) -> History:
        """Return the history, or raise the interrupt."""
        if self.interrupted:
            raise KeyboardInterrupt(self.interrupted)
        return self.history


@dataclass(frozen=True)
class _Job:
    """What each process does with its network."""

    loss: Callable[..., Tensor]
    train: Dataset
    settings: TrainingSettings
    folder: Path | None
    checkpoint_seconds: float
    step: str
    progress: bool

    def __call__(self, fabric: Fabric, network: nn.Module) -> _Outcome:
        with Interrupt() as interrupt:
            return complete(self.steps(fabric, network, interrupt))

    def steps(self, fabric: Fabric, network: nn.Module, interrupt: Interrupt) -> "Work[_Outcome]":
        """Train, with a pause after each step."""
        with own_chance(fabric.device):
            training = Trainer(fabric, network, self.loss, self.train, self.settings, self.folder, self.step)
            training.resume()
            epochs, show = self.settings.epochs, self.progress and fabric.is_global_zero
            label = f"{self.folder.parent.name}/{self.folder.name}" if self.folder else "training"
            with TrainingProgress(label, epochs, len(self.train), training.samples_done(), show) as display:
                yield from training.run(interrupt, display, self.checkpoint_seconds)
        return _Outcome(training.history, f"epoch {training.epoch + 1} of {epochs}" if training.epoch < epochs else "")
