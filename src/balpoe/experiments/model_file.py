"""Trained models in one file: weights with all that it takes to use them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.image_files import Samples, decoded
from balpoe.errors import UserError
from balpoe.evaluation.deployment_prior import target_prior as deployment_prior
from balpoe.evaluation.forward import forward_in_blocks, logits_of, network_costs
from balpoe.evaluation.image_views import logits_of_views, with_views
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.build import build_network
from balpoe.experiments.recipe import Recipe, recipe_toml, toml_values, updated
from balpoe.experiments.run_paths import run_path
from balpoe.files import read_text, write_file
from balpoe.method.ensemble import product_of_experts, shift_prior, source_prior
from balpoe.method.expert_calibration import ExpertCalibration, read_calibration, training_offsets
from balpoe.networks import ExpertNetwork, merged
from balpoe.networks.adapters import has_adapters
from balpoe.networks.frozen_weights import check_frozen, frozen_digest

__all__ = ["Model", "about_of", "described", "description", "load", "model_path", "save_model"]

FORMAT = 1
PREDICTED_AT_ONCE = 256  # in one forward pass
PLACE_OF_WEIGHTS = (
    "put the weights that it was trained with beside it, or name them (--weights, or balpoe.load(..., weights=FILE))"
)


@dataclass(frozen=True, eq=False)
class Model:
    """A trained network with its classes, its preprocessing and the priors behind its logits.

    >>> from balpoe import expert_network
    >>> network = expert_network("mlp", num_classes=2, num_experts=3, num_features=4)
    >>> counts, prior, lambdas = torch.tensor([90, 10]), torch.tensor([0.9, 0.1]), torch.tensor([1.0, 0.0, -1.0])
    >>> model = Model(network, ("common", "rare"), counts, Preprocessing((4,)), prior, lambdas, Recipe())
    >>> model.predict(torch.zeros(5, 4), target_prior=[0.5, 0.5]).sum(dim=1).round(decimals=3)
    tensor([1., 1., 1., 1., 1.])
    """

    network: ExpertNetwork
    class_names: tuple[str, ...]
    class_counts: Tensor
    """Training samples of each class."""
    preprocessing: Preprocessing
    train_prior: Tensor
    lambdas: Tensor | None
    recipe: Recipe = field(repr=False)
    source_prior: Tensor | None = None
    """Prior under which the ensemble's logits are posteriors; of lambdas, where there are any. None without them: the
    logits are no posterior, and cannot be adjusted to another prior."""
    calibration: ExpertCalibration | None = None
    """What samples outside of training gave, or a known temperature; `predict` applies it."""
    default_prior: Tensor | None = None
    """Deployment prior of `predict` where none is given; None: `source_prior`."""

    def __post_init__(self) -> None:
        if self.lambdas is not None:
            object.__setattr__(self, "source_prior", source_prior(self.train_prior, self.lambdas))

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def prior(self) -> Tensor:
        """Old name of `train_prior`."""
        return self.train_prior

    def predict(self, images: Any, target_prior: Any = None, *, views: str = "") -> Tensor:
        """Return the probability of each class, (samples, classes), for raw samples.

        Args:
            images: One image or a list of them, of any size: a path, what Pillow has opened, or a uint8 array (height,
                width, 3) or (height, width). Or samples as the network takes them, in one tensor or array: uint8
                (samples, channels, height, width) of the model's size, or float features (samples, features).
            target_prior: Deployment prior, as for `balpoe.evaluate`; by default `default_prior`, or what the ensemble
                is made for.
            views: Views of each image over which log-probabilities are averaged: "flips", "five-crops" or "ten-crops".
        """
        logits = product_of_experts(self.calibrated(self.expert_logits(images, views)))
        target_prior = self.default_prior if target_prior is None else target_prior
        if target_prior is not None:
            if self.source_prior is None:
                raise UserError(
                    f"the logits of method {self.recipe.method} are no posterior, so that they cannot be adjusted to a "
                    "prior; leave target_prior out"
                )
            logits = shift_prior(logits, deployment_prior(target_prior, self), self.source_prior)
        return logits.softmax(dim=1)

    def expert_logits(self, images: Any, views: str = "") -> Tensor:
        """Return expert logits (samples, experts, classes) for raw samples and views, as `predict` takes them.

        They are as the network gives them; `calibrated` makes of them what `predict` uses.
        """
        if not views:
            return self.logits_of_blocks(self.sample_blocks(images))
        viewed, larger = with_views(self.network, self.preprocessing, views)
        if self._are_samples(images):
            return forward_in_blocks(viewed, self.preprocessing, self.sample_blocks(images))
        return forward_in_blocks(viewed, larger, replace(self, preprocessing=larger).sample_blocks(images))

    def logits_of_blocks(self, blocks: Iterable[Tensor]) -> Tensor:
        """Return expert logits, as the network gives them, of blocks of raw samples of the model's size."""
        return forward_in_blocks(self.network, self.preprocessing, blocks)

    def calibrated(self, expert_logits: Tensor) -> Tensor:
        """Return expert logits as the calibration makes them; as they are without one."""
        if self.calibration is None:
            return expert_logits
        offsets = training_offsets(self.train_prior, self.lambdas, self.source_prior)
        return self.calibration(expert_logits, self.train_prior, offsets)

    def _are_samples(self, images: Any) -> bool:
        """Whether images are as the network takes them, in one tensor or array."""
        size = tuple(self.preprocessing.size)
        return isinstance(images, np.ndarray | Tensor) and size in (tuple(images.shape), tuple(images.shape[1:]))

    def sample_blocks(self, images: Any) -> Iterator[Tensor]:
        """Yield raw samples of the model's size, of images or features as `predict` takes them, block by block."""
        size = tuple(self.preprocessing.size)
        if self._are_samples(images):
            samples = torch.as_tensor(images)
            yield from (samples if samples.shape[1:] == size else samples[None]).split(PREDICTED_AT_ONCE)
            return
        arrays = isinstance(images, np.ndarray) and images.ndim == 4
        several = list(images) if isinstance(images, list | tuple) or arrays else [images]
        if len(size) != 3 or not several or any(isinstance(each, int | float | Tensor) for each in several):
            got = f" of shape {tuple(images.shape)}" if hasattr(images, "shape") else ""
            raise UserError(
                f"predict wants samples of shape {size} in one tensor or array"
                + (", or images (paths, Pillow's, arrays), one or a list" if len(size) == 3 else "")
                + f", but got {type(images).__name__}{got}"
            )
        for start in range(0, len(several), PREDICTED_AT_ONCE):
            chosen = several[start : start + PREDICTED_AT_ONCE]
            yield torch.stack([decoded(each, self.preprocessing) for each in chosen])

    def predictions(self, data: Samples, expert_logits: Tensor | None = None, *, views: str = "") -> Predictions:
        """Return the expert logits of labelled data, for `balpoe.evaluate`.

        Args:
            data: Labelled samples.
            expert_logits: The network's, where they are known already; the samples may then be a trunk's features.
            views: Views of each image, as for `predict`.
        """
        if expert_logits is None and views:
            expert_logits = logits_of_views(self.network, data, views, workers=self.recipe.workers)
        elif expert_logits is None:
            expert_logits = self._logits_of(data)
        return Predictions(
            expert_logits, data.targets, self.class_counts, self.lambdas, self.class_names, self.train_prior,
            source_prior=self.source_prior, calibration=self.calibration, groups=data.groups,
            **self.costs(expert_logits),
        )  # fmt: skip

    def _logits_of(self, data: Samples) -> Tensor:
        return logits_of(self.network, data, workers=self.recipe.workers)

    def costs(self, expert_logits: Tensor) -> dict[str, Any]:
        """Return what predictions say of the network's size and work, by the names of their fields.

        Args:
            expert_logits: Its expert logits of some samples.
        """
        example = torch.zeros(1, *self.preprocessing.size, device=next(self.network.parameters()).device)
        return network_costs(self.network, expert_logits, example)


