"""Trainings one after the other: a method's further stages, each of the network that the one before has trained."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from balpoe.baselines.method import Stage
from balpoe.data.augment.operations import SmallAtFirst
from balpoe.data.loading.image_files import Samples
from balpoe.errors import UserError
from balpoe.networks.experts import ExpertNetwork
from balpoe.training.optimizers import has_kernels
from balpoe.training.schedules import Cosine
from balpoe.training.settings import FitSettings

__all__ = ["fit_stages", "stage_settings"]

Fit = Callable[..., Generator[Any, None, Tensor | None]]


def fit_stages(
    fit: Fit,
    stages: Sequence[Stage],
    network: ExpertNetwork,
    loss: Any,
    train: Samples,
    test: Samples | None,
    settings: FitSettings,
) -> Generator[Any, None, Tensor | None]:
    """Train a network, then once more for each stage; return the expert logits of the test samples, if there are any.

    Each stage has a folder, and so a checkpoint, of its own: what was interrupted goes on where it stopped.

    Args:
        fit: How to train, step by step: called as fit(network, loss, train, test, settings).
        stages: Stages after the first training.
        network: Network, trained in place.
        loss: Loss of the first training.
        train: Training samples.
        test: Test samples, or None.
        settings: Settings of the first training.
    """
    _check_optimizer(stages, network, settings)
    logits = yield from fit(network, loss, train, None if stages else test, settings)
    trainable = {name: parameter.requires_grad for name, parameter in network.named_parameters()}
    for number, stage in enumerate(stages, start=1):
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.startswith(stage.trains))
        if stage.keeps_statistics:
            network.freeze_statistics()
        last = number == len(stages)
        logits = yield from fit(network, stage.loss, train, test if last else None, stage_settings(settings, stage))
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(trainable[name])
    return logits


def stage_settings(settings: FitSettings, stage: Stage) -> FitSettings:
    """Return the settings of a stage: those of the first training, without mixing and means of weights.

    Its images are of full size from the start, for it goes on where the first training ended with them.

    Args:
        settings: Settings of the first training.
        stage: What to train after it.
    """
    return replace(
        settings,
        epochs=max(1, round(stage.epochs * settings.epochs)),
        schedule=Cosine(0),
        augmentation=tuple(each for each in settings.augmentation if not isinstance(each, SmallAtFirst)),
        mixup_alpha=0.0,
        cutmix_probability=0.0,
        mixing=None,
        second_view=None,
        class_balanced=stage.class_balanced,
        lr_factors=dict(stage.lr_factors),
        weight_average_fraction=0.0,
        weight_average_decay=0.0,
        unmixed_statistics=False,
        run=settings.run and settings.run / stage.name,
        label=f"{settings.label}, {stage.name}",
    )


def _check_optimizer(stages: Sequence[Stage], network: ExpertNetwork, settings: FitSettings) -> None:
    """Refuse Muon, before the first training, for stages that would leave it nothing to change."""
    for stage in stages:
        if settings.optimizer == "muon" and not has_kernels(network, stage.trains):
            trained = " and ".join(beginning.rstrip(".") for beginning in stage.trains)
            raise UserError(
                f"muon is for kernels of convolutions, but {stage.name} of this method trains the {trained} alone; "
                "choose sgd or adamw"
            )
