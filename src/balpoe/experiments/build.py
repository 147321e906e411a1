"""From a recipe to objects: the only place where strings become networks, losses, data and schedules."""

import functools
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.baselines.catalogue import checked_settings, load_method
from balpoe.baselines.method import MethodInputs, MethodLoss, Stage
from balpoe.data.augment.operations import (
    AUGMENTATIONS,
    CROPS_WHILE_DECODING,
    AlternatingFlip,
    Flip,
    Operation,
    SmallAtFirst,
)
from balpoe.data.cifar import CIFAR_PREPROCESSING
from balpoe.data.dataset import Dataset, Preprocessing
from balpoe.data.loading.decode import ResizedCrop
from balpoe.data.loading.image_files import PictureFiles, Samples
from balpoe.data.registry import DATASETS, DatasetEntry, load_data_and_rest, load_files
from balpoe.data.user.groups import group_numbers
from balpoe.data.user.load import UserData, load_user_data
from balpoe.data.user.split import split_rows
from balpoe.errors import UserError
from balpoe.experiments.cached_features import feature_data
from balpoe.experiments.class_mean_start import start_from_class_means
from balpoe.experiments.recipe import FOR_FEATURES, RANDOM_AT_FIRST, Recipe, updated
from balpoe.experiments.whitened_start import start_whitened
from balpoe.files import holds_features
from balpoe.method.ensemble import source_prior
from balpoe.method.priors import class_prior
from balpoe.networks import ExpertNetwork, expert_network
from balpoe.networks.adapters import EXAMPLES, add_adapters
from balpoe.networks.resnet_cifar import start_residuals
from balpoe.progress import CountProgress
from balpoe.training import schedules
from balpoe.training.distributed import chosen_device
from balpoe.training.random_state import first_weights
from balpoe.training.settings import FitSettings

__all__ = [
    "Assembly",
    "DataParts",
    "assemble",
    "benchmark_data",
    "build_network",
    "check_fits",
    "data_parts",
    "default_batch",
    "default_epochs",
    "own_data",
    "recipe_data",
    "takes_images",
    "with_size_of",
]


READING = threading.Lock()
LEAST_EPOCHS, LEAST_STEPS = 30, 600  # of own data
SMALLEST_BATCH = 16
OUTSIDE = 5000  # labelled samples outside of a benchmark's training set that calibrate, all classes together


class DataParts(NamedTuple):
    """The samples of a recipe."""

    train: Samples
    test: Samples
    held_out: Samples | None = None
    """Labelled samples outside of training, to calibrate by; None where cross-fitting finds them, or none are asked."""
    groups: Tensor | None = None
    """Number of each training sample's group, (samples,), which stays whole; None where each is its own."""


@dataclass(frozen=True)
class Assembly:
    """The objects that a recipe stands for."""

    network: ExpertNetwork
    trained: ExpertNetwork
    """What `fit` changes: the network, or its head on features of a frozen trunk."""
    loss: MethodLoss
    train: Samples
    """What `trained` is given."""
    test: Samples
    held_out: Samples | None
    groups: Tensor | None
    preprocessing: Preprocessing
    """Preprocessing of what the whole network is given."""
    train_prior: Tensor
    lambdas: Tensor | None
    source_prior: Tensor | None
    settings: FitSettings
    stages: tuple[Stage, ...] = ()
    """What is trained after the first training."""


def assemble(recipe: Recipe, progress: bool = False) -> Assembly:
    """Turn a recipe's strings and numbers into objects: the only place where that happens.

    Args:
        recipe: Strings and numbers.
        progress: Whether to show how far it is with what takes long, such as the features of a frozen trunk.
    """
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    train, test, held_out, groups = data_parts(recipe, progress)
    check_fits(recipe, takes_images(recipe, train))
    if recipe.epochs == 0:
        heads = recipe.tune == "head" or recipe.network in FOR_FEATURES
        batch_size = default_batch(len(train), recipe.batch_size) if heads else recipe.batch_size
        recipe = updated(recipe, {"batch_size": batch_size, "epochs": default_epochs(len(train), batch_size)})
    early = _early(recipe, train)
    train_prior = class_prior(train.class_counts, method=recipe.prior_method, smoothing=recipe.smoothing)
    inputs = MethodInputs(
        train.class_counts, train_prior, recipe.expert_lambdas, recipe.experts, cosine_scale=recipe.cosine_scale
    )
    loss, lambdas, source = method_parts(recipe, inputs)
    preprocessing = train.preprocessing
    network = trained = build_network(recipe, len(train.class_names), preprocessing.size)
    if recipe.first_layer == "whitened":
        start_whitened(network, train)
    if recipe.residual_start != 1:
        start_residuals(network, recipe.residual_start)
    if recipe.tune == "head":
        trained, (train, test, held_out) = _on_features(recipe, network, (train, test, held_out), progress)
    if recipe.head_start == "class-means" or (recipe.head_start == "auto" and recipe.tune == "adapters"):
        with CountProgress("class means", len(train), progress) as count:
            place: dict[str, Any] = {"device": chosen_device(recipe.device), "workers": recipe.workers}
            start_from_class_means(trained, train, **place, progress=count)
    method, own = load_method(recipe.method), checked_settings(recipe.method, recipe.method_settings)
    crop = (ResizedCrop(),) if recipe.augmentation in CROPS_WHILE_DECODING else ()
    settings = recipe.fit_settings(
        schedule=_schedule(recipe),
        augmentation=(*crop, *_operations(recipe), *early),
        second_view=(*AUGMENTATIONS[method.second_view], *early) if method.second_view else None,
        mixing=method.mixing(**own),
    )
    stages = tuple(method.stages(inputs, **own))
    return Assembly(
        network, trained, loss, train, test, held_out, groups, preprocessing, train_prior, lambdas, source, settings,
        stages,
    )  # fmt: skip


