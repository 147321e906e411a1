"""ONNX models in fewer bits: float16, or int8 with scales from given samples.

Only what lies between the samples and the features is touched. The cosine classifiers, the product and the prior stay
in float32: they cost next to nothing, and probabilities are made there.
"""

import contextlib
import logging
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from balpoe.errors import UserError

__all__ = ["PRECISIONS", "in_half", "in_int8"]

PRECISIONS = ("fp32", "fp16", "int8")
QUANTIZED = ("Conv", "Gemm", "MatMul", "Add", "Relu", "Clip", "MaxPool")
AT_ONCE = 16


def in_half(proto: Any) -> Any:
    """Return an ONNX model whose weights and features are float16; its inputs and outputs stay as they are.

    Args:
        proto: Model in float32, which is changed.
    """
    from onnx import TensorProto, helper, numpy_helper
    from onnx.shape_inference import infer_shapes

    graph, typed = proto.graph, infer_shapes(proto).graph
    body = _body(graph)
    inside = {name for node in body for name in node.output}
    floats = {
        each.name
        for each in (*typed.input, *typed.output, *typed.value_info)
        if each.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    weights = {each.name: each for each in graph.initializer if each.data_type == TensorProto.FLOAT}
    casts = []
    for name in sorted({name for node in body for name in node.input} - inside):
        if name in weights:
            graph.initializer.append(numpy_helper.from_array(_half(weights[name]), f"{name}_half"))
        elif name in floats:
            casts.append(helper.make_node("Cast", [name], [f"{name}_half"], f"{name}_half", to=TensorProto.FLOAT16))
        else:
            continue
        _rename(body, {name: f"{name}_half"})
    outside = [node for node in graph.node if not any(node is each for each in body)]
    used = {name for node in outside for name in node.input} | {each.name for each in graph.output}
    border = sorted(inside & used & floats)
    _rename(body, {name: f"{name}_half" for name in border})
    casts += [
        helper.make_node("Cast", [f"{name}_half"], [name], f"{name}_float", to=TensorProto.FLOAT) for name in border
    ]
    for node in body:
        for each in node.attribute:
            if node.op_type == "Cast" and each.name == "to" and each.i == TensorProto.FLOAT:
                each.i = TensorProto.FLOAT16
    return _sorted_model(proto, casts)


def in_int8(proto: Any, samples: Tensor) -> Any:
    """Return an ONNX model whose convolutions and matrix products are of int8, in the QDQ format, weights by channel.

    Args:
        proto: Model in float32.
        samples: Raw samples, which give the ranges of all that is between.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    for index, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{index}"
    inside = {node.name for node in _body(proto.graph)}
    inputs = {each.name: each.type.tensor_type.shape.dim for each in proto.graph.input}
    prior = {"log_prior": np.zeros(inputs["log_prior"][0].dim_value, np.float32)} if "log_prior" in inputs else {}
    name = next(each for each in inputs if each != "log_prior")
    with tempfile.TemporaryDirectory() as folder, _quiet():
        out = Path(folder) / "int8.onnx"
        quantize_static(
            proto, out, _Feeds({name: block.numpy(), **prior} for block in samples.split(AT_ONCE)),
            quant_format=QuantFormat.QDQ, per_channel=True, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8, op_types_to_quantize=list(QUANTIZED),
            nodes_to_exclude=[node.name for node in proto.graph.node if node.name not in inside],
        )  # fmt: skip
        return onnx.load_model_from_string(out.read_bytes())


class _Feeds:
    """What the runtime is fed with, one after the other, as its quantiser asks for it."""

    def __init__(self, feeds: Iterable[dict[str, Any]]) -> None:
        self.feeds: Iterator[dict[str, Any]] = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def _body(graph: Any) -> list[Any]:
    """The nodes between the samples and the features, which classifiers bring to length one.

    A network may do so inside, too; what counts is the last time.
    """
    leads_on: set[str] = set()  # names from which a further length is computed
    last = []
    for node in reversed(graph.node):
        further = not leads_on.isdisjoint(node.output)
        if node.op_type == "ReduceL2" and not further:
            last.append(node)
        if further or node.op_type == "ReduceL2":
            leads_on.update(node.input)
    sample = next(each.name for each in graph.input if each.name != "log_prior")
    reached, head, body = {sample}, {name for node in last for name in node.output}, []
    for node in graph.node:
        if not head.isdisjoint((*node.input, *node.output)):
            head.update(node.output)
        elif not reached.isdisjoint(node.input):
            reached.update(node.output)
            body.append(node)
    return body


def _half(weight: Any) -> np.ndarray:
    from onnx import numpy_helper

    values = numpy_helper.to_array(weight)
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if np.isinf(half).any() and not np.isinf(values).any():
        raise UserError(f"weights of up to {np.abs(values).max():.3g} are too large for fp16; export it in fp32")
    return half


def _rename(nodes: Iterable[Any], names: dict[str, str]) -> None:
    for node in nodes:
        for parts in (node.input, node.output):
            for index, name in enumerate(parts):
                parts[index] = names.get(name, name)


def _sorted_model(proto: Any, further: Iterable[Any]) -> Any:
    """The model with further nodes, each behind what it needs, and without weights that nobody reads."""
    graph = proto.graph
    waiting = [*graph.node, *further]
    known = {"", *(each.name for each in (*graph.input, *graph.initializer))}
    ordered = []
    while waiting:
        ready = [node for node in waiting if known.issuperset(node.input)]
        ready_ids = {id(node) for node in ready}
        waiting = [node for node in waiting if id(node) not in ready_ids]
        known.update(name for node in ready for name in node.output)
        ordered += ready
    read = {name for node in ordered for name in node.input}
    kept = [each for each in graph.initializer if each.name in read]
    nodes = [type(node).FromString(node.SerializeToString()) for node in ordered]
    for field, values in (("node", nodes), ("initializer", [type(e).FromString(e.SerializeToString()) for e in kept])):
        graph.ClearField(field)
        getattr(graph, field).extend(values)
    return proto


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser's advice, to optimise a model that is optimised, is not for users."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
