"""What a graph may hold at once: counted from its shapes, against a slow reference, and refused where it has no end."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from balpoe.deployment.onnx_memory import MOST_VALUES, rows_at_once, values_of_a_sample
from exported_models import made_images

OPSETS = [helper.make_opsetid("", 20)]


def graph(*nodes, weights=None, size=(4,)):
    """A graph from x to the output of its last node."""
    made = [helper.make_node(*each[:3], **(each[3] if len(each) > 3 else {})) for each in nodes]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *size])
    out = helper.make_tensor_value_info(made[-1].output[0], TensorProto.FLOAT, None)
    kept = [numpy_helper.from_array(np.asarray(each), name) for name, each in (weights or {}).items()]
    return helper.make_graph(made, "graph", [value], [out], kept)


def test_what_is_held_between_its_first_and_its_last_use():
    weights = {"w": np.ones((4, 10), np.float32), "v": np.ones((10, 2), np.float32)}
    chain = [("MatMul", ["x", "w"], ["a"]), ("Relu", ["a"], ["b"]), ("MatMul", ["b", "v"], ["c"])]
    assert values_of_a_sample(graph(*chain, weights=weights), OPSETS) == 10 + 10
    late = [("MatMul", ["a", "v"], ["d"]), ("Add", ["c", "d"], ["e"])]
    assert values_of_a_sample(graph(*chain, *late, weights=weights), OPSETS) == 10 + 10 + 2


def test_of_an_exported_file_all_is_known_and_the_runtime_agrees(image_export):
    """Every value is asked for as an output; the largest sum of those that are there at once is the same."""
    proto = onnx.load(image_export.path)
    nodes, names = proto.graph.node, [name for node in proto.graph.node for name in node.output]
    last = {name: len(nodes) if name in {each.name for each in proto.graph.output} else 0 for name in names}
    for number, node in enumerate(nodes):
        last.update({name: max(last[name], number) for name in node.input if name in last})
    everything = onnx.ModelProto.FromString(proto.SerializeToString())
    everything.graph.ClearField("output")
    everything.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(everything.SerializeToString())
    prior = np.array(json.loads(session.get_modelmeta().custom_metadata_map["log_prior"]), np.float32)
    found = session.run(names, {"images": made_images(1).numpy(), "log_prior": prior})
    size = {name: value.size for name, value in zip(names, found, strict=True)}
    made = {name: number for number, node in enumerate(nodes) for name in node.output}
    held = [sum(size[name] for name in names if made[name] <= now <= last[name]) for now in range(len(nodes))]
    assert values_of_a_sample(proto.graph, proto.opset_import) == max(held)


def huge(side):
    return np.array([side, side], dtype=np.int64)


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        (graph(("ConstantOfShape", ["n"], ["a"]), weights={"n": huge(10**6)}), "1,000,000,000,000 values at a time"),
        (graph(("Expand", ["x", "n"], ["a"]), weights={"n": np.array([10**9, 1, 4])}), "4,000,000,000 values"),
        (graph(("Tile", ["x", "n"], ["a"]), weights={"n": np.array([1, 10**9])}), "4,000,000,000 values"),
        (graph(("Range", ["o", "n", "i"], ["a"]),
               weights={"o": np.float32(0), "n": np.float32(1e10), "i": np.float32(1)}), "10,000,000,000 values"),
        (graph(("RandomNormal", [], ["a"], {"shape": [10**5, 10**5]})), "10,000,000,000 values"),
        (graph(("Pad", ["x", "n"], ["a"]), weights={"n": np.array([0, 0, 0, 10**10])}), "10,000,000,004 values"),
        (
            graph(("Conv", ["x", "w"], ["a"], {"pads": [10**5] * 4}), weights={"w": np.ones((1, 4, 1, 1), "f")},
                  size=(4, 2, 2)),
            "40,000,800,004 values",
        ),
        (graph(("MatMul", ["c", "r"], ["a"]), weights={"c": np.ones((20000, 1), "f"), "r": np.ones((1, 20000), "f")}),
         "400,000,000 values"),
        (graph(("Reshape", ["x", "n"], ["a"]), ("Transpose", ["a"], ["b"]), ("MatMul", ["a", "b"], ["c"]),
               weights={"n": np.array([-1, 1])}), "256 samples would take"),
        (graph(("NonZero", ["x"], ["a"]), ("Cast", ["a"], ["b"], {"to": 1})),
         "the shape of 'a', which NonZero makes, cannot be told"),
        (graph(("SequenceConstruct", ["x", "x"], ["s"]), ("ConcatFromSequence", ["s"], ["a"], {"axis": 0})),
         "'s', which SequenceConstruct makes"),
        (graph(("NoSuchThing", ["x"], ["a"])), "'a', which NoSuchThing makes, cannot be told"),
        (graph(("MatMul", ["x", "w"], ["a"]), weights={"w": np.ones((3, 2), "f")}), "its shapes do not fit each other"),
    ],
)  # fmt: skip
def test_graphs_without_bounds_are_refused_before_they_run(hostile, words):
    with pytest.raises(ValueError, match=words):
        values_of_a_sample(hostile, OPSETS)


@pytest.mark.parametrize("dims", [[10**12], [-5, -7], [3, -1]])
def test_weights_of_which_the_values_are_missing(dims):
    hostile = graph(("MatMul", ["x", "w"], ["a"]), weights={"w": np.ones((4, 2), np.float32)})
    hostile.initializer[0].dims[:] = dims
    with pytest.raises(ValueError, match=r"weight 'w' of shape .* is not whole"):
        values_of_a_sample(hostile, OPSETS)
    constant = helper.make_node("Constant", [], ["w"], value=hostile.initializer[0])
    hostile.node.insert(0, constant)
    hostile.ClearField("initializer")
    with pytest.raises(ValueError, match=r"weight 'w' of shape .* is not whole"):
        values_of_a_sample(hostile, OPSETS)


def test_samples_at_a_time():
    assert rows_at_once(1) == MOST_VALUES
    assert rows_at_once(MOST_VALUES) == rows_at_once(10 * MOST_VALUES) == 1
    assert 3 * rows_at_once(MOST_VALUES // 3) <= MOST_VALUES
