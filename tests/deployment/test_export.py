"""An exported file says what its model says, in ONNX Runtime, and travels whole."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import balpoe
from balpoe.deployment.onnx_file import OPSET
from balpoe.experiments.recipe import Recipe
from balpoe.method.expert_calibration import ExpertCalibration

COUNTS = torch.tensor([300, 120, 60, 15])
NAMES = ("oak", "ash", "elm", "yew")
SIZE = (3, 16, 16)


def cifar_model():
    """A small network for images, with statistics that are not those of a beginning, and a calibration."""
    torch.manual_seed(0)
    network = balpoe.expert_network("resnet32", num_classes=4, num_experts=3, width=4, cosine_scale=8.0)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(module.weight, 0.5, 2)
    preprocessing = balpoe.Preprocessing(SIZE, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    calibration = ExpertCalibration((1.5, 0.8, 1.2), frequency_bias=0.1)
    lambdas = torch.tensor([1.0, 0.5, -1.0])
    return balpoe.Model(
        network.eval(), NAMES, COUNTS, preprocessing, COUNTS / COUNTS.sum(), lambdas, Recipe(), None, calibration
    )


def images(number, seed=1):
    return torch.randint(0, 256, (number, *SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def model():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("balpoe.networks.resnet_cifar.BLOCKS_PER_STAGE", 1)
        return cifar_model()


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    return balpoe.export(model, tmp_path_factory.mktemp("export") / "model.onnx", images=images(20), license="MIT")


@pytest.mark.parametrize("number", [1, 2, 7])
def test_a_plain_runtime_gives_what_the_model_gives_under_any_prior(model, made, number):
    session = onnxruntime.InferenceSession(made.path)
    metadata = session.get_modelmeta().custom_metadata_map
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4])
    for log_prior, target in ((json.loads(metadata["log_prior"]), None), (prior.log().tolist(), prior)):
        feed = {"images": images(number).numpy(), "log_prior": np.array(log_prior, dtype=np.float32)}
        logits, probabilities, expert_logits = map(torch.from_numpy, session.run(None, feed))
        torch.testing.assert_close(probabilities, model.predict(images(number), target), atol=2e-6, rtol=0)
        torch.testing.assert_close(expert_logits, model.expert_logits(images(number)), atol=2e-5, rtol=0)
        torch.testing.assert_close(logits.softmax(dim=1), probabilities)


def test_a_class_that_does_not_occur_is_excluded(model, made):
    log_prior = torch.tensor([0.5, 0.5, 0.0, 0.0]).log()
    found = balpoe.load(made.path).network.outputs(images(3), log_prior)[1]
    torch.testing.assert_close(found, model.predict(images(3), [0.5, 0.5, 0, 0]), atol=2e-6, rtol=0)
    assert float(found[:, 2:].max()) == 0


def test_a_loaded_file_is_used_like_any_model(model, made):
    loaded = balpoe.load(made.path, threads=1)
    for name in ("class_names", "preprocessing", "calibration", "num_classes"):
        assert getattr(loaded, name) == getattr(model, name)
    for name in ("class_counts", "train_prior", "lambdas", "source_prior"):
        torch.testing.assert_close(getattr(loaded, name), getattr(model, name))
    for prior in (None, "train", "uniform", {"oak": 1, "ash": 2, "elm": 3, "yew": 4}):
        torch.testing.assert_close(loaded.predict(images(5), prior), model.predict(images(5), prior), atol=2e-6, rtol=0)
    costs = {"costs": [1, 1, 1, 30], "target_prior": "train"}
    assert torch.equal(loaded.decide(images(30), **costs), model.decide(images(30), **costs))
    torch.testing.assert_close(loaded.unlabelled(images(4)).logits, model.unlabelled(images(4)).logits)
    image = images(1)[0].permute(1, 2, 0).repeat(2, 2, 1).numpy()  # of another size, as anybody has it
    torch.testing.assert_close(loaded.predict([image, image]), model.predict([image, image]), atol=2e-6, rtol=0)


def test_labelled_data_are_scored_as_by_the_model(model, made):
    data = balpoe.Dataset(images(40), torch.arange(40) % 4, NAMES, model.preprocessing)
    ours, theirs = (balpoe.evaluate(each.predictions(data), "train") for each in (model, balpoe.load(made.path)))
    assert theirs.accuracy == ours.accuracy
    assert theirs.nll == pytest.approx(ours.nll, abs=1e-5)
    assert (theirs.parameters, theirs.multiply_adds) == (ours.parameters, ours.multiply_adds)


def test_the_file_says_what_it_is(made):
    proto = onnx.load(made.path)
    metadata = {each.key: each.value for each in proto.metadata_props}
    assert [(each.domain, each.version) for each in proto.opset_import] == [("", OPSET)]
    assert json.loads(metadata["class_names"]) == list(NAMES)
    assert json.loads(metadata["class_counts"]) == COUNTS.tolist()
    assert json.loads(metadata["license"]) == "MIT"
    about = json.loads(metadata["balpoe"])
    assert (about["format"], about["version"], about["precision"]) == (1, balpoe.__version__, "fp32")
    assert np.exp(json.loads(metadata["log_prior"])) == pytest.approx(json.loads(metadata["source_prior"]))
    assert [each.type.tensor_type.shape.dim[0].dim_param for each in proto.graph.output] == ["batch"] * 3
    assert b"/" + b"site-packages" not in made.path.read_bytes()
    assert "BatchNormalization" not in {node.op_type for node in proto.graph.node}  # part of the convolutions


def test_what_was_checked_is_told(made):
    assert made.check.samples == 20
    assert 0 < made.check.difference < 1e-5
    assert made.check.agreement == 1
    assert (made.before, made.after) == ({}, {})
