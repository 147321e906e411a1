"""The settings of a training, checked in one place, without torch: of a recipe and of `balpoe.fit` alike."""

import dataclasses
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from balpoe.errors import UserError
from balpoe.old_names import current_names
from balpoe.settings import check_fields, checked_table, setting
from balpoe.training.schedules import Multistep, Schedule

if TYPE_CHECKING:
    from balpoe.data.augment.operations import Operation
    from balpoe.data.loading.decode import ResizedCrop
    from balpoe.data.loading.epoch_plan import Mixing

__all__ = ["OPTIMIZERS", "STEPS", "FitSettings", "TrainingOptions", "changed_identity"]

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adamw": {"betas": setting((0.9, 0.999), "decay of its two means", at_least=0, below=1, lengths=(2,))},
    "muon": {
        "kernel_decay": setting(0.05, "weight decay of kernels, apart from the gradient", at_least=0, at_most=1e3),
        "others_factor": setting(1.0, "rate of all but kernels, which SGD changes, as a factor of lr", above=0),
        "iterations": setting(5, "Newton-Schulz iterations of a step", at_least=1, at_most=100),
    },
}
"""Settings of each optimiser beside those that all have; `training.optimizers` builds them."""
STEPS = ("auto", "eager", "captured", "compiled", "fused")
PAPER_SCHEDULE = Multistep(warmup_epochs=5)


@dataclass(frozen=True)
class TrainingOptions:
    """What a recipe and the settings of `balpoe.fit` have in common; the latter's docstring explains each field."""

    mixup_alpha: float = setting(
        0.4, "alpha of mixup's Beta distribution; 0: no mixup", at_least=0, at_most=1e6, group="method"
    )
    cutmix_probability: float = setting(
        0.0, "part of the batches that gets CutMix instead of mixup", at_least=0, at_most=1, group="method"
    )

    epochs: int = setting(200, "passes over the data", at_least=1, at_most=10**9, group="optimisation")
    batch_size: int = setting(
        128, "samples per step, over all processes", at_least=1, at_most=10**9, group="optimisation"
    )
    drop_last: bool = setting(
        False, "leave an epoch's last batch out where it is smaller than the others", group="optimisation"
    )
    lr: float = setting(0.1, "base learning rate", above=0, at_most=1e6, group="optimisation")
    optimizer: str = setting("sgd", "how weights follow their gradients", choices=OPTIMIZERS, group="optimisation")
    optimizer_settings: dict = setting({}, "the optimiser's own settings", group="optimisation")  # noqa: RUF009 (makes a field)
    momentum: float = setting(0.9, "momentum of SGD and Muon", at_least=0, below=1, group="optimisation")
    nesterov: bool = setting(True, "Nesterov's kind of momentum", group="optimisation")
    weight_decay: float = setting(5e-4, "weight decay", at_least=0, at_most=1e6, group="optimisation")
    decay_norms: bool = setting(True, "weight decay also on normalisation and biases", group="optimisation")
    trunk_lr_factor: float = setting(
        1.0, "rate of the shared trunk, as a factor of lr", above=0, at_most=1e6, group="optimisation"
    )
    depth_lr_decay: float = setting(
        1.0, "rate of each block of layers, as a factor of the next one's", above=0, at_most=1, group="optimisation"
    )
    accumulate: int = setting(
        1, "parts of a batch that go through the network one after the other, to save memory", at_least=1,
        at_most=10**6, group="optimisation",
    )  # fmt: skip
    clip_gradients: float = setting(
        0.0, "largest norm of all gradients together; 0: no limit", at_least=0, group="optimisation"
    )
    weight_average_fraction: float = setting(
        0.0, "part of the epochs, at the end, over which weights are averaged", at_least=0, at_most=1,
        group="optimisation",
    )  # fmt: skip
    weight_average_decay: float = setting(
        0.0, "decay of an exponential mean of the weights, for each step; 0: none", at_least=0, below=1,
        group="optimisation",
    )  # fmt: skip
    unmixed_statistics: bool = setting(
        False, "statistics of batch normalisation for a mean of the weights: of batches that are not mixed",
        group="optimisation",
    )  # fmt: skip
    sync_batchnorm: bool = setting(
        False, "statistics of batch normalisation over all GPUs together", group="optimisation"
    )
    seed: int = setting(
        0, "seed of first weights, order, augmentation and mixing", at_least=0, below=2**63, group="optimisation"
    )

    device: str = setting("auto", "where to compute", choices=("auto", "cpu", "cuda", "mps"), group="machine")
    devices: int = setting(
        1, "processes that train together, on each machine", at_least=1, at_most=1024, group="machine"
    )
    num_nodes: int = setting(
        1, "machines that train together, under torchrun or SLURM", at_least=1, at_most=65536, group="machine"
    )
    shard: bool = setting(
        False, "leave each of several processes a part of the weights: for networks that do not fit one GPU",
        group="machine",
    )  # fmt: skip
    workers: int = setting(
        -1, "processes that decode images; -1: as the machine allows", at_least=-1, at_most=1024, group="machine"
    )
    precision: str = setting("auto", "auto is bfloat16 on CUDA, float32 elsewhere", group="machine")
    step: str = setting(
        "auto", "auto is fused (resnet32 in bfloat16) or captured on one GPU, eager elsewhere", choices=STEPS,
        group="machine",
    )  # fmt: skip
    checkpoint_seconds: float = setting(5.0, "shortest time between checkpoints", at_least=0, group="machine")
    track: tuple[str, ...] = setting(
        (), "where losses are logged as well", choices=("csv", "tensorboard", "wandb"),
        group="machine",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)
        self.all_optimizer_settings()
        if self.optimizer in ("sgd", "muon") and self.nesterov and not self.momentum:
            raise UserError("nesterov needs a momentum above 0; set one, or nesterov to false")
        if self.optimizer == "muon" and self.shard:
            raise UserError("muon wants whole kernels, but with shard each process has a part; choose sgd or adamw")
        if self.optimizer == "muon" and (away := self.lr * self.all_optimizer_settings()["kernel_decay"]) >= 1:
            raise UserError(
                f"lr times kernel_decay is the part of a kernel that a step takes away, but is {away:g}; "
                "make one of them smaller"
            )
        if self.shard and self.precision == "16-mixed":
            raise UserError(
                "precision 16-mixed scales gradients, which parts of them cannot be; use bf16-mixed, or no shard"
            )
        if self.weight_average_fraction and self.weight_average_decay:
            raise UserError(
                "weight_average_fraction and weight_average_decay are two means of the weights; set one of them to 0"
            )
        if self.unmixed_statistics and not (self.weight_average_fraction or self.weight_average_decay):
            raise UserError(
                "unmixed_statistics are those of a mean of the weights; set weight_average_fraction, such as 0.4, too"
            )

    def all_optimizer_settings(self) -> dict[str, Any]:
        """Return the optimiser's own settings, those given and the defaults of the others."""
        return checked_table(f"optimizer {self.optimizer}", OPTIMIZERS[self.optimizer], self.optimizer_settings)


