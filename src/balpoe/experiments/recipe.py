"""Recipes: all settings of an experiment as one flat, typed value, checked without importing torch."""

import dataclasses
import json
import math
import reprlib
import tomllib
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from balpoe.errors import UserError, unknown_name
from balpoe.method.lambdas import equidistant_lambdas

__all__ = [
    "FIELDS",
    "FOR_FEATURES",
    "MACHINE_FIELDS",
    "TYPES",
    "Recipe",
    "parse",
    "recipe_toml",
    "toml_values",
    "updated",
]


def _setting(default: Any, doc: str, **limits: Any) -> Any:
    """A field with its doc line and limits (choices, at_least, at_most, above, below, lengths); `group` begins one.

    `filled_in` is no flag: a program knows it.
    """
    return field(default=default, metadata={"doc": doc, **limits})


@dataclass(frozen=True)
class Recipe:
    """The settings of one experiment."""

    # Data
    dataset: str = _setting(
        "cifar100-lt",
        "what to train on; own: the pictures or features at data_root",
        choices=("digits-lt", "cifar10-lt", "cifar100-lt", "imagenet-lt", "inaturalist2018", "places-lt", "own"),
        group="data",
    )
    data_version: str = _setting("", "of own data: changes with the files; filled in by train", filled_in=True)
    imbalance_ratio: float = _setting(100.0, "largest class count over the smallest", at_least=1)
    profile: str = _setting("exponential", "how the class counts fall", choices=("exponential", "step", "pareto"))
    validation: int = _setting(
        0, "above 0: so many samples a class, outside of training, are measured instead of the test set",
        at_least=0, at_most=10**6,
    )  # fmt: skip
    test_fraction: float = _setting(
        0.2, "of own data that come without a test part: what is held out", above=0, at_most=0.5
    )
    group: str = _setting(
        "", "of own pictures: a pattern on file names; what it finds is never split", metavar="PATTERN"
    )
    skip_unreadable: bool = _setting(False, "of own pictures: go on without those that cannot be read")
    image_size: int = _setting(
        0, "pixels a side of pictures from files; 0: the network's own", at_least=0, at_most=4096
    )
    augmentation: str = _setting(
        "standard",
        "how training pictures are varied",
        choices=(
            "none", "crop-flip", "standard", "autoaugment", "autoaugment-cutout", "resized-crop", "imagenet",
            "randaugment",
        ),
    )  # fmt: skip
    shot_groups: tuple[int, ...] = _setting(
        (20, 100),
        "few-shot below the first, many-shot above the second number",
        at_least=0,
        at_most=10**12,
        lengths=(2,),
    )

    # Experts
    network: str = _setting(
        "resnet32", "the architecture: resnet32, mlp, head (for features), or a model of timm's", group="experts"
    )
    weights: str = _setting("", "first weights: random, pretrained (timm's), or a file", metavar="FILE")
    weights_version: str = _setting("", "of weights from a file: changes with it; filled in by train", filled_in=True)
    frozen: bool = _setting(False, "train the experts' heads alone, on features computed once and kept")
    num_experts: int = _setting(0, "how many experts; 0: as many as lambdas, or 3", at_least=0, at_most=1000)
    lambdas: tuple[float, ...] = _setting((), "one per expert; empty: evenly spaced from 1 to -1")
    backward_tau: float = _setting(
        0.0,
        "above 0: the last expert is SADE's, made for the reversed prior (2 in its CIFAR runs)",
        at_least=0,
        at_most=10,
    )
    width: tuple[int, ...] = _setting(
        (16,), "channels of the first stage (or of all three); units of an mlp or of a head", at_least=1, at_most=65536
    )
    split: int = _setting(1, "how many stages the experts share; -1: the whole of one of timm's models", at_least=-1)
    cosine_scale: float = _setting(32.0, "scale of the cosine classifier, the paper's kappa", above=0, at_most=1e6)

    # Method
    prior_method: str = _setting(
        "empirical", "training prior from the counts", choices=("empirical", "effective"), group="method"
    )
    smoothing: float = _setting(0.0, "added to each class count", at_least=0, at_most=1e12)
    mixup_alpha: float = _setting(0.4, "alpha of mixup's Beta distribution; 0: no mixup", at_least=0, at_most=1e6)
    cutmix_probability: float = _setting(
        0.0, "part of the batches that gets CutMix instead of mixup", at_least=0, at_most=1
    )

    # Optimisation
    epochs: int = _setting(200, "passes over the data", at_least=1, at_most=10**9, group="optimisation")
    batch_size: int = _setting(128, "samples per step, over all processes", at_least=2, at_most=10**9)
    lr: float = _setting(0.1, "base learning rate", above=0, at_most=1e6)
    schedule: str = _setting("multistep", "how the learning rate falls", choices=("multistep", "cosine", "constant"))
    milestones: tuple[float, ...] = _setting(
        (0.8, 0.9), "where multistep divides by 10, in parts of the training", above=0, at_most=1
    )
    warmup_epochs: int = _setting(5, "epochs over which the rate rises", at_least=0, at_most=10**9)
    momentum: float = _setting(0.9, "momentum of SGD", at_least=0, below=1)
    nesterov: bool = _setting(True, "Nesterov's kind of momentum")
    weight_decay: float = _setting(5e-4, "weight decay, on all parameters", at_least=0, at_most=1e6)
    averaged_end: float = _setting(
        0.0, "part of the epochs, at the end, over which weights are averaged", at_least=0, at_most=1
    )
    sync_batchnorm: bool = _setting(False, "statistics of batch normalisation over all GPUs together")
    seed: int = _setting(0, "seed of first weights, order, augmentation and mixing", at_least=0, below=2**63)

    # Machine: has no part in a run's identity
    data_root: str = _setting("", "folder of the data files; empty: BALPOE_DATA", group="machine", metavar="FOLDER")
    download: bool = _setting(False, "fetch missing data files")
    device: str = _setting("auto", "where to compute", choices=("auto", "cpu", "cuda", "mps"))
    devices: int = _setting(1, "processes that train together, on each machine", at_least=1, at_most=1024)
    num_nodes: int = _setting(1, "machines that train together, under torchrun or SLURM", at_least=1, at_most=65536)
    workers: int = _setting(-1, "processes that decode pictures; -1: as the machine allows", at_least=-1, at_most=1024)
    precision: str = _setting(
        "auto", "auto is bfloat16 on CUDA, float32 elsewhere", choices=("auto", "32-true", "bf16-mixed", "16-mixed")
    )
    step: str = _setting(
        "auto",
        "auto is fused (resnet32 in bfloat16) or captured on one GPU, eager elsewhere",
        choices=("auto", "eager", "captured", "compiled", "fused"),
    )
    threads: int = _setting(0, "CPU threads; 0: torch's choice", at_least=0, at_most=1024)
    checkpoint_seconds: float = _setting(5.0, "shortest time between checkpoints", at_least=0)
    track: tuple[str, ...] = _setting(
        (), "where losses are logged as well: csv, tensorboard, wandb", choices=("csv", "tensorboard", "wandb")
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            object.__setattr__(self, item.name, _checked(item, getattr(self, item.name)))
        if self.lambdas and self.num_experts not in (0, len(self.lambdas)):
            raise UserError(
                f"lambdas describes {len(self.lambdas)} experts but num_experts is {self.num_experts}; "
                "give one of the two, or let them agree"
            )
        if self.shot_groups[0] > self.shot_groups[1] + 1:
            raise UserError(f"shot_groups must rise, such as 20,100, but is {_text(self.shot_groups)}")
        if self.batch_size < self.devices:
            raise UserError(
                f"batch_size {self.batch_size} is too small for {self.devices} processes; give each a sample"
            )
        if self.nesterov and not self.momentum:
            raise UserError("nesterov needs a momentum above 0; add --no-nesterov or set momentum")

    @property
    def expert_lambdas(self) -> tuple[float, ...]:
        """The lambdas in force: those given, or evenly spaced ones for the number of experts."""
        return self.lambdas or equidistant_lambdas(self.num_experts or 3)

    def identity(self) -> dict[str, Any]:
        """What decides the result, lambdas resolved: two recipes with the same identity are the same experiment."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in MACHINE_FIELDS}
        file = PurePath(self.weights).name  # wherever it lies
        return {**values, "num_experts": len(self.expert_lambdas), "lambdas": self.expert_lambdas, "weights": file}

    def without_places(self) -> "Recipe":
        """Return the same recipe without paths: somebody's folder is nobody else's business."""
        return dataclasses.replace(self, data_root="", weights=PurePath(self.weights).name)


MACHINE_FIELDS = frozenset(
    {
        "data_root",
        "download",
        "device",
        "devices",
        "num_nodes",
        "workers",
        "precision",
        "step",
        "threads",
        "checkpoint_seconds",
        "track",
    }
)
FOR_FEATURES = ("mlp", "head")
"""Networks whose samples are vectors."""
FIELDS = {item.name: item for item in dataclasses.fields(Recipe)}
TYPES: dict[str, Any] = typing.get_type_hints(Recipe)


def updated(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return a recipe with some fields changed; an unknown field names the nearest one.

    >>> updated(Recipe(), {"epochs": 20}).epochs
    20
    """
    for name in changes:
        if name not in FIELDS:
            raise unknown_name("field", name, FIELDS)
    return dataclasses.replace(recipe, **changes)


def toml_values(text: str) -> dict[str, Any]:
    """Return the fields that a TOML text sets, unchecked."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"this is not valid TOML: {error}") from error


def recipe_toml(recipe: Recipe, comments: bool = False) -> str:
    """Return a recipe as TOML, one line per field; with comments, ready to edit."""
    lines = []
    for name, item in FIELDS.items():
        value = getattr(recipe, name)
        if comments and name in ("num_experts", "lambdas") and not value:
            continue  # the two decide each other: printed below, as they are in force
        lines.append(f"{name} = {_toml(value)}" + (f"  # {item.metadata['doc']}" if comments else ""))
        if comments and name == "network" and not recipe.lambdas:
            lines.append(f"lambdas = {_toml(recipe.expert_lambdas)}  # {FIELDS['lambdas'].metadata['doc']}")
    return "\n".join(lines) + "\n"


def parse(name: str, text: str) -> Any:
    """Return a field's value from text, as the command line gives it."""
    kind = TYPES[name]
    try:
        if typing.get_origin(kind) is tuple:
            convert = typing.get_args(kind)[0]
            return tuple(convert(part) for part in text.split(",")) if text.strip() else ()
        return kind(text)
    except ValueError:
        raise UserError(f"{name} must be {_kind(kind)}, but is {text!r}") from None


def _checked(item: "dataclasses.Field[Any]", value: Any) -> Any:
    """A field's value in its declared type and within its limits, or one sentence."""
    kind, limits = TYPES[item.name], item.metadata
    many = typing.get_origin(kind) is tuple
    one = typing.get_args(kind)[0] if many else kind
    values = list(value) if many and isinstance(value, list | tuple) else [value]
    whole = [_typed(one, part) for part in values]
    if any(part is None for part in whole):
        raise UserError(f"{item.name} must be {_kind(kind)}, but is {_text(value)}")
    if many and "lengths" in limits and len(whole) not in limits["lengths"]:
        raise UserError(f"{item.name} wants {limits['lengths'][0]} numbers, but is {_text(value)}")
    for part in whole:
        if "choices" in limits and part not in limits["choices"]:
            raise unknown_name(item.name, str(part), limits["choices"])
        _check_range(item.name, part, limits)
    return tuple(whole) if many else whole[0]


def _typed(kind: type, value: Any) -> Any:
    """The value as `kind`, or None when it is something else: 1 is a float, 1.5 is not an int, True is neither."""
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if isinstance(value, float) or abs(value) < 10**300 else math.inf
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and not value.isprintable():
        return None  # a path with a line break or with bytes that are not text
    return value if type(value) is kind else None


def _check_range(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} must be a finite number, but is {value}")
    tests: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
        ("at_least", "at least", lambda a, b: a >= b),
        ("above", "above", lambda a, b: a > b),
        ("at_most", "at most", lambda a, b: a <= b),
        ("below", "below", lambda a, b: a < b),
    )
    for key, words, holds in tests:
        if key in limits and not holds(value, limits[key]):
            meant = f"; did you mean {1 / value:g}?" if name == "imbalance_ratio" and 0 < value < 1 else ""
            given = f"{value:g}" if isinstance(value, float) else reprlib.repr(value)
            raise UserError(f"{name} must be {words} {limits[key]}, but is {given}{meant}")


def _kind(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        words = {int: "whole numbers", float: "numbers", str: "words"}
        return f"{words[typing.get_args(kind)[0]]} with commas between"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else repr(value)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # TOML's basic strings escape as JSON's do
    return repr(value)