def save_model(path: str | Path, model: Model, *, half: bool = False, whole: bool = False) -> None:
    """Write a model as safetensors; of a network with adapters, only what was trained and its backbone's digest.

    Args:
        path: Path of the file.
        model: Model to write.
        half: Whether its parameters are kept in float16; its statistics are in float32.
        whole: Whether a backbone with adapters is written, too, so that the file can be used without it; changes of
            low rank are then part of its weights (`balpoe.networks.merged`).
    """
    from safetensors.torch import save

    adapted = model.recipe.tune == "adapters"
    merges = adapted and (whole or not has_adapters(model.network))
    network = merged(model.network) if merges else model.network
    parameters = {name for name, _ in network.named_parameters()}
    backbone = _backbone(network) if adapted and not merges else {}
    weights = {
        name: (tensor.half() if half and name in parameters else tensor).contiguous().cpu()
        for name, tensor in network.state_dict().items()
        if name not in backbone
    }
    about = {
        "format": FORMAT,
        **description(model),
        **({"backbone": frozen_digest(network.trunk)} if backbone else {}),
        **({"merged": True} if merges else {}),
    }
    # One entry: with two, safetensors would write them in any order, and the same model as different bytes.
    data = save(weights, {"balpoe": json.dumps(about, ensure_ascii=False)})
    write_file(Path(path), lambda stream: stream.write(data))


