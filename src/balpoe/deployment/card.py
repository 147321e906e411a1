"""A model card, and a folder that is ready to be published."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import balpoe
from balpoe.deployment.card_metadata import card_metadata, yaml_lines
from balpoe.deployment.card_scores import CardScores
from balpoe.deployment.card_text import card_text, data_name
from balpoe.deployment.loaded_model import Model
from balpoe.deployment.onnx_file import read_onnx
from balpoe.errors import UserError
from balpoe.evaluation.catalogue import METRICS
from balpoe.experiments.model_file import description, save_model
from balpoe.experiments.recipe import recipe_toml
from balpoe.experiments.run_folder import Run
from balpoe.files import write_file, write_json, write_text
from balpoe.networks.frozen_weights import weights_digest

__all__ = ["write_card"]

README = "README.md"
EXPORTED = "model.onnx"
KINDS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced_accuracy",
    "many": "accuracy_many_shot",
    "medium": "accuracy_medium_shot",
    "few": "accuracy_few_shot",
    "ece": "expected_calibration_error",
    "nll": "negative_log_likelihood",
    "brier": "brier_score",
}
"""From our name of a metric to its type in the metadata, where it stands without context."""


def write_card(
    model: Model,
    folder: str | Path,
    *,
    name: str = "",
    license: str = "unknown",  # noqa: A002 (the Hub's word)
) -> list[str]:
    """Write a model with its card into a folder, ready to upload; return the names of the files. Needs no network.

    The card comes last: where it is, the folder is whole.

    Args:
        model: Model of `balpoe.load`: of a run, whose saved predictions give the scores, or of a file by itself.
        folder: Folder to write, which has no card yet.
        name: Name of the model; by default that of its run, or of the folder.
        license: The Hub's name of a licence, such as mit.

    >>> import tempfile
    >>> import torch
    >>> from balpoe import Preprocessing, expert_network
    >>> from balpoe.experiments.recipe import Recipe
    >>> network = expert_network("mlp", num_classes=2, num_experts=1, num_features=4, width=8)
    >>> prior, recipe = torch.tensor([0.9, 0.1]), Recipe(network="mlp", lambdas=(0,), width=(8,))
    >>> model = Model(network, ("oak", "ash"), torch.tensor([9, 1]), Preprocessing((4,)), prior, torch.zeros(1), recipe)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_card(model, place)
    ...     balpoe.load(place).class_names
    ['model.safetensors', 'recipe.toml', 'config.json', 'README.md']
    ('oak', 'ash')
    """
    folder = Path(folder)
    if not list(model.network.parameters()):
        raise UserError("a card stands beside weights of balpoe, but this is an ONNX file; give the run that it is of")
    if (folder / README).exists():
        raise UserError(f"{folder / README} is there already, perhaps with changes of yours; choose another folder")
    run = Run(model.run) if model.run is not None and Run(model.run).finished else None
    few, many = model.recipe.shot_groups
    scores = None if run is None else CardScores.of(run.predictions(), (few, many))
    data = data_name(model, "" if run is None else run.recipe().data_root)
    name = name or (folder.resolve().name if run is None else run.folder.resolve().parent.name)
    exported = _exported(model)
    files = _write_model(model, folder, exported is not None)
    text = card_text(
        name, model, scores, data=data, files=files, exported=exported or "", license=license,
        environment=None if run is None else run.environment(),
    )  # fmt: skip
    task = "image-classification" if len(model.preprocessing.size) == 3 else "tabular-classification"
    metadata = card_metadata(name, task, data, _metrics(scores), license=license)
    write_text(folder / README, "\n".join(["---", *yaml_lines(metadata), "---", "", text]))
    return [*files, README]


def _exported(model: Model) -> str | None:
    """What the ONNX file in the folder of a model's run is, if it is one of this model; a warning if it is not."""
    path = None if model.run is None else model.run / EXPORTED
    if path is None or not path.is_file():
        return None
    try:
        _, about = read_onnx(path)
    except UserError as error:
        warnings.warn(f"{EXPORTED} is left out: {error}", stacklevel=3)
        return None
    theirs = about.get("calibration")
    if isinstance(theirs, dict):
        theirs = {"fitted": True, **theirs}  # which files of before do not say
    if about.get("weights") != weights_digest(model.network) or theirs != _calibration(model):
        warnings.warn(f"{EXPORTED} is left out: it is not of the model as it is now; export it again", stacklevel=3)
        return None
    experts, all_of_them = int(about["experts"]), model.network.num_experts
    some = "" if experts == all_of_them else f"{experts} of its {all_of_them} experts, "
    return f"{some}{about['precision']}"


def _calibration(model: Model) -> Any:
    """As a file's metadata have it."""
    return json.loads(json.dumps(description(model)["calibration"]))


def _write_model(model: Model, folder: Path, with_export: bool) -> list[str]:
    """The files beside the card; their names."""
    save_model(folder / "model.safetensors", model, whole=True)
    write_text(folder / "recipe.toml", recipe_toml(model.recipe.without_places()))
    # What the Hub counts downloads by; all that matters stands in the model's own file.
    write_json(folder / "config.json", {"library_name": "balpoe", "balpoe_version": balpoe.__version__})
    files = ["model.safetensors", "recipe.toml", "config.json"]
    if with_export and model.run is not None:
        with open(model.run / EXPORTED, "rb") as source:
            write_file(folder / EXPORTED, lambda stream: shutil.copyfileobj(source, stream))
        files.append(EXPORTED)
    return files


def _metrics(scores: CardScores | None) -> dict[str, tuple[str, float]]:
    """Title and value of each metric that there is."""
    found = {} if scores is None else scores.evaluation.metrics
    return {
        kind: (METRICS[name].label, value) for name, kind in KINDS.items() if (value := found.get(name)) is not None
    }
