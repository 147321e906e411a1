"""fit(): a network trained in place, in one process or several; and what it then says about a test set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from balpoe.data.augment.operations import Operation
from balpoe.data.loading.decode import ResizedCrop
from balpoe.data.loading.image_files import Samples, default_workers
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.predictions import logits_of
from balpoe.progress import TrainingProgress
from balpoe.training.concurrent import Work, complete
from balpoe.training.cuda_graphs import loading
from balpoe.training.distributed import check_devices, gathered_rows, launch, one_device, share_weights
from balpoe.training.interrupts import Interrupt
from balpoe.training.launchers import launcher, processes_and_machines
from balpoe.training.loggers import Tracking, check_tracking
from balpoe.training.loop import History, Trainer, TrainingSettings, own_chance
from balpoe.training.schedules import Multistep, Schedule

__all__ = ["fit", "fit_and_predict", "fit_and_predict_by_step"]

PAPER_SCHEDULE = Multistep(warmup_epochs=5)


def fit(
    network: nn.Module,
    loss: Callable[..., Tensor],
    train: Samples,
    *,
    epochs: int = 200,
    batch_size: int = 128,
    lr: float = 0.1,
    schedule: Schedule = PAPER_SCHEDULE,
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 5e-4,
    averaged_end: float = 0.0,
    mixup_alpha: float = 0.4,
    cutmix_probability: float = 0.0,
    augmentation: Sequence[Operation | ResizedCrop] = (),
    sync_batchnorm: bool = False,
    seed: int = 0,
    run: str | Path | None = None,
    checkpoint_seconds: float = 5.0,
    device: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    workers: int = -1,
    precision: str = "auto",
    step: str = "auto",
    track: Sequence[str] = (),
    progress: bool = True,
) -> History:
    """Train a network in place and return one dictionary (epoch, lr, loss) per epoch.

    The defaults are the paper's for CIFAR. The same seed gives the same weights, bit for bit on a CPU
    with the same number of threads; with `run` an interrupted call continues where it stopped.

    Args:
        network: From normalised samples to expert logits (batch, experts, classes).
        loss: Such as `BalPoELoss`: called as loss(expert_logits, targets, progress=part_of_training_done).
        train: Raw samples with their preprocessing, in memory (`Dataset`) or in files (`PictureFiles`).
        epochs: Passes over the data.
        batch_size: Over all processes together.
        lr: Base learning rate; `schedule` maps (epoch, epochs) to a factor of it.
        schedule: See `balpoe.training.schedules`.
        momentum: Of SGD.
        nesterov: Nesterov's kind of momentum.
        weight_decay: On all parameters.
        averaged_end: The part of the epochs, at the end, over which weights are averaged: the network gets the mean of
            those after each epoch, and statistics of batch normalisation of one more pass over the data, augmented and
            mixed like the others (of several processes, the first one's).
        mixup_alpha: 0 trains without mixup.
        cutmix_probability: The part of the batches that gets CutMix instead of mixup.
        augmentation: Operations of `balpoe.data.augment.operations`, applied in order, anew in each epoch.
        sync_batchnorm: Statistics of batch normalisation over all GPUs together, instead of each one's own.
        seed: Of order, augmentation and mixing. (The network's first weights are the caller's.)
        run: A folder for checkpoint.pt, history.jsonl and timing.jsonl; None writes nothing.
        checkpoint_seconds: A checkpoint is due at the end of the first epoch after so many seconds.
        device: "auto", "cpu", "cuda" or "mps".
        devices: Processes on each machine; more than one start by themselves (guard your script with `__main__`).
            Under torchrun or SLURM, 1 is as many as were started.
        num_nodes: Machines; more than one take torchrun or SLURM, under which 1 is as many as there are.
        workers: Processes of each process that decode picture files; 0: none; -1: as the machine allows.
        precision: "auto" is bfloat16 autocast on CUDA and float32 elsewhere; or a name of Lightning Fabric's.
        step: "eager", or recorded once as a CUDA graph and replayed, "captured", which "auto" is on one GPU; or
            in other kernels: those of torch's compiler, "compiled", or our own for resnet32, "fused", its "auto".
        track: Where losses are logged as well: "csv", "tensorboard", "wandb"; all of them want a `run`.
        progress: Show a bar on a terminal, plain lines elsewhere.

    >>> import balpoe, torch
    >>> data = balpoe.Dataset(torch.randn(40, 8), torch.arange(40) % 2)
    >>> network = balpoe.expert_network("mlp", num_classes=2, num_experts=3, num_features=8)
    >>> history = fit(network, balpoe.BalPoELoss(data.class_counts), data, epochs=2, progress=False)
    >>> [entry["epoch"] for entry in history]
    [0, 1]
    """
    settings = {name: value for name, value in locals().items() if name in (fit.__kwdefaults__ or {})}
    return _launched(network, loss, train, None, settings)[0]


def fit_and_predict(
    network: nn.Module, loss: Callable[..., Tensor], train: Samples, test: Samples, **settings: Any
) -> tuple[History, Tensor | None]:
    """Train like `fit`; return its history and the trained network's expert logits of a test set.

    Several processes also share the prediction: each takes its part of the rows, and the first one has them in order.
    In the others that a launcher started they are None.

    Args:
        network: As for `fit`.
        loss: As for `fit`.
        train: As for `fit`.
        test: Raw samples with their preprocessing.
        settings: Keyword arguments of `fit`.

    >>> import balpoe, torch
    >>> data = balpoe.Dataset(torch.randn(40, 8), torch.arange(40) % 2)
    >>> network = balpoe.expert_network("mlp", num_classes=2, num_experts=3, num_features=8)
    >>> loss = balpoe.BalPoELoss(data.class_counts)
    >>> fit_and_predict(network, loss, data, data, epochs=1, progress=False)[1].shape
    torch.Size([40, 3, 2])
    """
    return _launched(network, loss, train, test, _completed(settings))


def fit_and_predict_by_step(
    network: nn.Module,
    loss: Callable[..., Tensor],
    train: Samples,
    test: Samples,
    interrupt: Interrupt,
    **settings: Any,
) -> "Work[tuple[History, Tensor | None]]":
    """Do what `fit_and_predict` does, on one device, as a generator that yields after each step: for `side_by_side`.

    Args:
        network: As for `fit`.
        loss: As for `fit`.
        train: As for `fit`.
        test: Raw samples with their preprocessing.
        interrupt: Whose request ends the training, as a Ctrl-C ends `fit`.
        settings: Keyword arguments of `fit`.
    """
    settings = _completed(settings)
    job = _job(loss, train, test, settings)
    outcome = yield from job.steps(one_device(settings["device"], settings["precision"]), network, interrupt)
    return _finished(outcome)


Outcome = tuple[History, str, Tensor | None]
"""History, where an interrupted training stopped (empty when it is finished), and expert logits. Plain data, and not an
exception: several processes end their work together, interrupted or not."""


def _launched(
    network: nn.Module, loss: Callable[..., Tensor], train: Samples, test: Samples | None, settings: dict[str, Any]
) -> tuple[History, Tensor | None]:
    engine = {name: settings[name] for name in ("device", "devices", "num_nodes", "precision")}
    job = _job(loss, train, test, settings)
    return _finished(launch(job, network, **engine))


def _completed(settings: dict[str, Any]) -> dict[str, Any]:
    """All keyword arguments of `fit`, some of them given."""
    defaults = fit.__kwdefaults__ or {}
    for name in settings:
        if name not in defaults:
            raise unknown_name("setting", name, defaults)
    return {**defaults, **settings}


def _finished(outcome: Outcome) -> tuple[History, Tensor | None]:
    """Return history and expert logits, or raise the interrupt."""
    history, stopped, expert_logits = outcome
    if stopped:
        raise KeyboardInterrupt(stopped)
    return history, expert_logits


def _job(loss: Callable[..., Tensor], train: Samples, test: Samples | None, settings: dict[str, Any]) -> "_Job":
    """What each process is to do, checked before any is started."""
    given = {**settings, "augmentation": tuple(settings["augmentation"]), "track": tuple(settings["track"])}
    fields = TrainingSettings(**{name: given[name] for name in TrainingSettings.__dataclass_fields__})
    devices, num_nodes = given["devices"], given["num_nodes"]
    check_devices(given["device"], devices, num_nodes, fields.sync_batchnorm)
    devices, num_nodes = processes_and_machines(devices, num_nodes)
    for name, value in (("batch_size", fields.batch_size), ("a training set of", len(train))):
        if value < devices * num_nodes:
            raise UserError(
                f"{name} {value} leaves nothing for some of {devices * num_nodes} processes; give them one each"
            )
    folder = Path(given["run"]) if given["run"] is not None else None
    check_tracking(given["track"], folder)
    others = {name: given[name] for name in ("checkpoint_seconds", "step", "progress", "track")}
    return _Job(loss, train, test, fields, folder, workers=_workers(given["workers"], devices), **others)


def _workers(wanted: int, devices: int) -> int:
    """Processes that decode for one process: what the machine allows is shared, but for srun, which shares it out."""
    found = launcher()
    return wanted if wanted >= 0 else max(1, default_workers() // (1 if found and found.name == "srun" else devices))


@dataclass(frozen=True)
class _Job:
    """What each process does with its network."""

    loss: Callable[..., Tensor]
    train: Samples
    test: Samples | None
    settings: TrainingSettings
    folder: Path | None
    checkpoint_seconds: float
    step: str
    progress: bool
    track: tuple[str, ...]
    workers: int

    def __call__(self, fabric: Fabric, network: nn.Module) -> Outcome:
        with Interrupt() as interrupt:
            return complete(self.steps(fabric, network, interrupt))

    def steps(self, fabric: Fabric, network: nn.Module, interrupt: Interrupt) -> "Work[Outcome]":
        """Train, with a pause after each step; then predict."""
        with own_chance(fabric.device):
            with loading():
                training = Trainer(
                    fabric, network, self.loss, self.train, self.settings, self.folder, self.step, self.workers
                )
                training.resume()
            epochs, first = self.settings.epochs, fabric.is_global_zero
            label = f"{self.folder.parent.name}/{self.folder.name}" if self.folder else "training"
            done, show = training.samples_done(), self.progress and first
            passes = epochs + bool(training.norms)
            with (
                TrainingProgress(label, epochs, len(self.train), done, show, passes) as display,
                Tracking(self.track if first else (), self.folder, training.epoch) as tracking,
            ):
                yield from training.run(interrupt, display, tracking, self.checkpoint_seconds)
        if not training.finished:
            return training.history, f"epoch {min(training.epoch + 1, epochs)} of {epochs}", None
        share_weights(fabric, network)
        predicted: list[Tensor | None] = []
        if self.test is not None:
            yield lambda: predicted.append(self._predict(fabric, network))
        return training.history, "", predicted[0] if predicted else None

    def _predict(self, fabric: Fabric, network: nn.Module) -> Tensor | None:
        """The expert logits of the test set, in the first process."""
        assert self.test is not None
        if fabric.world_size == 1:
            with loading():
                return logits_of(network, self.test, workers=self.workers)
        rows = torch.arange(fabric.global_rank, len(self.test), fabric.world_size)
        part = logits_of(network, self.test.subset(rows), workers=self.workers) if len(rows) else torch.zeros(0)
        return gathered_rows(fabric, part, len(self.test))
