"""Trained models in one file: weights with all that it takes to use them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from balpoe.assembly import build_network
from balpoe.data.datasets import Dataset, Preprocessing
from balpoe.ensemble import product_of_experts, shift_prior, source_prior
from balpoe.errors import UserError
from balpoe.files import write_file
from balpoe.networks import ExpertNetwork
from balpoe.predictions import Predictions, forward_in_blocks, predict
from balpoe.recipes import Recipe, recipe_toml, toml_values, updated

__all__ = ["Model", "load", "save_model"]

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Model:
    """A trained network with its classes, its preprocessing and the priors behind its logits.

    >>> from balpoe import expert_network
    >>> network = expert_network("mlp", num_classes=2, num_experts=3, num_features=4)
    >>> counts, prior, lambdas = torch.tensor([90, 10]), torch.tensor([0.9, 0.1]), torch.tensor([1.0, 0.0, -1.0])
    >>> model = Model(network, ("common", "rare"), counts, Preprocessing((4,)), prior, lambdas, Recipe())
    >>> model.predict(torch.zeros(5, 4), target_prior=[0.5, 0.5]).sum(dim=1)
    tensor([1., 1., 1., 1., 1.])
    """

    network: ExpertNetwork
    class_names: tuple[str, ...]
    class_counts: Tensor
    """Of the training set."""
    preprocessing: Preprocessing
    train_prior: Tensor
    lambdas: Tensor
    recipe: Recipe = field(repr=False)

    @property
    def source_prior(self) -> Tensor:
        """The prior under which the ensemble's logits are posteriors."""
        return source_prior(self.train_prior, self.lambdas)

    def predict(self, images: Tensor, target_prior: Any = None) -> Tensor:
        """Return the probability of each class, (samples, classes), for raw samples.

        Args:
            images: uint8 pictures (samples, channels, height, width), or float features.
            target_prior: Of the place of use; by default the one that the ensemble is made for.
        """
        self.network.eval()
        logits = product_of_experts(forward_in_blocks(self.network, self.preprocessing, images))
        if target_prior is not None:
            logits = shift_prior(logits, target_prior, self.source_prior)
        return logits.softmax(dim=1)

    def predictions(self, data: Dataset) -> Predictions:
        """Return the expert logits of labelled data, for `balpoe.evaluate`."""
        return predict(
            self.network, data, class_counts=self.class_counts, lambdas=self.lambdas, train_prior=self.train_prior
        )


def save_model(path: Path, model: Model, *, half: bool = False) -> None:
    """Write a model as safetensors; `half` keeps its parameters in float16, its statistics in float32."""
    from safetensors.torch import save

    parameters = {name for name, _ in model.network.named_parameters()}
    weights = {
        name: (tensor.half() if half and name in parameters else tensor).contiguous().cpu()
        for name, tensor in model.network.state_dict().items()
    }
    about = {
        "format": FORMAT,
        "class_names": model.class_names,
        "class_counts": model.class_counts.tolist(),
        "preprocessing": asdict(model.preprocessing),
        "train_prior": model.train_prior.tolist(),
        "lambdas": model.lambdas.tolist(),
        "source_prior": model.source_prior.tolist(),
        "recipe": recipe_toml(updated(model.recipe, {"data_root": ""})),  # nobody else's business
    }
    # One entry: with two, safetensors would write them in any order, and the same model as different bytes.
    data = save(weights, {"balpoe": json.dumps(about, ensure_ascii=False)})
    write_file(path, lambda stream: stream.write(data))


def load(path: str | Path) -> Model:
    """Return the model of a run's folder, or of one file; the network is in float32, on the CPU, in evaluation mode.

    Nothing in the file is executed.

    >>> load("nowhere.safetensors")
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: there is no model nowhere.safetensors; give the folder of a run or a .safetensors file
    """
    from safetensors import SafetensorError, safe_open

    file = Path(path) / "model.safetensors" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UserError(f"there is no model {file}; give the folder of a run or a .safetensors file")
    try:
        with safe_open(file, framework="pt") as opened:
            about = _about(file, opened.metadata() or {})
            weights = {name: opened.get_tensor(name).float() for name in opened.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise UserError(f"{file} is not a whole safetensors file ({error}); fetch or train it again") from error
    try:
        recipe = updated(Recipe(), toml_values(about["recipe"]))
        size = tuple(about["preprocessing"]["size"])
        network = build_network(recipe, len(about["class_names"]), size)
        state = network.state_dict()
        network.load_state_dict({name: weights[name].to(tensor.dtype) for name, tensor in state.items()})
        statistics = {name: tuple(values) for name, values in about["preprocessing"].items()}
        prior, lambdas = torch.tensor(about["train_prior"]), torch.tensor(about["lambdas"])
        counts, names = torch.tensor(about["class_counts"]), tuple(about["class_names"])
        preprocessing = Preprocessing(**statistics)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{file} does not describe a network of this version: {str(error).splitlines()[0]}") from error
    return Model(network.eval(), names, counts, preprocessing, prior, lambdas, recipe)


def _about(file: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads(metadata["balpoe"])
        found = about["format"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise UserError(f"{file} is not a model of balpoe; give one that `balpoe train` wrote") from None
    if found != FORMAT:
        raise UserError(f"{file} is a model of format {found}, but this balpoe reads {FORMAT}; train or fetch it again")
    return about