def takes_images(recipe: Recipe, train: Samples) -> bool:
    """Return whether what is trained is given images, and not features of these or of anything else."""
    return len(train.preprocessing.size) == 3 and recipe.tune != "head"


def check_fits(recipe: Recipe, images: bool) -> None:
    """Refuse a method or a mixing that has no use for some samples, before anything is trained.

    Args:
        recipe: Recipe that names the method.
        images: Whether the samples are images, which can be varied and cut; features cannot.
    """
    method = load_method(recipe.method)
    mixing = method.mixing(**checked_settings(recipe.method, recipe.method_settings))
    needs = {
        "compares two views of an image": bool(method.second_view) or method.test_views is not None,
        "pastes parts of images": mixing is not None and mixing.cuts,
    }
    for what, needed in needs.items():
        if needed and not images:
            other = ", or set tune to full" if recipe.tune == "head" else ""
            raise UserError(f"{recipe.method} {what}, which features do not have; choose another method{other}")
    if recipe.cutmix_probability > 0 and not images:
        raise UserError("CutMix pastes parts of images, which features do not have; set cutmix_probability to 0")


def method_parts(recipe: Recipe, inputs: MethodInputs) -> tuple[MethodLoss, Tensor | None, Tensor | None]:
    """Return the loss of a recipe's method, its lambdas, if it has any, and the prior of the product's logits."""
    method, own = load_method(recipe.method), checked_settings(recipe.method, recipe.method_settings)
    loss = method.loss(inputs, **own)
    if method.lambdas is None:
        return loss, None, method.source_prior(inputs, **own)
    lambdas = method.lambdas(inputs, **own)
    return loss, lambdas, source_prior(inputs.train_prior, lambdas)


def _operations(recipe: Recipe) -> tuple[Operation, ...]:
    operations = AUGMENTATIONS[recipe.augmentation]
    if not recipe.alternate_flips:
        return operations
    if Flip() not in operations:
        raise UserError(f"augmentation {recipe.augmentation} mirrors no images; leave --alternate-flips out")
    return tuple(AlternatingFlip() if each == Flip() else each for each in operations)


def _early(recipe: Recipe, train: Samples) -> tuple[Operation, ...]:
    """What makes the images of the first epochs smaller, if the recipe wants that."""
    if not recipe.early_image_size:
        return ()
    if not isinstance(train, Dataset) or len(train.preprocessing.size) != 3:
        raise UserError("early_image_size is for images held in memory, such as CIFAR's; leave it out")
    if recipe.early_image_size >= (side := min(train.preprocessing.size[1:])):
        raise UserError(
            f"early_image_size must be below {side}, the images' own size, but is {recipe.early_image_size}"
        )
    return (SmallAtFirst(recipe.early_image_size, round(recipe.early_fraction * recipe.epochs)),)


def _schedule(recipe: Recipe) -> schedules.Schedule:
    kinds: dict[str, Callable[[], schedules.Schedule]] = {
        "multistep": lambda: schedules.Multistep(recipe.milestones, warmup_epochs=recipe.warmup_epochs),
        "cosine": lambda: schedules.Cosine(recipe.warmup_epochs),
        "linear": lambda: schedules.Linear(recipe.warmup_epochs),
        "constant": lambda: schedules.Constant(recipe.warmup_epochs),
    }
    return kinds[recipe.schedule]()


def default_epochs(samples: int, batch_size: int, least: int = 0) -> int:
    """Return the number of passes over own data: few samples make few steps, and so get more passes.

    >>> default_epochs(200, 25), default_epochs(100_000, 128), default_epochs(100_000, 128, least=20)
    (75, 30, 20)
    """
    return max(least or LEAST_EPOCHS, math.ceil(LEAST_STEPS / math.ceil(samples / batch_size)))


