"""Files of strangers, and files that are not whole, are refused in one sentence, before anything in them is run."""

import contextlib
import hashlib
import json
import random

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

import balpoe
from balpoe import UserError
from balpoe.deployment.onnx_file import NO_DIGEST, read_onnx
from balpoe.deployment.onnx_memory import MOST_VALUES


@pytest.fixture(autouse=True)
def _nothing_is_run(monkeypatch):
    def run(*_, **__):
        raise AssertionError("a stranger's file reached the runtime")

    monkeypatch.setattr(onnxruntime, "InferenceSession", run)


def refused(tmp_path, content, name="file.onnx"):
    """The sentence about a file."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        balpoe.load(path)
    sentence = str(caught.value)
    assert sentence.startswith(str(path))
    assert "\n" not in sentence
    return sentence.removeprefix(f"{path} ")


def signed(proto, change=lambda about: None):
    """A file with a right digest, as somebody may make one who knows how."""
    values = {each.key: each for each in proto.metadata_props}
    about = json.loads(values["balpoe"].value)
    change(about)
    values["balpoe"].value, values["sha256"].value = json.dumps(about), NO_DIGEST
    data = proto.SerializeToString()
    return data.replace(NO_DIGEST.encode(), hashlib.sha256(data).hexdigest().encode())


def test_a_whole_file_is_read(feature_file):
    data, about = read_onnx(feature_file)
    assert data == feature_file.read_bytes()
    assert about["experts"] == 3
    assert read_onnx(feature_file)[0] != signed(onnx.load(feature_file))[:-1]


def test_what_is_no_onnx_file_of_ours(tmp_path, feature_file):
    for content in (b"", b"PK\x03\x04 something else", b"\x80\x04K\x01.", random.Random(0).randbytes(3000)):
        assert refused(tmp_path, content).startswith(("is not a whole ONNX file", "is not an ONNX file of balpoe"))
    proto = onnx.load(feature_file)
    proto.ClearField("metadata_props")
    assert refused(tmp_path, proto.SerializeToString()).startswith("is not an ONNX file of balpoe")
    for text in ("[]", "{", "{}", '"x"', "[" * 100000):
        helper.set_model_props(proto, {"balpoe": text})
        assert refused(tmp_path, proto.SerializeToString()).startswith("is not an ONNX file of balpoe")


def test_a_newer_format(tmp_path, feature_file):
    content = signed(onnx.load(feature_file), lambda about: about.update(format=2))
    assert refused(tmp_path, content) == (
        "is an ONNX file of format 2, but this balpoe reads 1; export or fetch it again"
    )


def test_every_truncated_or_damaged_file_is_noticed(tmp_path, feature_file):
    content, draw = feature_file.read_bytes(), random.Random(0)
    for _ in range(60):
        assert refused(tmp_path, content[: draw.randrange(len(content))])
        place = draw.randrange(len(content))
        assert refused(
            tmp_path, content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]
        )


def test_weights_in_other_files_are_not_read(tmp_path, feature_file):
    for hide in (_external_initializer, _external_constant):
        proto = onnx.load(feature_file)
        hide(proto.graph)
        assert refused(tmp_path, signed(proto)).startswith("keeps weights in other files")


def _external(tensor):
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/hostname")
    tensor.ClearField("raw_data")


def _external_initializer(graph):
    _external(next(each for each in graph.initializer if each.HasField("raw_data")))


def _external_constant(graph):
    tensor = numpy_helper.from_array(numpy_helper.to_array(graph.initializer[0]), "hidden")
    _external(tensor)
    graph.node.insert(0, helper.make_node("Constant", [], ["hidden"], value=tensor))


def test_operators_of_somebodys_own_and_loops(tmp_path, feature_file):
    proto = onnx.load(feature_file)
    proto.graph.node[0].domain = "their.own"
    kind = proto.graph.node[0].op_type
    assert refused(tmp_path, signed(proto)).startswith(f"has the operator 'their.own.{kind}', which no file of balpoe")
    proto = onnx.load(feature_file)
    body = helper.make_graph([], "body", [], [])
    proto.graph.node.append(helper.make_node("Loop", ["", ""], ["endless"], body=body))
    assert refused(tmp_path, signed(proto)).startswith("has the operator 'Loop'")
    proto = onnx.load(feature_file)
    proto.graph.node[0].attribute.add(name="inside", g=body, type=onnx.AttributeProto.GRAPH)
    assert refused(tmp_path, signed(proto)).startswith("has functions or graphs inside")
    proto = onnx.load(feature_file)
    proto.functions.add(name="Relu")
    assert refused(tmp_path, signed(proto)).startswith("has functions or graphs inside")
    proto = onnx.load(feature_file)
    proto.graph.sparse_initializer.add().values.CopyFrom(proto.graph.initializer[0])
    assert refused(tmp_path, signed(proto)).startswith("has sparse weights")


@pytest.mark.parametrize(
    "name", ["If", "Scan", "Unique", "NonMaxSuppression", "RandomNormal", "LSTM", "ImageDecoder", "Range", "x\n" * 99]
)
def test_operators_that_no_file_of_ours_has(tmp_path, feature_file, name):
    proto = onnx.load(feature_file)
    proto.graph.node.append(helper.make_node(name, [], ["found"]))
    assert refused(tmp_path, signed(proto)).startswith(f"has the operator {name[:60]!r}, which no file of balpoe has")


def test_products_of_many_factors(tmp_path, feature_file):
    proto = onnx.load(feature_file)
    row = helper.make_node("Einsum", ["features"] * 3, ["found"], equation="ab,cd,ef->")
    proto.graph.node.append(row)
    assert refused(tmp_path, signed(proto)).startswith("has the operator 'Einsum of 3 factors'")


def test_a_graph_that_wants_any_amount_of_memory(tmp_path, feature_file):
    proto = onnx.load(feature_file)
    size = numpy_helper.from_array(np.array([10**6, 10**6]), "size")
    proto.graph.initializer.extend([size, numpy_helper.from_array(np.float32(0), "zero")])
    proto.graph.node.append(helper.make_node("Expand", ["zero", "size"], ["huge"]))
    assert refused(tmp_path, signed(proto)).startswith("may ask for any amount of memory: one sample would take")


def test_bits_flipped_by_somebody_who_makes_the_digest_right_again(tmp_path, feature_file):
    """Whatever the graph is then, it is refused in one sentence or has bounds; nothing else is raised."""
    content, draw = feature_file.read_bytes(), random.Random(1)
    metadata = content.index(b"balpoe", len(content) // 4)
    kept = 0
    for _ in range(150):
        place = draw.randrange(min(metadata, len(content)))
        flipped = content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]
        try:
            path = tmp_path / "flipped.onnx"
            path.write_bytes(signed(onnx.load_model_from_string(flipped)))
        except (DecodeError, KeyError, ValueError):
            continue  # damaged, which its own test has
        with contextlib.suppress(UserError):
            assert 0 < read_onnx(path)[1]["values_of_a_sample"] <= MOST_VALUES
            kept += 1
    assert kept  # a flipped bit of a weight is another weight


def test_other_classes_or_samples_than_it_says(tmp_path, feature_file):
    for change in (
        lambda about: about.update(class_names=["oak", "ash"]),
        lambda about: about["preprocessing"].update(size=[7]),
        lambda about: about.update(experts=2),
        lambda about: about.update(log_prior=None),
    ):
        assert "other samples or classes" in refused(tmp_path, signed(onnx.load(feature_file), change))


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.pop("class_names"),
        lambda about: about.update(preprocessing=3),
        lambda about: about["preprocessing"].update(size=[1, 2]),
        lambda about: about.update(experts="many"),
    ],
)
def test_metadata_that_describe_nothing(tmp_path, feature_file, change):
    assert refused(tmp_path, signed(onnx.load(feature_file), change)).startswith("does not describe a model")


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.pop("recipe"),
        lambda about: about.update(train_prior="x"),
        lambda about: about.update(class_counts=[1, 2]),
        lambda about: about.update(lambdas=[1.0, 2.0]),
        lambda about: about.update(train_prior=[1.0, 0.0, 0.0, 0.0]),
        lambda about: about.update(log_prior=[0.0, float("nan"), 0.0, 0.0]),
        lambda about: about.update(log_prior=[0.0]),
        lambda about: about.pop("parameters"),
        lambda about: about.update(calibration={"temperatures": [0, 1, 1], "frequency_bias": 0, "gain": 0}),
        lambda about: about.update(calibration={"temperatures": [1], "frequency_bias": 0, "gain": 0}),
    ],
)
def test_numbers_that_do_not_fit(tmp_path, feature_file, change):
    assert refused(tmp_path, signed(onnx.load(feature_file), change))


def test_without_the_extra(feature_file, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"need the package onnxruntime; pip install 'balpoe\[onnx\]'"):
        balpoe.load(feature_file)
