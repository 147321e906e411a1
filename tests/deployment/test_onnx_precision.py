"""Fewer bits: smaller files that say nearly the same."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from balpoe import UserError
from balpoe.deployment.onnx_precision import in_half, in_int8
from exported_models import made_features, made_images

PRIOR = np.log([0.1, 0.2, 0.3, 0.4]).astype(np.float32)


def probabilities(proto, **samples):
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(["probabilities"], {**samples, "log_prior": PRIOR})[0]


def test_half_precision_halves_the_weights_and_keeps_inputs_and_outputs(image_export):
    whole, images = onnx.load(image_export.path), made_images(9).numpy()
    half = in_half(onnx.load(image_export.path))
    onnx.checker.check_model(half, full_check=True)
    difference = np.abs(probabilities(half, images=images) - probabilities(whole, images=images)).max()
    assert 0 < difference < 0.01
    kinds = {each.name: each.data_type for each in half.graph.initializer}
    weights = {node.input[1] for node in half.graph.node if node.op_type == "Conv"}
    assert {kinds[name] for name in weights} == {TensorProto.FLOAT16}
    heads = {node.input[1] for node in half.graph.node if node.op_type == "MatMul"}
    assert {kinds[name] for name in heads} == {TensorProto.FLOAT}  # probabilities are made there
    for before, after in ((whole.graph.input, half.graph.input), (whole.graph.output, half.graph.output)):
        assert [each.SerializeToString() for each in before] == [each.SerializeToString() for each in after]


def test_half_precision_of_features(feature_file):
    rows = made_features(9).numpy()
    expected = probabilities(onnx.load(feature_file), features=rows)
    found = probabilities(in_half(onnx.load(feature_file)), features=rows)
    assert 0 < np.abs(found - expected).max() < 0.01


def test_weights_that_half_precision_cannot_hold(feature_file):
    proto = onnx.load(feature_file)
    layer = next(node for node in proto.graph.node if node.op_type in ("Gemm", "MatMul"))
    weight = next(each for each in proto.graph.initializer if each.name in layer.input)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1e6), weight.name))
    with pytest.raises(UserError, match="too large for fp16"):
        in_half(proto)


def test_int8_takes_its_scales_from_samples(image_export):
    whole, images = onnx.load(image_export.path), made_images(40)
    quantised = in_int8(onnx.load(image_export.path), images)
    expected = probabilities(whole, images=images.numpy())
    found = probabilities(quantised, images=images.numpy())
    assert 0 < np.abs(found - expected).max() < 0.1
    kinds = [each.data_type for each in quantised.graph.initializer if len(each.dims) == 4]
    assert set(kinds) == {TensorProto.INT8}
    black = in_int8(onnx.load(image_export.path), images * 0)  # of which the scales are too small
    assert np.abs(probabilities(black, images=images.numpy()) - expected).max() > np.abs(found - expected).max()