@dataclass(frozen=True)
class FitSettings(TrainingOptions):
    """All that a training does with network, loss and data."""

    schedule: "Schedule" = PAPER_SCHEDULE
    augmentation: "tuple[Operation | ResizedCrop, ...]" = ()
    second_view: "tuple[Operation, ...] | None" = None
    mixing: "Mixing | None" = None
    class_balanced: bool = False
    lr_factors: "Mapping[str, float]" = dataclasses.field(default_factory=dict)
    run: "Path | None" = setting(None, "folder of the run", group="machine")  # noqa: RUF009 (makes a field)
    progress: bool = setting(True, "a bar on a terminal, plain lines elsewhere", group="machine")
    label: str = setting("", "what the progress calls it; by default the run", group="machine")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.schedule):
            raise UserError(
                f"schedule must be one of balpoe.training.schedules, such as Cosine(), not {self.schedule!r}"
            )
        object.__setattr__(self, "augmentation", tuple(self.augmentation))
        object.__setattr__(self, "run", None if self.run is None else Path(self.run))
        if self.second_view is not None and (self.mixing or self.mixup_alpha or self.cutmix_probability):
            raise UserError("two views of each image are not mixed; set mixup_alpha and cutmix_probability to 0")
        if self.second_view is not None and self.accumulate > 1:
            raise UserError("two views of each image cannot be parted; set accumulate to 1")
        if self.mixing is not None and (self.mixup_alpha or self.cutmix_probability):
            raise UserError("the method has its own mixing; set mixup_alpha and cutmix_probability to 0")

    @property
    def averaged_epochs(self) -> int:
        """Number of epochs, the last ones, whose weights are averaged; one at the least, if any are."""
        return max(1, round(self.weight_average_fraction * self.epochs)) if self.weight_average_fraction else 0

    def identity(self) -> dict[str, str]:
        """Return as text what a training computes from: part of a checkpoint's identity."""
        items = (item for item in dataclasses.fields(self) if item.metadata.get("group") != "machine")
        values = {item.name: getattr(self, item.name) for item in items}
        values["optimizer_settings"] = self.all_optimizer_settings()
        return {**{name: repr(value) for name, value in values.items()}, "schedule": self._schedule_text()}

    def _schedule_text(self) -> str:
        """What tells one schedule from another; of a function, whose text differs in each process, its factors."""
        text = repr(self.schedule)
        if " at 0x" not in text:
            return text
        factors = " ".join(f"{float(self.schedule(epoch, self.epochs)):.9g}" for epoch in range(self.epochs))
        return f"factors-{zlib.crc32(factors.encode()):08x}"


def changed_identity(before: Any, now: Mapping[str, str]) -> list[str]:
    """Return what differs between a checkpoint's identity and a training's, as text for a message.

    A checkpoint of an earlier version has old names, and lacks the settings that it did not know.
    """
    before = before if isinstance(before, dict) else {}
    unsaid = {"interpolation": "bilinear", **FitSettings().identity()}
    known = {**unsaid, **current_names("fit", before)} if before else {}
    return [f"{name}={known.get(name, '?')} (now {value})" for name, value in now.items() if known.get(name) != value]
