"""ONNX files of ours: what stands in their metadata, and strangers' files, which are refused before anything runs."""

import hashlib
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from balpoe.deployment.onnx_memory import values_of_a_sample
from balpoe.deployment.onnx_operators import foreign_operator
from balpoe.errors import UserError
from balpoe.experiments.model_file import about_of

__all__ = ["FORMAT", "INPUTS", "OPSET", "OUTPUTS", "onnx_bytes", "read_onnx", "require_onnx"]

FORMAT = 1
OPSET = 20
OUTPUTS = ("logits", "probabilities", "expert_logits")
INPUTS = {1: "features", 3: "images"}
"""Name of the first input by the axes of a sample."""
NO_DIGEST = "0" * 64
READABLE = ("class_names", "class_counts", "source_prior", "calibration", "preprocessing", "log_prior", "license")


def require_onnx(*packages: str) -> None:
    """Say which package is missing, if one is.

    Args:
        packages: Names of packages of the extra onnx.
    """
    try:
        for name in packages:
            import_module(name)
    except ImportError as error:
        raise UserError(f"ONNX files need the package {error.name}; pip install 'balpoe[onnx]'") from error


def onnx_bytes(proto: Any, about: Mapping[str, Any]) -> bytes:
    """Return a model with its metadata as a file: one JSON text under "balpoe", and the parts that people look for.

    The digest in it is that of the same bytes with zeros in its place.

    Args:
        proto: ONNX model.
        about: What is known of it.
    """
    from google.protobuf.message import EncodeError
    from onnx.helper import set_model_props

    texts = {name: json.dumps(about[name], ensure_ascii=False) for name in READABLE}
    set_model_props(proto, {"balpoe": json.dumps(about, ensure_ascii=False), **texts, "sha256": NO_DIGEST})
    proto.producer_name, proto.producer_version = "balpoe", about["version"]
    try:
        data: bytes = proto.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        raise UserError(f"the model is larger than the 2 GiB of an ONNX file ({error}); export it as torch") from error
    return _with_digest(data, NO_DIGEST, hashlib.sha256(data).hexdigest())


def _with_digest(data: bytes, old: str, new: str) -> bytes:
    """A file with another digest in its metadata, which are the last part of it."""
    before, found, behind = data.rpartition(old.encode())
    return before + (new.encode() if found else b"") + behind


def read_onnx(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a file of ours and what is known of it; any other file is refused. Nothing in it is run.

    What is known has "values_of_a_sample", too, found from the graph: how many values it holds at once for a sample.

    Args:
        path: File.
    """
    require_onnx("onnx", "onnxruntime")
    import onnx
    from google.protobuf.message import DecodeError

    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    try:
        proto = onnx.load_model_from_string(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a whole ONNX file; export or fetch it again") from error
    metadata = {each.key: each.value for each in proto.metadata_props}
    about = about_of(path, metadata, FORMAT, kind="an ONNX file", verb="export")
    digest = metadata.get("sha256", "")
    if len(digest) != 64 or hashlib.sha256(_with_digest(data, digest, NO_DIGEST)).hexdigest() != digest:
        raise UserError(f"{path} is damaged, or was changed since it was exported; export or fetch it again")
    _check_graph(path, proto, about)
    try:
        values = values_of_a_sample(proto.graph, proto.opset_import)
    except ValueError as error:
        raise UserError(f"{path} may ask for any amount of memory: {error}; export it again") from error
    return data, {**about, "values_of_a_sample": values}


def _check_graph(path: Path, proto: Any, about: Mapping[str, Any]) -> None:
    """Refuse a graph that reads other files, has operators of somebody's own, or is not what the metadata say."""
    from onnx import TensorProto

    graph = proto.graph
    attributes = [each for node in graph.node for each in node.attribute]
    constants = [tensor for each in attributes for tensor in (each.t, *each.tensors)]
    if any(
        each.data_location == TensorProto.EXTERNAL or each.external_data for each in (*graph.initializer, *constants)
    ):
        raise UserError(f"{path} keeps weights in other files, which are not read; give one whole file")
    foreign = foreign_operator(graph)
    inside = any(each.HasField("g") or each.graphs for each in attributes)
    sparse = graph.sparse_initializer or any(
        each.HasField("sparse_tensor") or each.sparse_tensors for each in attributes
    )
    if foreign or inside or sparse or proto.functions or proto.training_info:
        what = "sparse weights" if sparse else f"the operator {foreign!r}" if foreign else "functions or graphs inside"
        raise UserError(f"{path} has {what}, which no file of balpoe has; export it again")
    try:
        expected = _signature(about)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} does not describe a model of this version ({error}); export it again") from error
    found = {each.name: _shape(each) for each in (*graph.input, *graph.output)}
    if found != expected:
        raise UserError(
            f"{path} is for other samples or classes than its metadata say: {found} instead of {expected}; "
            "export it again"
        )


def _signature(about: Mapping[str, Any]) -> dict[str, tuple[int | None, ...]]:
    """Shape of each input and output, None for the batch, as the metadata say."""
    size, classes, experts = tuple(about["preprocessing"]["size"]), len(about["class_names"]), int(about["experts"])
    inputs = {INPUTS[len(size)]: (None, *size), **({} if about["log_prior"] is None else {"log_prior": (classes,)})}
    return {**inputs, **dict.fromkeys(OUTPUTS[:2], (None, classes)), OUTPUTS[2]: (None, experts, classes)}


def _shape(value: Any) -> tuple[int | None, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