def default_batch(samples: int, most: int) -> int:
    """Return the samples of a step on own features: an eighth of few samples, so that they make more steps.

    >>> default_batch(200, 128), default_batch(100_000, 128)
    (25, 128)
    """
    return min(most, max(SMALLEST_BATCH, samples // 8))


def recipe_data(recipe: Recipe, progress: bool = False) -> tuple[Samples, Samples]:
    """Return a recipe's training and test data; what it calibrates by, and training goes without, is not set apart."""
    return data_parts(updated(recipe, {"calibrate": False}), progress)[:2]


def data_parts(recipe: Recipe, progress: bool = False) -> DataParts:
    """Return a recipe's training and test data, and what it calibrates by."""
    entry = DATASETS.get(recipe.dataset)
    if entry and entry.in_memory:
        train, test, outside = _benchmark_parts(recipe)
        if recipe.calibrate and outside is None:
            also = f" and validation {recipe.validation}" if recipe.validation else ""
            raise UserError(
                f"--calibrate asks labelled samples outside of training, but none of {recipe.dataset} are left at "
                f"imbalance_ratio {recipe.imbalance_ratio:g}{also}; add --no-calibrate, or take a larger ratio"
            )
        return DataParts(train, test, outside if recipe.calibrate else None)
    if recipe.validation:
        names = ", ".join(name for name, entry in DATASETS.items() if entry.in_memory)
        raise UserError(f"--validation is for {names}; give other data a test part of their own")
    if entry is None:
        return _own_parts(recipe, own_data(recipe, progress))
    train_files, test_files, further = load_files(
        recipe.dataset, recipe.data_root or None, _image_preprocessing(recipe, entry),
        imbalance_ratio=recipe.imbalance_ratio, profile=recipe.profile,
    )  # fmt: skip
    if recipe.calibrate and further is None:
        raise UserError(f"--calibrate does not know labelled images outside of {recipe.dataset}; leave it out")
    return DataParts(train_files, test_files, further if recipe.calibrate else None)


def _own_parts(recipe: Recipe, found: UserData) -> DataParts:
    """Own data; a network that is trained as a whole goes without some of them, to be calibrated by."""
    groups = found.train_groups if found.train_groups is not None else _copies(found.train)
    parts = DataParts(found.train, found.test, found.validation if recipe.calibrate else None, groups)
    if not recipe.calibrate or parts.held_out is not None or recipe.tune == "head" or recipe.network in FOR_FEATURES:
        return parts
    names = None if groups is None else [str(number) for number in groups.tolist()]
    kept, held_out = split_rows(found.train.targets, names, test_fraction=recipe.held_out, seed=1)
    still = None if groups is None else groups[kept]
    return DataParts(found.train.subset(kept), found.test, found.train.subset(held_out), still)


def _copies(train: Samples) -> Tensor | None:
    """A number for each image, the same for copies of one file; None for samples without files."""
    return group_numbers(train.digests) if isinstance(train, PictureFiles) else None


def benchmark_data(recipe: Recipe) -> tuple[Dataset, Dataset]:
    """Return a recipe's data set in memory: read once for trainings that share it, not to be changed."""
    return _benchmark_parts(recipe)[:2]


def _benchmark_parts(recipe: Recipe) -> tuple[Dataset, Dataset, Dataset | None]:
    """The same, and images of the pool that its long-tailed subset leaves out, if any: further labelled data."""
    settings = ("imbalance_ratio", "profile", "download", "validation")
    place = os.getcwd(), os.environ.get("BALPOE_DATA")  # what it depends on where the same root is
    resized = recipe.image_size > 0 and recipe.network not in FOR_FEATURES
    wanted = _image_preprocessing(recipe) if resized else None
    with READING:
        return _last_read(
            place, recipe.dataset, recipe.data_root or None, wanted,
            **{name: getattr(recipe, name) for name in settings},
        )  # fmt: skip


@functools.lru_cache(maxsize=1)
def _last_read(
    place: object, name: str, root: str | None, wanted: Preprocessing | None, **settings: Any
) -> tuple[Dataset, Dataset, Dataset | None]:
    train, test, rest = load_data_and_rest(name, root, **settings, rest=OUTSIDE)
    if wanted is None:
        return train, test, rest
    return train.resized(wanted), test.resized(wanted), rest and rest.resized(wanted)


def own_data(recipe: Recipe, progress: bool = False, look_for_series: bool = False) -> UserData:
    """Return somebody's own data, as a recipe says how to take them.

    Args:
        recipe: Recipe that says where they are.
        progress: Whether to show how far it is.
        look_for_series: Whether to look for series where nothing is said of groups: once is enough.
    """
    if not recipe.data_root:
        raise UserError("own data are where --data-root says: a folder of images, a table of paths, or features")
    features = holds_features(recipe.data_root)
    if features != (recipe.network in FOR_FEATURES):
        wanted = "features want --network head or mlp" if features else "images want another --network"
        raise UserError(f"{recipe.data_root}: {wanted}, but it is {recipe.network}")
    return load_user_data(
        recipe.data_root, None if features else _image_preprocessing(recipe),
        group=recipe.group, test_fraction=recipe.test_fraction, skip_unreadable=recipe.skip_unreadable,
        look_for_series=look_for_series, progress=progress,
    )  # fmt: skip


def build_network(recipe: Recipe, num_classes: int, size: tuple[int, ...], trained: bool = False) -> ExpertNetwork:
    """Return a recipe's network with the first weights of its seed, for samples of a size.

    Args:
        recipe: Recipe that names the network.
        num_classes: Number of classes.
        size: Size of a sample.
        trained: Whether its weights will be those of a file, so that first ones need not be fetched.
    """
    settings: dict[str, Any] = {"width": recipe.width, "split": recipe.split}
    if recipe.tune == "adapters" and recipe.network in RANDOM_AT_FIRST:
        raise UserError(
            f"network {recipe.network} has no blocks to adapt; choose one that has, such as {EXAMPLES}, or --tune full"
        )
    for name, without in (("drop_path", "--drop-path 0"), ("gradient_checkpointing", "--no-gradient-checkpointing")):
        if getattr(recipe, name) and recipe.network in RANDOM_AT_FIRST:  # maybe by a preset
            raise UserError(f"{name} is for models of timm, but the network is {recipe.network}; add {without}")
    if recipe.network == "mlp":
        settings["num_features"] = math.prod(size)
    elif recipe.network == "head":
        settings = {"num_features": math.prod(size), "hidden": recipe.width[0]}
    elif recipe.network == "resnet32":
        settings["in_channels"] = size[0]
    else:
        settings = {
            "weights": "" if trained else recipe.weights, "split": recipe.split, "hidden": recipe.width[0],
            "image_size": size[-1], "drop_path": recipe.drop_path,
            "gradient_checkpointing": recipe.gradient_checkpointing,
        }  # fmt: skip
    with first_weights(recipe.seed):
        network = expert_network(
            recipe.network, num_classes=num_classes, num_experts=recipe.experts,
            cosine_scale=recipe.cosine_scale, **settings,
        )  # fmt: skip
        if recipe.tune == "adapters":
            add_adapters(network, recipe.adapter, size=recipe.adapter_size, split=recipe.adapter_split)
        load_method(recipe.method).extend(network, **checked_settings(recipe.method, recipe.method_settings))
    return network


def _image_preprocessing(recipe: Recipe, entry: DatasetEntry | None = None) -> Preprocessing:
    """How a network wants images from files; a data set of the registry has a say in it."""
    share = entry.crop_share if entry else 1.0
    if recipe.network == "resnet32":
        size = recipe.image_size or 32
        return replace(CIFAR_PREPROCESSING, size=(3, size, size), resize=round(size / share))
    from balpoe.networks.timm_backbones import backbone_preprocessing

    wanted = backbone_preprocessing(recipe.network, recipe.image_size)
    mean, std = (entry and entry.statistics) or (wanted.mean, wanted.std)
    interpolation = entry.interpolation if entry else wanted.interpolation
    return Preprocessing(wanted.size, mean, std, round(wanted.size[-1] / share), interpolation)


def with_size_of(recipe: Recipe, images: PictureFiles) -> PictureFiles:
    """Return own images as another recipe wants them: of its network's size, normalised by its numbers.

    Args:
        recipe: Recipe of own images.
        images: The images, as any recipe wants them.
    """
    same = images.subset(torch.arange(len(images)))
    same.preprocessing = _image_preprocessing(recipe)
    return same


def _on_features(
    recipe: Recipe, network: ExpertNetwork, parts: "Sequence[Samples | None]", progress: bool
) -> "tuple[ExpertNetwork, list[Any]]":
    """The head of a frozen network, and its data: features that are computed once."""
    if recipe.augmentation != "none":
        raise UserError("features that are computed once cannot be varied; use --augmentation none, or --tune full")
    network.freeze_trunk()
    settings: dict[str, Any] = {"device": chosen_device(recipe.device), "workers": recipe.workers}
    images = [part for part in parts if part is not None]
    with CountProgress("features", sum(map(len, images)), progress) as count:
        found = iter([feature_data(network, part, **settings, progress=count) for part in images])
        return network.head(), [None if part is None else next(found) for part in parts]
