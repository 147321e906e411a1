"""An exported file says what its model says, in any runtime, and travels whole."""

import functools
import http.server
import json
import os
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import balpoe
from balpoe import UserError
from balpoe.deployment.onnx_file import OPSET
from balpoe.deployment.some_experts import with_experts
from balpoe.networks import add_adapters
from exported_models import COUNTS, NAMES, made_feature_model, made_features, made_images, model_of

PRIOR = torch.tensor([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("number", [1, 2, 7])
def test_a_plain_runtime_gives_what_the_model_gives_under_any_prior(image_model, image_export, number):
    session, images = onnxruntime.InferenceSession(image_export.path), made_images(number)
    metadata = session.get_modelmeta().custom_metadata_map
    for log_prior, target in ((json.loads(metadata["log_prior"]), None), (PRIOR.log().tolist(), PRIOR)):
        feed = {"images": images.numpy(), "log_prior": np.array(log_prior, dtype=np.float32)}
        logits, probabilities, expert_logits = map(torch.from_numpy, session.run(None, feed))
        torch.testing.assert_close(probabilities, image_model.predict(images, target), atol=2e-6, rtol=0)
        torch.testing.assert_close(expert_logits, image_model.expert_logits(images), atol=2e-5, rtol=0)
        torch.testing.assert_close(logits.softmax(dim=1), probabilities)
    del feed["log_prior"]
    with pytest.raises(ValueError, match="log_prior"):  # never a prior that nobody has thought of
        session.run(None, feed)


def test_the_file_says_what_it_is(image_export):
    proto = onnx.load(image_export.path)
    metadata = {each.key: each.value for each in proto.metadata_props}
    assert [(each.domain, each.version) for each in proto.opset_import] == [("", OPSET)]
    assert json.loads(metadata["class_names"]) == list(NAMES)
    assert json.loads(metadata["class_counts"]) == COUNTS.tolist()
    assert json.loads(metadata["license"]) == "MIT"
    about = json.loads(metadata["balpoe"])
    assert (about["format"], about["version"], about["precision"]) == (1, balpoe.__version__, "fp32")
    assert about["calibration"]["temperatures"] == [1.5, 0.8, 1.2]
    assert np.exp(json.loads(metadata["log_prior"])) == pytest.approx(json.loads(metadata["source_prior"]))
    assert [each.type.tensor_type.shape.dim[0].dim_param for each in proto.graph.output] == ["batch"] * 3
    assert b"site-packages" not in image_export.path.read_bytes()  # nor any other path of the machine
    operators = {node.op_type for node in proto.graph.node}
    assert not operators & {"BatchNormalization", "Slice", "Pad"}  # all are part of convolutions, or convolutions


def test_heads_are_matrix_products(feature_file):
    operators = {node.op_type for node in onnx.load(feature_file).graph.node}
    assert "Einsum" not in operators  # its weights would be laid out anew for every batch


def test_what_was_checked_is_told(image_export):
    assert image_export.check.samples == 20
    assert 0 < image_export.check.difference < 1e-5
    assert (image_export.check.agreement, image_export.before, image_export.after) == (1, {}, {})


def test_openvino_says_the_same(image_model, image_export):
    openvino = pytest.importorskip("openvino")
    core, precise = openvino.Core(), {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(image_export.path), "CPU", precise)
    for number in (1, 7):
        images = made_images(number)
        found = compiled({"images": images.numpy(), "log_prior": PRIOR.log().numpy()})["probabilities"]
        assert np.abs(found - image_model.predict(images, PRIOR).numpy()).max() < 1e-5


PAGE = "<!DOCTYPE html><meta charset='utf-8'><title>.</title><link rel='icon' href='data:,'><script src='{}'></script>"
CALL = """async ([pixels, logPrior]) => {
    ort.env.wasm.numThreads = 1;
    const session = await ort.InferenceSession.create("model.onnx");
    const images = new ort.Tensor("uint8", Uint8Array.from(pixels), [pixels.length / 768, 3, 16, 16]);
    const prior = new ort.Tensor("float32", Float32Array.from(logPrior), [logPrior.length]);
    const found = await session.run({images: images, log_prior: prior});
    return Array.from(found.probabilities.data);
}"""


@pytest.mark.slow
def test_a_browser_says_the_same(image_model, image_export, browser, tmp_path):
    """With the files of the package onnxruntime-web (its folder dist), which is none of ours."""
    folder = os.environ.get("BALPOE_ORT_WEB")
    if not folder:
        pytest.skip("BALPOE_ORT_WEB does not point at the folder dist of onnxruntime-web")
    for each in Path(folder).glob("ort*wasm*"):
        (tmp_path / each.name).symlink_to(each)
    (tmp_path / "model.onnx").write_bytes(image_export.path.read_bytes())
    (tmp_path / "page.html").write_text(PAGE.format("ort.wasm.min.js"))
    serve = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/page.html")
        images = made_images(2)
        found = page.evaluate(CALL, [images.flatten().tolist(), PRIOR.log().tolist()])
        page.close()
        server.shutdown()
    torch.testing.assert_close(torch.tensor(found).view(2, 4), image_model.predict(images, PRIOR), atol=1e-5, rtol=0)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # inside torch.export.load
def test_a_program_of_torch_takes_any_batch(feature_model, tmp_path):
    made = balpoe.export(feature_model, tmp_path / "model.pt2")
    assert made.check.difference < 1e-5
    extra = {"balpoe": ""}
    program = torch.export.load(made.path, extra_files=extra).module()
    for number in (1, 2, 7):
        rows = made_features(number)
        _, found, expert_logits = program(rows, PRIOR.log())
        torch.testing.assert_close(found, feature_model.predict(rows, PRIOR))
        torch.testing.assert_close(expert_logits, feature_model.expert_logits(rows))
    assert json.loads(extra["balpoe"])["class_names"] == list(NAMES)
    with pytest.raises(UserError, match="unpickling"):
        balpoe.load(made.path)


def test_scores_that_are_no_posterior_take_no_prior(tmp_path):
    model = made_feature_model(lambdas=None, method="ride-router")
    loaded = balpoe.load(balpoe.export(model, tmp_path / "model.onnx").path)
    rows = made_features(5)
    torch.testing.assert_close(loaded.predict(rows), model.predict(rows), atol=2e-6, rtol=0)
    assert [each.name for each in loaded.network.session.get_inputs()] == ["features"]
    assert loaded.source_prior is None
    with pytest.raises(UserError, match="leave target_prior out"):
        loaded.predict(rows, "train")


def test_a_router_and_scales_by_class_are_in_the_file(tmp_path):
    model = made_feature_model()
    model.network.add_router(hidden=4)
    model.network.classifier.add_class_scale()
    model.network.classifier.class_scale.uniform_(0.5, 2)
    model.network.router.weight.copy_(torch.randn(len(model.network.router.weight)))
    loaded, rows = balpoe.load(balpoe.export(model, tmp_path / "model.onnx").path), made_features(50)
    expected = model.expert_logits(rows)
    asked = balpoe.networks.router.experts_asked(expected)
    assert len(asked.unique()) > 1
    torch.testing.assert_close(loaded.expert_logits(rows), expected, atol=2e-5, rtol=0)
    assert torch.equal(balpoe.networks.router.experts_asked(loaded.expert_logits(rows)), asked)


@pytest.mark.slow
def test_a_transformer_whose_experts_have_adapters_of_their_own(tmp_path):
    torch.manual_seed(0)
    network = balpoe.expert_network("test_vit", num_classes=4, num_experts=3, image_size=32)
    network.trunk.model.blocks = network.trunk.model.blocks[:2]  # one whose adapter is shared, and one of each expert's
    add_adapters(network, "lora", split=1)
    for name, weight in network.named_parameters():
        if name.endswith(".up"):
            torch.nn.init.normal_(weight, std=0.3)
    model = model_of(network, (3, 32, 32))
    images = torch.randint(0, 256, (7, 3, 32, 32), dtype=torch.uint8)
    made = balpoe.export(model, tmp_path / "model.onnx", images=images)
    assert made.check.difference < 1e-5
    torch.testing.assert_close(balpoe.load(made.path).predict(images), model.predict(images), atol=1e-5, rtol=0)


def test_what_pools_channels_last_as_a_convnext_does(tmp_path):
    """Torch would gather it by numbers that grow with the batch, of which no shape can be told."""

    class Last(torch.nn.Module):
        num_experts, num_classes = 2, 4

        def __init__(self):
            super().__init__()
            self.norm, self.pool = torch.nn.LayerNorm(3), torch.nn.AdaptiveAvgPool2d(1)
            self.heads = torch.nn.Linear(3, 8)

        def forward(self, images):
            normed = self.norm(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return self.heads(self.pool(normed).flatten(1)).view(-1, 2, 4)

    model, images = model_of(Last(), (3, 16, 16), (1.0, -1.0)), made_images(7)
    loaded = balpoe.load(balpoe.export(model, tmp_path / "model.onnx", images=images).path)
    torch.testing.assert_close(loaded.predict(images), model.predict(images), atol=1e-5, rtol=0)


def test_fewer_bits_and_fewer_experts_are_measured(feature_model, tmp_path):
    rows, targets = made_features(200), torch.arange(200) % 4
    data = balpoe.Dataset(rows, targets, NAMES, feature_model.preprocessing)
    made = balpoe.export(
        feature_model, tmp_path / "model.onnx", precision="int8", experts=[0, 2], images=rows[:100], test=data
    )
    loaded, some = balpoe.load(made.path), with_experts(feature_model, [0, 2])
    for found, model in ((made.before, feature_model), (made.after, loaded)):
        expected = balpoe.evaluate(model.predictions(data), num_resamples=0)
        assert found == {name: getattr(expected, name) for name in ("accuracy", "balanced_accuracy", "ece")}
    assert 1e-6 < made.check.difference == pytest.approx(0, abs=0.1)
    assert made.check.samples == 100
    torch.testing.assert_close(loaded.source_prior, some.source_prior)
    torch.testing.assert_close(loaded.predict(rows, "train"), some.predict(rows, "train"), atol=0.1, rtol=0)
    assert loaded.expert_logits(rows).shape == (200, 2, 4)


def test_mistakes_are_told_before_anything_is_traced(feature_model, feature_file, tmp_path, monkeypatch):
    monkeypatch.delattr("torch.export.export")
    for path, settings, message in (
        ("model.bin", {}, "ends neither in .onnx nor in .pt2"),
        ("model.onnx", {"format": "torch"}, "must end in .pt2"),
        ("model.onnx", {"format": "onx"}, "unknown format 'onx'; did you mean 'onnx'"),
        ("model.onnx", {"precision": "int4"}, "unknown precision 'int4'; did you mean 'int8'"),
        ("model.pt2", {"precision": "fp16"}, "precision fp16 is for ONNX files"),
        ("model.onnx", {"precision": "int8"}, "int8 takes its scales from images"),
        ("model.onnx", {"experts": [0, 3]}, "different numbers from 0 to 2, but are"),
        ("model.onnx", {"experts": []}, "different numbers from 0 to 2, but are"),
        ("model.onnx", {"experts": [1, 1]}, "different numbers from 0 to 2, but are"),
    ):
        with pytest.raises(UserError, match=message):
            balpoe.export(feature_model, tmp_path / path, **settings)
    with pytest.raises(UserError, match="exported already"):
        balpoe.export(feature_file, tmp_path / "model.onnx")
    with pytest.raises(UserError, match="but got dict"):
        balpoe.export({}, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_network_that_cannot_be_traced_is_named(tmp_path):
    class Odd(torch.nn.Module):
        num_experts, num_classes = 1, 4

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 4)

        def forward(self, samples):
            return self.layer(samples)[:, None] * (1 if float(samples.sum()) > 0 else 2)

    with pytest.raises(UserError, match="cannot be exported"):
        balpoe.export(model_of(Odd(), (6,), (0.0,)), tmp_path / "model.onnx")