def description(model: Model) -> dict[str, Any]:
    """Return what a file says of a model beside its weights, as JSON takes it; `described` reads it."""
    return {
        "class_names": model.class_names,
        "class_counts": model.class_counts.tolist(),
        "preprocessing": asdict(model.preprocessing),
        "train_prior": model.train_prior.tolist(),
        "lambdas": _numbers(model.lambdas),
        "source_prior": _numbers(model.source_prior),
        "calibration": model.calibration and asdict(model.calibration),
        "recipe": recipe_toml(model.recipe.without_places()),
    }


def described(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Model`, but for the network, of what `description` made; garbled ones raise errors.

    Args:
        about: Description, as JSON gave it.
    """
    statistics: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else {"resize": int, "interpolation": str}[name](value)
        for name, value in about["preprocessing"].items()
    }
    prior, lambdas, source = (_tensor(about[name]) for name in ("train_prior", "lambdas", "source_prior"))
    return {
        "class_names": tuple(about["class_names"]),
        "class_counts": torch.tensor(about["class_counts"]),
        "preprocessing": Preprocessing(**statistics),
        "train_prior": prior,
        "lambdas": lambdas,
        "recipe": updated(Recipe(), toml_values(about["recipe"])),
        "source_prior": source,
        "calibration": read_calibration(about.get("calibration")),
    }


def model_path(path: str | Path) -> Path:
    """Return the file of a model, or say why there is none.

    Args:
        path: A model's file, or a run, as `load` takes it.
    """
    path = run_path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    seeds = sorted(each for each in path.glob("seed-*/model.safetensors") if each.parent.suffix == "")
    if len(seeds) > 1:
        raise UserError(f"{path} holds {len(seeds)} runs; give one of them, such as {seeds[0].parent}")
    file = seeds[0] if seeds else file
    if file.is_file():
        return file
    started = [path, *(each for each in sorted(path.glob("seed-*")) if each.suffix == "")]
    for run in started:
        if (run / "recipe.toml").is_file() and not (run / "evaluation.json").exists():
            raise UserError(f"{run} is a run that is not finished; continue it with the command that began it")
    raise UserError(f"there is no model {file}; give a run, or a .safetensors or .onnx file")


def load(path: str | Path, weights: str | Path = "") -> Model:
    """Return the model of a run or a file; `balpoe.load` adds decisions to it. Nothing in the file is executed.

    Args:
        path: A model's file, or a run, by its folder, its name or "latest".
        weights: File of the backbone's weights, for a model that holds adapters alone; by default where they were in
            training, or beside the model.
    """
    from safetensors import SafetensorError, safe_open

    file = model_path(path)
    try:
        with safe_open(file, framework="pt") as opened:
            about = about_of(file, opened.metadata() or {}, FORMAT, kind="a model", verb="train")
            tensors = {name: opened.get_tensor(name).float() for name in opened.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise UserError(f"{file} is not a whole safetensors file ({error}); fetch or train it again") from error
    backbone = _with_backbone(file, about, str(weights)) if about.get("backbone") else None
    try:
        fields = described(about)
        network = backbone or _built(fields["recipe"], about, trained=True)
        network = merged(network) if about.get("merged") else network
        state = network.state_dict()
        tensors = {**(_backbone(network) if backbone else {}), **tensors}
        network.load_state_dict({name: tensors[name].to(tensor.dtype) for name, tensor in state.items()})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{file} does not describe a network of this version: {str(error).splitlines()[0]}") from error
    return Model(network.eval(), **fields)


def _built(recipe: Recipe, about: Mapping[str, Any], trained: bool) -> ExpertNetwork:
    size = tuple(about["preprocessing"]["size"])
    return build_network(recipe, len(about["class_names"]), size, trained=trained)


def _backbone(network: ExpertNetwork) -> dict[str, Tensor]:
    """The weights of a trunk with adapters that are not theirs, by name."""
    frozen = (item for item in network.trunk.named_parameters() if not item[1].requires_grad)
    return {f"trunk.{name}": parameter.detach() for name, parameter in frozen}


def _with_backbone(file: Path, about: Mapping[str, Any], weights: str) -> ExpertNetwork:
    """The network of a model that holds adapters alone, its backbone as in training."""
    try:
        recipe = updated(Recipe(), toml_values(about["recipe"]))
        weights = weights or _place_of_weights(file, recipe.weights)
        network = _built(updated(recipe, {"weights": weights}), about, trained=False)
    except UserError as error:
        raise UserError(f"{file} holds adapters without their backbone: {error}") from error
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{file} does not describe a network of this version: {str(error).splitlines()[0]}") from error
    check_frozen(frozen_digest(network.trunk), str(about["backbone"]), str(file), PLACE_OF_WEIGHTS)
    return network


def _place_of_weights(file: Path, name: str) -> str:
    """Where the weights of a recipe are now: where its run had them, beside the model, or here."""
    if name in ("", "pretrained"):
        return name
    run = file.with_name("recipe.toml")
    there = updated(Recipe(), toml_values(read_text(run))).weights if run.is_file() else name
    found = next((path for path in (Path(there), file.with_name(name), Path(name)) if path.is_file()), None)
    if found is None:
        raise UserError(f"there is no {name} beside it; {PLACE_OF_WEIGHTS}")
    return str(found)


def _numbers(values: Tensor | None) -> Any:
    return None if values is None else values.tolist()


def _tensor(values: Any) -> Any:
    return None if values is None else torch.tensor(values)


def about_of(path: Path, metadata: Mapping[str, str], reads: int, *, kind: str, verb: str) -> dict[str, Any]:
    """Return what a file's metadata say of the model in it, or refuse the file.

    Args:
        path: Path of the file, for messages.
        metadata: Its metadata.
        reads: Number of the format that is read.
        kind: What it should be, such as "a model".
        verb: Command that writes such files.
    """
    try:
        about: dict[str, Any] = json.loads(metadata["balpoe"])
        found = about["format"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise UserError(f"{path} is not {kind} of balpoe; give one that `balpoe {verb}` wrote") from None
    if found != reads:
        raise UserError(
            f"{path} is {kind} of format {found!r}, but this balpoe reads {reads}; {verb} or fetch it again"
        )
    return about
