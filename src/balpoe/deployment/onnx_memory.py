"""How much memory a stranger's graph may ask for: found from its shapes, before anything of it is run."""

import math
from collections.abc import Iterator
from typing import Any

__all__ = ["MOST_VALUES", "rows_at_once", "values_of_a_sample"]

MOST_VALUES = 2**28  # held at once: a GiB in float32
MANY = 256  # samples, of which the graph must not want more than so many times what it wants for one
KEPT = 4096  # values of a constant that shapes are computed from; those of larger ones are not looked at


def rows_at_once(values: int) -> int:
    """Return how many samples a graph is given at a time, so that it stays within `MOST_VALUES`.

    Args:
        values: Number of values that it holds for one sample.

    >>> rows_at_once(2**20), rows_at_once(2**28), rows_at_once(0)
    (256, 1, 268435456)
    """
    return max(1, MOST_VALUES // max(1, values))


def values_of_a_sample(graph: Any, opsets: Any) -> int:
    """Return the most values that a graph holds at a time for one sample, weights not counted; no node is run.

    A ValueError says why there is no such number: a weight without its values, a shape that cannot be told from the
    graph, more values than `MOST_VALUES`, or a number that grows faster than that of the samples.

    Args:
        graph: ONNX graph, which is not changed.
        opsets: Versions of the operators that it is made of.
    """
    for weight in _tensors(graph):
        _check_weight(weight)
    one = _most_at_once(graph, _shapes(graph, opsets, 1))
    if one > MOST_VALUES:
        raise ValueError(f"one sample would take {one:,} values at a time, and {MOST_VALUES:,} are allowed")
    many = _most_at_once(graph, _shapes(graph, opsets, MANY))
    if many > MANY * one:
        raise ValueError(f"{MANY} samples would take {many:,} values at a time, where one takes {one:,}")
    return one


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for each in node.attribute:
            yield from (each.t, *each.tensors) if each.HasField("t") else each.tensors


def _check_weight(weight: Any) -> None:
    """Refuse what would be allocated by its shape alone: each value of ours takes a byte of the file or more."""
    if any(side < 0 for side in weight.dims) or math.prod(weight.dims) > weight.ByteSize():
        raise ValueError(f"weight {weight.name!r} of shape {tuple(weight.dims)} is not whole")


def _shapes(graph: Any, opsets: Any, samples: int) -> dict[str, int]:
    """Number of values of everything that is computed for so many samples, as far as shapes can be told."""
    from onnx import helper
    from onnx.shape_inference import InferenceError, infer_shapes

    light = type(graph)()
    light.name = graph.name
    light.node.extend(graph.node)
    light.input.extend(graph.input)
    for weight in graph.initializer:  # of large ones the shapes alone: weights are most of a file
        if math.prod(weight.dims) <= KEPT:
            light.initializer.append(weight)
        else:
            light.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
    for value in graph.input:
        first = next(each for each in light.input if each.name == value.name).type.tensor_type.shape.dim[0]
        if not first.HasField("dim_value"):
            first.dim_value = samples
    for value in graph.output:  # what they say of their shapes is a claim
        light.output.append(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, None))
    try:
        model = helper.make_model(light, opset_imports=list(opsets))
        found = infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph
    except (InferenceError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1] or type(error).__name__
        raise ValueError(f"its shapes do not fit each other ({reason})") from error
    return {each.name: _size(each) for each in (*found.value_info, *found.output) if _is_known(each)}


def _is_known(value: Any) -> bool:
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def _size(value: Any) -> int:
    return math.prod(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _most_at_once(graph: Any, sizes: dict[str, int]) -> int:
    """The largest sum of what is there between a node that makes it and the last one that reads it."""
    last = {name: number for number, node in enumerate(graph.node) for name in node.input}
    for value in graph.output:
        last[value.name] = len(graph.node)
    ends: dict[int, list[str]] = {}
    held = most = 0
    for number, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name not in sizes:
                raise ValueError(f"the shape of {name!r}, which {node.op_type} makes, cannot be told")
            held += sizes[name]
            ends.setdefault(last.get(name, number), []).append(name)
        most = max(most, held)
        held -= sum(sizes[name] for name in ends.pop(number, ()))
    return most
