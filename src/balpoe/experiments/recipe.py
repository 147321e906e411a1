"""Recipes: all settings of an experiment as one flat, typed value, checked without importing torch."""

import dataclasses
import json
import os
import tomllib
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from balpoe.baselines.catalogue import METHODS, checked_settings
from balpoe.data.registry import DATASETS
from balpoe.errors import UserError, unknown_name
from balpoe.method.lambdas import equidistant_lambdas
from balpoe.old_names import current_recipe
from balpoe.settings import as_text, kinds, parsed, setting
from balpoe.training.settings import OPTIMIZERS, FitSettings, TrainingOptions

__all__ = [
    "FIELDS",
    "FOR_FEATURES",
    "MACHINE_FIELDS",
    "RANDOM_AT_FIRST",
    "TYPES",
    "Recipe",
    "parse",
    "recipe_toml",
    "setting_owners",
    "toml_values",
    "updated",
]


@dataclass(frozen=True)
class Recipe(TrainingOptions):
    """The settings of one experiment."""

    # Data
    dataset: str = setting(
        "cifar100-lt",
        "what to train on; own: the images or features at data_root",
        choices=ChainMap({"own": None}, DATASETS),  # a view: also what is added later
        group="data",
    )
    data_version: str = setting(
        "", "own data: changes with the files; filled in by train", filled_in=True, group="data"
    )
    imbalance_ratio: float = setting(100.0, "largest class count over the smallest", at_least=1, group="data")
    profile: str = setting(
        "exponential", "how the class counts fall", choices=("exponential", "step", "pareto"), group="data"
    )
    validation: int = setting(
        0, "above 0: so many samples a class, outside of training, are measured instead of the test set",
        at_least=0, at_most=10**6, group="data")  # fmt: skip
    test_fraction: float = setting(
        0.2, "own data that come without a test part: what is held out", above=0, at_most=0.5, group="data"
    )
    group: str = setting(
        "", "own data: what belongs together, and is never split: a pattern on file names, or column:NAME of a table",
        off=("none", "own data: samples are independent, whatever their names say"), metavar="PATTERN", group="data",
    )  # fmt: skip
    skip_unreadable: bool = setting(False, "own images: go on without those that cannot be read", group="data")
    image_size: int = setting(
        0,
        "pixels a side of images; 0: of files the network's own, of others their own",
        at_least=0,
        at_most=4096,
        group="data",
    )
    augmentation: str = setting(
        "standard",
        "how training images are varied",
        choices=(
            "none", "crop-flip", "standard", "autoaugment", "autoaugment-cutout", "resized-crop", "imagenet",
            "randaugment",
        ), group="data")  # fmt: skip
    alternate_flips: bool = setting(False, "mirror each image in every second epoch instead of at random", group="data")
    early_image_size: int = setting(
        0, "pixels a side of images in the first epochs, which are then cheaper; 0: as in the others",
        at_least=0, at_most=4096, group="data",
    )  # fmt: skip
    early_fraction: float = setting(
        0.5, "share of the epochs that early_image_size is for", above=0, at_most=1, group="data"
    )
    shot_groups: tuple[int, ...] = setting(
        (20, 100),
        "few-shot below the first, many-shot above the second number",
        at_least=0,
        at_most=10**12,
        lengths=(2,),
        group="data",
    )

    # Experts
    network: str = setting(
        "resnet32", "the architecture: resnet32, mlp, head (for features), or a model of timm's", group="experts"
    )
    weights: str = setting("", "first weights: random, pretrained (timm's), or a file", metavar="FILE", group="experts")
    first_layer: str = setting(
        "random", "first weights of resnet32's first convolution: random, or from training images, to whiten them",
        choices=("random", "whitened"), group="experts",
    )  # fmt: skip
    residual_start: float = setting(
        1.0, "what resnet32's blocks add to their inputs at first, as a factor: 1 as usual, 0 nothing",
        at_least=0, at_most=1, group="experts",
    )  # fmt: skip
    weights_version: str = setting(
        "", "weights from a file: changes with it; filled in by train", filled_in=True, group="experts"
    )
    tune: str = setting(
        "full", "what learns: the experts' heads alone, on features computed once and kept; adapters too; everything",
        choices=("head", "adapters", "full"), group="experts",
    )  # fmt: skip
    adapter: str = setting(
        "adaptformer", "a bottleneck beside each block's MLP, or a change of low rank of its attention",
        choices=("adaptformer", "lora"), group="experts",
    )  # fmt: skip
    adapter_size: int = setting(
        0, "units of an adapter, or rank; 0: by the number of classes", at_least=0, at_most=65536, group="experts"
    )
    adapter_split: int = setting(
        0, "blocks, at the end, in which each expert has adapters of its own", at_least=0, at_most=10**6,
        group="experts",
    )  # fmt: skip
    head_start: str = setting(
        "auto", "first classifiers: random, or the means of each class's features, which auto is with adapters",
        choices=("auto", "random", "class-means"), group="experts",
    )  # fmt: skip
    num_experts: int = setting(
        0, "how many experts; 0: as many as lambdas, or as the method has", at_least=0, at_most=1000, group="experts"
    )
    lambdas: tuple[float, ...] = setting((), "one per expert; empty: evenly spaced from 1 to -1", group="experts")
    width: tuple[int, ...] = setting(
        (16,),
        "channels of the first stage (or of all three); units of an mlp or of a head",
        at_least=1,
        at_most=65536,
        group="experts",
    )
    split: int = setting(
        1, "how many stages the experts share; -1: the whole of one of timm's models", at_least=-1, group="experts"
    )
    cosine_scale: float = setting(
        32.0, "scale of the cosine classifier, the paper's kappa", above=0, at_most=1e6, group="experts"
    )

    # Method
    method: str = setting(
        "balpoe", "how to train on a long tail; balpoe recipes explains", choices=METHODS, group="method"
    )
    method_settings: dict = setting({}, "the method's own settings", group="method")  # noqa: RUF009 (makes a field)
    prior_method: str = setting(
        "empirical", "training prior from the counts", choices=("empirical", "effective"), group="method"
    )
    smoothing: float = setting(0.0, "added to each class count", at_least=0, at_most=1e12, group="method")

    # Calibration
    calibrate: bool = setting(
        False, "fit temperatures on samples outside of training, so that probabilities come true", group="calibration"
    )
    temperature: float = setting(
        1.0, "what the ensemble's logits are divided by after training, where it is known from earlier trainings",
        above=0, at_most=100, group="calibration",
    )  # fmt: skip
    held_out: float = setting(
        0.1, "calibrating own data whose network is trained as a whole: what training goes without",
        above=0, at_most=0.5, group="calibration",
    )  # fmt: skip
    choose_mixup: bool = setting(
        False, "choose mixup_alpha from 0, 0.1, 0.2 and 0.4 by what predicts such samples best", group="calibration"
    )
    choose_lr: bool = setting(
        False, "heads on features: lr times 1, 3, 10 or 30, whatever predicts such samples best", group="calibration"
    )

    # Optimisation, beside the options of every training
    epochs: int = setting(
        200, "passes over the data; 0: as many as own data need", at_least=0, at_most=10**9, group="optimisation"
    )
    batch_size: int = setting(
        128, "samples per step, over all processes", at_least=2, at_most=10**9, group="optimisation"
    )
    schedule: str = setting(
        "multistep",
        "how the learning rate falls",
        choices=("multistep", "cosine", "linear", "constant"),
        group="optimisation",
    )
    milestones: tuple[float, ...] = setting(
        (0.8, 0.9), "where multistep divides by 10, in parts of the training", above=0, at_most=1, group="optimisation"
    )
    warmup_epochs: int = setting(5, "epochs over which the rate rises", at_least=0, at_most=10**9, group="optimisation")

    drop_path: float = setting(
        0.0, "models of timm: part of the samples that pass the last block by; less before it", at_least=0, below=1,
        group="optimisation",
    )  # fmt: skip
    gradient_checkpointing: bool = setting(
        False, "models of timm: compute blocks again for their gradients, to save memory", group="optimisation"
    )

    # Machine: has no part in a run's identity
    data_root: str = setting("", "folder of the data files; empty: BALPOE_DATA", group="machine", metavar="FOLDER")
    download: bool = setting(False, "fetch missing data files", group="machine")
    precision: str = setting(
        "auto", "auto is bfloat16 on CUDA, float32 elsewhere", choices=("auto", "32-true", "bf16-mixed", "16-mixed"),
        group="machine",
    )  # fmt: skip
    threads: int = setting(0, "CPU threads; 0: torch's choice", at_least=0, at_most=1024, group="machine")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights == "random":  # the help's word for none; a run has one name, whichever was typed
            object.__setattr__(self, "weights", "")
        self._check_method()
        if self.lambdas and self.num_experts not in (0, len(self.lambdas)):
            raise UserError(
                f"lambdas describes {len(self.lambdas)} experts but num_experts is {self.num_experts}; "
                "give one of the two, or let them agree"
            )
        if self.network in RANDOM_AT_FIRST and self.weights not in ("", "pretrained"):
            raise UserError(
                f"network {self.network} begins with random weights, but weights is {self.weights}; leave it out, or "
                "choose a network of timm's, such as resnet50"
            )
        for name in ("early_image_size", "first_layer", "residual_start"):
            if self.network != "resnet32" and getattr(self, name) != getattr(type(self), name):
                raise UserError(f"{name} is for network resnet32, not for {self.network}; leave it out")
        if self.early_fraction != type(self).early_fraction and not self.early_image_size:
            raise UserError("early_fraction is the share of epochs with smaller images; set early_image_size, too")
        if self.shot_groups[0] > self.shot_groups[1] + 1:
            raise UserError(f"shot_groups must rise, such as 20,100, but is {as_text(self.shot_groups)}")
        if self.calibrate and self.temperature != 1:
            raise UserError("calibrate finds a temperature by itself; add --no-calibrate, or leave out --temperature")
        for name in ("choose_mixup", "choose_lr"):
            if getattr(self, name) and not self.calibrate:
                flag = f"--no-{name.replace('_', '-')}"
                raise UserError(f"{name} asks samples outside of training; add --calibrate, or {flag}")
        cross_fitted = self.calibrate and (self.tune == "head" or self.network in FOR_FEATURES)
        if self.head_start == "class-means" and cross_fitted:
            raise UserError(
                "class means would tell cross-fitted heads about samples that they go without; "
                "add --no-calibrate, or --head-start random"
            )
        if self.epochs == 0 and self.dataset != "own":
            raise UserError("epochs 0 is for own data, whose size decides; give a number of epochs")
        if self.batch_size < self.devices:
            raise UserError(
                f"batch_size {self.batch_size} is too small for {self.devices} processes; give each a sample"
            )

    def _check_method(self) -> None:
        entry = METHODS[self.method]
        if entry.evaluates:
            raise UserError(
                f"{self.method} is a way to evaluate a run of {entry.evaluates}, without a training of its own; "
                f"train with --method {entry.evaluates}, then balpoe evaluate RUN --prior uniform"
            )
        checked_settings(self.method, self.method_settings)
        if self.lambdas and not entry.takes_lambdas:
            raise UserError(f"the experts of {self.method} have no lambdas; leave them out, or choose method balpoe")
        if self.num_experts > 1 and entry.num_experts == 1:
            raise UserError(
                f"{self.method} has one expert, but num_experts is {self.num_experts}; leave it out, "
                "or choose a method of several, such as balpoe"
            )
        if self.experts < entry.least_experts:
            raise UserError(
                f"{self.method} is made of several experts, but num_experts is {self.experts}; "
                f"give {entry.least_experts} or more, or choose another method"
            )

    @property
    def experts(self) -> int:
        """Number of experts in force: as many as lambdas, or what is asked for, or the method's own."""
        return len(self.lambdas) or self.num_experts or METHODS[self.method].num_experts

    @property
    def expert_lambdas(self) -> tuple[float, ...]:
        """The lambdas in force: those given, or evenly spaced ones; empty for a method whose experts have none."""
        if not METHODS[self.method].takes_lambdas:
            return ()
        return self.lambdas or equidistant_lambdas(self.experts)

    @property
    def title(self) -> str:
        """What people call the method: BalPoE by its lambdas, which make cross-entropy and logit adjustment, too.

        >>> Recipe().title, Recipe(lambdas=(1,)).title, Recipe(lambdas=(0, 0)).title, Recipe(method="sade").title
        ('BalPoE', 'cross-entropy', 'logit adjustment, 2 experts', 'SADE')
        """
        if self.method != "balpoe":
            return METHODS[self.method].title or self.method
        same = self.expert_lambdas[0] if len(set(self.expert_lambdas)) == 1 else None
        name = {1: "cross-entropy", 0: "logit adjustment"}.get(same, "BalPoE")  # type: ignore[call-overload]
        return name if name == "BalPoE" or self.experts == 1 else f"{name}, {self.experts} experts"

    def fit_settings(self, **objects: Any) -> FitSettings:
        """Return the settings of the training; `objects` are those for which a recipe has words: schedule and so on."""
        same = {item.name: getattr(self, item.name) for item in dataclasses.fields(TrainingOptions)}
        return FitSettings(**same, **objects)

    def identity(self) -> dict[str, Any]:
        """What decides the result, all of it resolved: two recipes with the same identity are the same experiment."""
        values = {name: getattr(self, name) for name in FIELDS if name not in MACHINE_FIELDS}
        return {
            **values,
            "num_experts": self.experts,
            "lambdas": self.expert_lambdas,
            "method_settings": checked_settings(self.method, self.method_settings),
            "optimizer_settings": self.all_optimizer_settings(),
            "weights": PurePath(self.weights).name,  # wherever it lies
        }

    def from_anywhere(self) -> "Recipe":
        """Return the same recipe with whole paths, which hold in whatever folder a command is typed."""
        root = os.path.abspath(self.data_root) if self.data_root else ""
        return dataclasses.replace(
            self,
            data_root=root,
            weights=os.path.abspath(self.weights) if os.path.isfile(self.weights) else self.weights,
        )

    def without_places(self) -> "Recipe":
        """Return the same recipe without paths: somebody's folder is nobody else's business."""
        return dataclasses.replace(self, data_root="", weights=PurePath(self.weights).name)


