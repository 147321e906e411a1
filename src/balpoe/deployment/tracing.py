"""A model's way from samples to probabilities, traced by torch and translated to ONNX."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.deployed_network import DeployedNetwork
from balpoe.deployment.onnx_file import INPUTS, OPSET, OUTPUTS
from balpoe.errors import UserError
from balpoe.experiments.model_file import Model

__all__ = ["example_samples", "onnx_graph", "traced"]

TRACED = 3  # samples: a batch of one would be frozen


def traced(model: Model) -> Any:
    """Return the program of a model for any number of samples, as `torch.export.export` gives it.

    Args:
        model: Model, in float32.
    """
    network = DeployedNetwork(model).eval()
    prior = () if model.source_prior is None else (torch.zeros(model.num_classes),)
    shapes = ({0: torch.export.Dim("batch")}, *(None for _ in prior))
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(
                network, (example_samples(model, TRACED), *prior), dynamic_shapes=shapes, strict=False
            )
    except Exception as error:  # a network may fail to be traced in its own way
        raise _untraceable(model, error) from error
    _pool_by_means(program)
    return program


def _pool_by_means(program: Any) -> None:
    """Write pooling to one pixel as a mean: of what lies channels last it becomes a gathering of any shape in ONNX."""
    for node in program.graph_module.graph.nodes:
        if node.target is torch.ops.aten.adaptive_avg_pool2d.default and list(node.args[1]) == [1, 1]:
            node.target, node.args = torch.ops.aten.mean.dim, (node.args[0], [-2, -1], True)
    program.graph_module.recompile()


def example_samples(model: Model, number: int, seed: int = 0) -> Tensor:
    """Return random samples of a model's size: images, uint8, or features around their mean.

    Args:
        model: Model.
        number: Number of samples.
        seed: Seed of them.
    """
    generator, size = torch.Generator().manual_seed(seed), (number, *model.preprocessing.size)
    if len(size) == 4:
        return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
    mean, std = torch.tensor(model.preprocessing.mean), torch.tensor(model.preprocessing.std)
    return torch.randn(size, generator=generator) * std + mean


def onnx_graph(model: Model, program: Any) -> Any:
    """Return a traced program as an ONNX model, without the traces of where it was made.

    Args:
        model: Model that was traced.
        program: What `traced` returned.
    """
    names = [INPUTS[len(model.preprocessing.size)], *([] if model.source_prior is None else ["log_prior"])]
    try:
        with _quiet():
            made = torch.onnx.export(
                program, input_names=names, output_names=list(OUTPUTS), opset_version=OPSET, dynamo=True,
                external_data=False, verbose=False,
            )  # fmt: skip
    except Exception as error:  # a layer may have no translation
        raise _untraceable(model, error) from error
    assert made is not None
    proto = made.model_proto
    for part in (*proto.graph.node, *proto.graph.initializer, *proto.graph.input, *proto.graph.output, proto.graph):
        part.doc_string = ""
        part.ClearField("metadata_props")  # paths of the machine among them
    proto.graph.ClearField("value_info")
    for value in (*proto.graph.input, *proto.graph.output):
        first = value.type.tensor_type.shape.dim[0]
        if first.HasField("dim_param"):
            first.dim_param = "batch"
    return proto


def _untraceable(model: Model, error: Exception) -> UserError:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return UserError(f"network {model.recipe.network!r} cannot be exported ({reason}); choose another network")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What exporters say to their own developers is not for users."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir", "torch.onnx", "torch.export")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
