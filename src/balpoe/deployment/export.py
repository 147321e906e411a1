"""Models for other runtimes: an ONNX file, or a program of torch, checked against the model before it is kept."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import balpoe
from balpoe.data.loading.image_files import Samples
from balpoe.deployment.file_check import FileCheck, checked_file
from balpoe.deployment.loaded_model import load
from balpoe.deployment.model import Model
from balpoe.deployment.onnx_file import FORMAT, OPSET, onnx_bytes, require_onnx
from balpoe.deployment.onnx_memory import values_of_a_sample
from balpoe.deployment.onnx_model import onnx_model
from balpoe.deployment.onnx_operators import foreign_operator
from balpoe.deployment.onnx_precision import PRECISIONS, in_half, in_int8
from balpoe.deployment.some_experts import with_experts
from balpoe.deployment.tracing import example_samples, onnx_graph, traced
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.evaluate import evaluate
from balpoe.experiments.model_file import description
from balpoe.files import write_file
from balpoe.networks.frozen_weights import weights_digest

__all__ = ["FORMATS", "Export", "export"]

FORMATS = {"onnx": ".onnx", "torch": ".pt2"}
CHECKED = 16  # random samples that a file is checked on where no others are given
MOST_IMAGES = 512  # of those given: more say nothing new about rounding, or about the range of activations
SCORES = ("accuracy", "balanced_accuracy", "ece")


@dataclass(frozen=True)
class Export:
    """What was written, and how it compares with the model."""

    path: Path
    format: str
    precision: str
    check: FileCheck
    """How far the file's probabilities are from the model's."""
    before: dict[str, float] = field(default_factory=dict)
    """Accuracy, balanced accuracy and ECE of the model, as it was, on labelled samples; empty without any."""
    after: dict[str, float] = field(default_factory=dict)
    """The same of the file."""


def export(
    model: Any,
    path: str | Path,
    *,
    format: str = "",  # noqa: A002 (as --format, which everybody knows)
    precision: str = "fp32",
    experts: Sequence[int] | None = None,
    images: Any = None,
    test: Samples | None = None,
    license: str = "unknown",  # noqa: A002
) -> Export:
    """Write a model as a file for other runtimes, and return how it compares.

    The file goes the whole way from raw samples to probabilities: normalisation, experts, calibration, product, prior.
    Before it is kept, it is run on some samples: in float32 its probabilities must be those of the model.

    Args:
        model: Model of `balpoe.load`, what it takes, or a fitted `BalPoEClassifier`.
        path: File to write, such as model.onnx.
        format: "onnx", or "torch" for a program of `torch.export`; by default as the path ends.
        precision: "fp32"; for ONNX also "fp16", or "int8" with scales that `images` give.
        experts: Numbers of the experts that are kept, from 0; by default all. The prior of the logits follows them.
        images: Samples to check the file with, as `Model.predict` takes them; by default random ones.
        test: Labelled samples, on which the model and the file are scored.
        license: License of the weights, for the metadata.

    >>> import tempfile
    >>> from balpoe import Preprocessing, expert_network
    >>> from balpoe.experiments.recipe import Recipe
    >>> network = expert_network("mlp", num_classes=2, num_experts=3, num_features=4)
    >>> counts, prior, lambdas = torch.tensor([90, 10]), torch.tensor([0.9, 0.1]), torch.tensor([1.0, 0.0, -1.0])
    >>> model = Model(network, ("common", "rare"), counts, Preprocessing((4,)), prior, lambdas, Recipe())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = export(model, f"{folder}/model.onnx")
    ...     rows = torch.randn(5, 4)
    ...     same = torch.allclose(balpoe.load(made.path).predict(rows), model.predict(rows), atol=1e-4)
    >>> same, made.check.difference < 1e-4
    (True, True)
    """
    path = Path(path)
    kind = _format(format, path, precision)
    whole = _model(model)
    kept = whole if experts is None else with_experts(whole, experts)
    samples = _samples(kept, images)
    if precision == "int8" and images is None:
        raise UserError("int8 takes its scales from images, but none are given; give images= some hundred of them")
    program = traced(kept)
    if kind == "onnx":
        about = {**_about(kept, precision, license), "weights": weights_digest(whole.network)}
        data, check, made = _onnx_file(kept, program, path, about, samples)
    else:
        data, made = _torch_file(kept, program, license), kept
        check = checked_file(kept, _outputs_of(program, kept), samples, precision, path)
    before = _scores(whole, test)
    after = _scores(made, test)
    write_file(path, lambda stream: stream.write(data))
    return Export(path, kind, precision, check, before, after)


def _format(given: str, path: Path, precision: str) -> str:
    """The format asked for, which goes with the path and the precision."""
    endings = {ending: name for name, ending in FORMATS.items()}
    kind = given or endings.get(path.suffix, "")
    if kind not in FORMATS:
        if given:
            raise unknown_name("format", given, FORMATS)
        raise UserError(f"{path} ends neither in .onnx nor in .pt2; rename it, or give a format")
    if path.suffix != FORMATS[kind]:
        raise UserError(f"a file of format {kind} must end in {FORMATS[kind]}, but is {path}; rename it")
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if kind == "torch" and precision != "fp32":
        raise UserError(f"precision {precision} is for ONNX files; leave it out, or export as onnx")
    if kind == "onnx":
        require_onnx("onnx", "onnxscript", "onnxruntime")
    return kind


def _model(given: Any) -> Model:
    if isinstance(given, str | Path):
        given = load(given)
    elif hasattr(given, "deployed_model"):  # a classifier of scikit-learn's kind
        given = given.deployed_model()
    if not isinstance(given, Model) or not list(given.network.parameters()):
        what = "an ONNX file, which is exported already" if isinstance(given, Model) else type(given).__name__
        raise UserError(f"export wants a model of balpoe.load, a run or a BalPoEClassifier, but got {what}")
    return given


def _samples(model: Model, images: Any) -> Tensor:
    if images is None:
        return example_samples(model, CHECKED)
    found, rows = [], 0
    for block in model.sample_blocks(images):
        found.append(block)
        rows += len(block)
        if rows >= MOST_IMAGES:
            break
    return torch.cat(found)[:MOST_IMAGES]


def _about(model: Model, precision: str, license: str) -> dict[str, Any]:  # noqa: A002
    log_prior, default = _log_prior(model), model.default_prior
    costs = model.costs(torch.zeros(0, model.network.num_experts, model.num_classes))
    return {
        "format": FORMAT,
        "version": balpoe.__version__,
        "opset": OPSET,
        "precision": precision,
        "license": license,
        "experts": model.network.num_experts,
        "router": getattr(model.network, "router", None) is not None,
        "log_prior": None if log_prior is None else log_prior.tolist(),
        "default_prior": None if default is None else default.tolist(),
        "parameters": costs["parameters"],
        "multiply_adds": costs.get("multiply_adds_of_all", costs["multiply_adds"]),
        **description(model),
    }


def _log_prior(model: Model) -> Tensor | None:
    """The default of the input of that name; None for logits that are no posterior."""
    prior = model.source_prior if model.default_prior is None else model.default_prior
    return None if prior is None else prior.double().log()


def _onnx_file(
    model: Model, program: Any, path: Path, about: dict[str, Any], samples: Tensor
) -> tuple[bytes, FileCheck, Model]:
    """The bytes of the file, how they compare, and the model that they are."""
    proto, precision = onnx_graph(model, program), about["precision"]
    if precision == "fp16":
        proto = in_half(proto)
    elif precision == "int8":
        proto = in_int8(proto, samples)
    data = onnx_bytes(proto, about)
    known = {**json.loads(json.dumps(about)), "values_of_a_sample": _values(proto, path)}
    made = onnx_model(data, known, str(path))
    return data, checked_file(model, made.network.outputs, samples, precision, path), made


def _values(proto: Any, path: Path) -> int:
    """What `balpoe.load` will want to know: a file that it would refuse is not written."""
    try:
        if foreign := foreign_operator(proto.graph):
            raise ValueError(f"it has the operator {foreign!r}, which balpoe does not read")
        return values_of_a_sample(proto.graph, proto.opset_import)
    except ValueError as error:
        raise UserError(f"{path} could not be read again: {error}; it was not written") from error


def _torch_file(model: Model, program: Any, license: str) -> bytes:  # noqa: A002
    stream = io.BytesIO()
    about = json.dumps(_about(model, "fp32", license), ensure_ascii=False)
    torch.export.save(program, stream, extra_files={"balpoe": about})
    return stream.getvalue()


def _outputs_of(program: Any, model: Model) -> Any:
    run = program.module()
    default = _log_prior(model)

    def outputs(samples: Tensor, log_prior: Tensor | None = None) -> Any:
        prior = () if default is None else ((default if log_prior is None else log_prior).float(),)
        with torch.no_grad():
            return run(samples, *prior)

    return outputs


def _scores(model: Model, test: Samples | None) -> dict[str, float]:
    if test is None:
        return {}
    found = evaluate(model.predictions(test), num_resamples=0)
    return {name: getattr(found, name) for name in SCORES}