FIELDS = {
    item.name: item
    for group in ("data", "experts", "method", "calibration", "optimisation", "machine")
    for item in dataclasses.fields(Recipe)
    if item.metadata["group"] == group
}
TYPES: dict[str, Any] = kinds(Recipe)
MACHINE_FIELDS = frozenset(name for name, item in FIELDS.items() if item.metadata["group"] == "machine")
FOR_OWN = ("data_version", "test_fraction", "group", "skip_unreadable")
"""Fields that mean something for own data alone."""
FOR_OTHERS = ("imbalance_ratio", "profile", "validation", "download")
"""Fields that mean nothing for own data."""
FOR_FEATURES = ("mlp", "head")
"""Networks whose samples are vectors."""
RANDOM_AT_FIRST = ("resnet32", *FOR_FEATURES)


def updated(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return a recipe with some fields changed; an unknown field names the nearest one.

    Another method brings what its paper prescribes, unless `changes` says otherwise.

    >>> updated(Recipe(), {"epochs": 20}).epochs
    20
    >>> updated(Recipe(mixup_alpha=0.4), {"method": "ldam-drw"}).mixup_alpha
    0.0
    """
    changes = current_recipe(changes)
    if (method := changes.get("method", recipe.method)) != recipe.method:
        changes = {**_brought_by(method), **changes}
    for owner in ("method", "optimizer"):  # settings of another one are not its own
        if changes.get(owner, getattr(recipe, owner)) != getattr(recipe, owner):
            changes.setdefault(f"{owner}_settings", {})
    if changes.get("calibrate") is True:  # in the place of one that the recipe knows
        changes.setdefault("temperature", 1.0)
    changes |= _in_their_place(recipe, changes)
    nothing_to_choose_by = changes.get("calibrate") is False
    # What goes through a whole network takes long, and is chosen between only if that is asked.
    whole = changes.get("tune") in ("adapters", "full")
    for name, choice in (("mixup_alpha", "choose_mixup"), ("lr", "choose_lr")):
        if name in changes or nothing_to_choose_by or whole:
            changes.setdefault(choice, False)
    for name in changes:
        if name in FIELDS:
            continue
        for kind, owner in setting_owners(name):
            table = f"{kind}_settings = {{ {name} = ... }}"
            raise UserError(f"{name} is no field, but a setting of {kind} {owner}; write it in a table: {table}")
        raise unknown_name("field", name, FIELDS)
    return dataclasses.replace(recipe, **changes)


def setting_owners(key: str) -> list[tuple[str, str]]:
    """Return the methods and optimisers that have a setting of their own with this name.

    >>> setting_owners("kernel_decay"), setting_owners("epochs")
    ([('optimizer', 'muon')], [])
    """
    tables = [("method", name, entry.settings) for name, entry in METHODS.items()]
    tables += [("optimizer", name, settings) for name, settings in OPTIMIZERS.items()]
    return [(kind, name) for kind, name, settings in tables if key in settings]


def _brought_by(method: Any) -> dict[str, Any]:
    """The fields that come with a method: what it prescribes, and no lambdas, experts or temperature of another one."""
    if not isinstance(method, str) or method not in METHODS:
        return {}  # and is refused
    entry = METHODS[method]
    lambdas = {} if entry.takes_lambdas else {"lambdas": ()}
    experts = {} if entry.num_experts > 1 else {"num_experts": 0}
    return {**lambdas, **experts, "temperature": 1.0, **entry.prescribes}


def _in_their_place(recipe: Recipe, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Experts or lambdas of before, where only the other is given and it does not agree: none of their own."""
    lambdas, experts = (changes.get(name, getattr(recipe, name)) for name in ("lambdas", "num_experts"))
    given = {"lambdas", "num_experts"} & changes.keys()
    number = len(lambdas) if isinstance(lambdas, (tuple, list)) else 1  # which is checked later
    if len(given) != 1 or not number or experts in (0, number):
        return {}
    return {"num_experts": 0} if "lambdas" in given else {"lambdas": ()}


def toml_values(text: str) -> dict[str, Any]:
    """Return the fields that a TOML text sets, unchecked."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"this is not valid TOML: {error}") from error


def recipe_toml(recipe: Recipe, comments: bool = False) -> str:
    """Return a recipe as TOML, one line per field that applies to its data; with comments, ready to edit."""
    lines = []
    for name, item in FIELDS.items():
        value = getattr(recipe, name)
        if name in (FOR_OTHERS if recipe.dataset == "own" else FOR_OWN) and value == item.default:
            continue
        if comments and name in ("num_experts", "lambdas") and not value:
            continue  # the two decide each other: printed below, as they are in force
        lines.append(f"{name} = {_toml(value)}" + (f"  # {item.metadata['doc']}" if comments else ""))
        if comments and name == "network" and not recipe.lambdas:
            lines.append(f"lambdas = {_toml(recipe.expert_lambdas)}  # {FIELDS['lambdas'].metadata['doc']}")
    return "\n".join(lines) + "\n"


def parse(name: str, text: str) -> Any:
    """Return a field's value from text, as the command line gives it."""
    return parsed(name, TYPES[name], text)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(part)}" for name, part in value.items()) + "}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # TOML's basic strings escape as JSON's do
    return repr(value)
