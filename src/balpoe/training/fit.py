"""fit(): a network trained in place, in one process or several; and what it then says about a test set."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from balpoe.data.augment.operations import Operation
from balpoe.data.loading.decode import ResizedCrop
from balpoe.data.loading.epoch_plan import Mixing
from balpoe.data.loading.image_files import Samples, default_workers
from balpoe.errors import UserError
from balpoe.evaluation.forward import logits_of
from balpoe.old_names import reads_old_names
from balpoe.progress import TrainingProgress
from balpoe.training.concurrent import Work, complete
from balpoe.training.distributed import (
    check_devices,
    chosen_precision,
    gathered_rows,
    launch,
    one_device,
    share_weights,
)
from balpoe.training.engine import Engine
from balpoe.training.interrupts import Interrupt
from balpoe.training.launchers import launcher, processes_and_machines
from balpoe.training.loggers import Tracking, check_tracking
from balpoe.training.loop import History, Trainer
from balpoe.training.random_state import own_random_state
from balpoe.training.schedules import Schedule
from balpoe.training.settings import PAPER_SCHEDULE, FitSettings
from balpoe.training.sharding import in_parts

__all__ = ["fit", "fit_and_predict", "fit_and_predict_by_step"]

Loss = Callable[..., Tensor]
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


@reads_old_names("fit")
def fit(
    network: nn.Module, loss: Loss, train: Samples, *,
    epochs: int = 200, batch_size: int = 128, drop_last: bool = False,
    lr: float = 0.1, schedule: Schedule = PAPER_SCHEDULE,
    optimizer: str = "sgd", optimizer_settings: Mapping[str, Any] = NO_SETTINGS,
    momentum: float = 0.9, nesterov: bool = True, weight_decay: float = 5e-4, decay_norms: bool = True,
    trunk_lr_factor: float = 1.0, depth_lr_decay: float = 1.0, lr_factors: Mapping[str, float] = NO_SETTINGS,
    accumulate: int = 1, clip_gradients: float = 0.0,
    weight_average_fraction: float = 0.0, weight_average_decay: float = 0.0, unmixed_statistics: bool = False,
    mixup_alpha: float = 0.4, cutmix_probability: float = 0.0, mixing: Mixing | None = None,
    augmentation: Sequence[Operation | ResizedCrop] = (), second_view: Sequence[Operation] | None = None,
    class_balanced: bool = False,
    sync_batchnorm: bool = False, seed: int = 0, run: str | Path | None = None, checkpoint_seconds: float = 5.0,
    device: str = "auto", devices: int = 1, num_nodes: int = 1, shard: bool = False, workers: int = -1,
    precision: str = "auto", step: str = "auto", track: Sequence[str] = (), progress: bool = True,
) -> History:  # fmt: skip
    """Train a network in place and return one dictionary (epoch, lr, loss) per epoch.

    The defaults are the paper's for CIFAR. The same seed gives the same weights, bit for bit on a CPU
    with the same number of threads; with `run` an interrupted call continues where it stopped.

    Args:
        network: Network from normalised samples to expert logits (batch, experts, classes).
        loss: Loss such as `BalPoELoss`: called as loss(expert_logits, targets, progress=part_of_training_done).
        train: Raw samples with their preprocessing, in memory (`Dataset`) or in files (`PictureFiles`).
        epochs: Passes over the data.
        batch_size: Samples per step, over all processes together.
        drop_last: Whether an epoch's last batch is left out where it is smaller than the others: one step to capture.
        lr: Base learning rate; `schedule` maps (epoch, epochs) to a factor of it.
        schedule: Schedule of the rate, such as those of `balpoe.training.schedules`.
        optimizer: "sgd", "adamw", or "muon" (for convolutions).
        optimizer_settings: The optimiser's own settings, such as {"betas": (0.9, 0.95)} of AdamW.
        momentum: Momentum of SGD.
        nesterov: Nesterov's kind of momentum.
        weight_decay: Weight decay.
        decay_norms: Weight decay also on vectors: normalisation and biases.
        trunk_lr_factor: Factor of the rate of the trunk that the experts share.
        depth_lr_decay: Factor of the rate from each block of layers to the one before it; the last has the whole rate.
        lr_factors: Further factors of the rate, by beginning of a parameter's name, such as {"classifier.": 0.5}.
        accumulate: Number of parts of a batch that go through the network one after the other, which saves memory;
            batch normalisation has the statistics of each part.
        clip_gradients: Largest norm of all gradients together; 0 for any.
        weight_average_fraction: Part of the epochs, at the end, over which weights are averaged: the network gets the
            mean of those after each epoch, and statistics of batch normalisation of one more pass over the data,
            augmented and mixed like the others (of several processes, the first one's).
        weight_average_decay: Decay a step of an exponential mean of the weights, which the network gets at the end,
            with statistics of one more pass; 0 for no such mean.
        unmixed_statistics: Whether the batches of that pass are augmented, but not mixed: test images are not, either,
            and a network whose statistics are of mixed images is less sure of them.
        mixup_alpha: Alpha of mixup's Beta distribution; 0 trains without mixup.
        cutmix_probability: Part of the batches that gets CutMix instead of mixup.
        mixing: A method's own mixing, such as `balpoe.baselines.remix.Remix`; mixup_alpha is then 0.
        augmentation: Operations of `balpoe.data.augment`, applied in order, anew in each epoch.
        second_view: Operations that make a second view of each image, for losses that compare the two: expert logits
            are then (2 * batch, experts, classes), those of the second views behind the first; None for one view.
        class_balanced: Whether samples are drawn so that all classes come equally often, instead of each once.
        sync_batchnorm: Statistics of batch normalisation over all GPUs together, instead of each one's own.
        seed: Seed of order, augmentation and mixing. (The network's first weights are the caller's.)
        run: Folder for checkpoint.pt, history.jsonl and timing.jsonl; None writes nothing.
        checkpoint_seconds: Shortest time between checkpoints, which come at the end of an epoch.
        device: "auto", "cpu", "cuda" or "mps".
        devices: Processes on each machine; more than one start by themselves (guard your script with `__main__`).
            Under torchrun or SLURM, 1 is as many as were started.
        num_nodes: Machines; more than one take torchrun or SLURM, under which 1 is as many as there are.
        shard: Whether each of several processes keeps a part of the weights, for networks that do not fit one GPU.
        workers: Processes of each process that decode image files; 0: none; -1: as the machine allows.
        precision: "auto" is bfloat16 autocast on CUDA and float32 elsewhere; or a name of Lightning Fabric's.
        step: "eager", or captured once as a CUDA graph and replayed, "captured", which "auto" is on one GPU; or
            in other kernels: those of torch's compiler, "compiled", or our own for resnet32, "fused", its "auto".
        track: Where losses are logged as well: "csv", "tensorboard", "wandb"; all of them want a `run`.
        progress: A bar on a terminal, plain lines elsewhere.

    >>> import balpoe, torch
    >>> data = balpoe.Dataset(torch.randn(40, 8), torch.arange(40) % 2)
    >>> network = balpoe.expert_network("mlp", num_classes=2, num_experts=3, num_features=8)
    >>> history = fit(network, balpoe.BalPoELoss(data.class_counts), data, epochs=2, progress=False)
    >>> [entry["epoch"] for entry in history]
    [0, 1]
    """
    settings = FitSettings(
        epochs=epochs, batch_size=batch_size, drop_last=drop_last, lr=lr, schedule=schedule, optimizer=optimizer,
        optimizer_settings=dict(optimizer_settings), momentum=momentum, nesterov=nesterov, weight_decay=weight_decay,
        decay_norms=decay_norms, trunk_lr_factor=trunk_lr_factor, depth_lr_decay=depth_lr_decay,
        lr_factors=dict(lr_factors), accumulate=accumulate, clip_gradients=clip_gradients,
        weight_average_fraction=weight_average_fraction,
        weight_average_decay=weight_average_decay, unmixed_statistics=unmixed_statistics,
        mixup_alpha=mixup_alpha, cutmix_probability=cutmix_probability,
        mixing=mixing, augmentation=tuple(augmentation),
        second_view=None if second_view is None else tuple(second_view), class_balanced=class_balanced,
        sync_batchnorm=sync_batchnorm, seed=seed,
        run=None if run is None else Path(run), checkpoint_seconds=checkpoint_seconds, device=device, devices=devices,
        num_nodes=num_nodes, shard=shard, workers=workers, precision=precision, step=step, track=tuple(track),
        progress=progress,
    )  # fmt: skip
    return fit_and_predict(network, loss, train, None, settings)[0]


def fit_and_predict(
    network: nn.Module, loss: Loss, train: Samples, test: Samples | None, settings: FitSettings
) -> tuple[History, Tensor | None]:
    """Train like `fit`; return its history and the trained network's expert logits of a test set, if there is one.

    Several processes also share the prediction: each takes its part of the rows, and the first one has them in order.
    In the others that a launcher started they are None.

    Args:
        network: Network, trained in place.
        loss: Loss, as for `fit`.
        train: Training samples, as for `fit`.
        test: Raw samples with their preprocessing, or None.
        settings: Settings of the training.

    >>> import balpoe, torch
    >>> data = balpoe.Dataset(torch.randn(40, 8), torch.arange(40) % 2)
    >>> network = balpoe.expert_network("mlp", num_classes=2, num_experts=3, num_features=8)
    >>> loss = balpoe.BalPoELoss(data.class_counts)
    >>> fit_and_predict(network, loss, data, data, FitSettings(epochs=1, progress=False))[1].shape
    torch.Size([40, 3, 2])
    """
    settings = _resolved(settings, train)
    work = functools.partial(_work, loss=loss, train=train, test=test, settings=settings)
    engine = {name: getattr(settings, name) for name in ("device", "devices", "num_nodes", "shard", "precision")}
    return _finished(launch(work, network, **engine))


def fit_and_predict_by_step(
    network: nn.Module, loss: Loss, train: Samples, test: Samples | None, settings: FitSettings, interrupt: Interrupt
) -> "Work[tuple[History, Tensor | None]]":
    """Do what `fit_and_predict` does, on one device, as a generator that yields after each step: for `concurrent`.

    Args:
        network: Network, trained in place.
        loss: Loss, as for `fit`.
        train: Training samples, as for `fit`.
        test: Raw samples with their preprocessing, or None.
        settings: Settings of the training.
        interrupt: Interrupt whose request ends the training, as a Ctrl-C ends `fit`.
    """
    settings = _resolved(settings, train)
    engine = one_device(settings.device, settings.precision)
    return _finished((yield from _steps(engine, network, interrupt, loss, train, test, settings)))


Outcome = tuple[History, str, Tensor | None]
"""History, where an interrupted training stopped (empty when it is finished), and expert logits. Plain data, and not an
exception: several processes end their work together, interrupted or not."""


def _finished(outcome: Outcome) -> tuple[History, Tensor | None]:
    """Return history and expert logits, or raise the interrupt."""
    history, stopped, expert_logits = outcome
    if stopped:
        raise KeyboardInterrupt(stopped)
    return history, expert_logits


def _resolved(settings: FitSettings, train: Samples) -> FitSettings:
    """The settings, checked against machine and data before any process is started, with what "auto" stands for."""
    check_devices(settings.device, settings.devices, settings.num_nodes, settings.sync_batchnorm, settings.shard)
    devices, num_nodes = processes_and_machines(settings.devices, settings.num_nodes)
    for name, value in (("batch_size", settings.batch_size), ("a training set of", len(train))):
        if value < devices * num_nodes:
            raise UserError(
                f"{name} {value} leaves nothing for some of {devices * num_nodes} processes; give them one each"
            )
    check_tracking(settings.track, settings.run)
    precision = chosen_precision(settings.device, settings.precision)
    return replace(settings, precision=precision, workers=_workers(settings.workers, devices))


def _workers(wanted: int, devices: int) -> int:
    """Processes that decode for one process: what the machine allows is shared, but for srun, which shares it out."""
    found = launcher()
    return wanted if wanted >= 0 else max(1, default_workers() // (1 if found and found.name == "srun" else devices))


def _work(engine: Engine, network: nn.Module, **parts: Any) -> Outcome:
    """What each process does."""
    with Interrupt() as interrupt:
        return complete(_steps(engine, network, interrupt, **parts))


def _steps(
    engine: Engine,
    network: nn.Module,
    interrupt: Interrupt,
    loss: Loss,
    train: Samples,
    test: Samples | None,
    settings: FitSettings,
) -> "Work[Outcome]":
    """Train, with a pause after each step; then predict."""
    epochs, first = settings.epochs, engine.is_global_zero
    label = settings.label or (f"{settings.run.parent.name}/{settings.run.name}" if settings.run else "training")
    with own_random_state(engine.device):
        training = Trainer(engine, network, loss, train, settings)
        training.resume()
        done, show = training.samples_done(), settings.progress and first
        samples, passes = training.samples_an_epoch, epochs + bool(training.norms)
        with (
            TrainingProgress(label, epochs, samples, done, show, passes) as display,
            Tracking(settings.track if first else (), settings.run, training.epoch) as tracking,
        ):
            yield from training.run(interrupt, display, tracking)
    if not training.finished:
        return training.history, f"epoch {min(training.epoch + 1, epochs)} of {epochs}", None
    share_weights(engine, network)
    predicted: list[Tensor | None] = [None]
    if test is not None:
        yield lambda: predicted.append(_predicted(engine, network, test, settings.workers))
    return training.history, "", predicted[-1]


def _predicted(engine: Engine, network: nn.Module, test: Samples, workers: int) -> Tensor | None:
    """The expert logits of the test set, in the first process."""
    if engine.world_size == 1:
        return logits_of(network, test, workers=workers)
    rows = torch.arange(engine.global_rank, len(test), engine.world_size)
    asked, most = rows, -(-len(test) // engine.world_size)
    if len(rows) < most and in_parts(network.parameters()):  # through which all processes pass equally often
        asked = torch.cat([rows, rows.new_zeros(1)])
    part = logits_of(network, test.subset(asked), workers=workers) if len(asked) else torch.zeros(0)
    return gathered_rows(engine, part[: len(rows)], len(test))
