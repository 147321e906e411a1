"""A classifier as a model: the same scaling, the same probabilities, in a file of its own."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import balpoe
from balpoe import BalPoEClassifier, UserError
from balpoe.deployment.some_experts import with_experts
from balpoe.estimator.deployed import FeatureScaling
from balpoe.estimator.inputs import FeatureInputs
from balpoe.networks import expert_network


def table(samples=150, seed=0):
    """Four features of which two have heavy tails, and three classes of which one is rare."""
    rng = np.random.default_rng(seed)
    y = np.repeat(["oak", "ash", "yew"], [samples // 2, samples // 3, samples - samples // 2 - samples // 3])
    X = rng.normal(size=(len(y), 4)) + (y == "ash")[:, None] - 2 * (y == "yew")[:, None]
    X[:, 1], X[:, 3] = np.exp(3 * X[:, 1]), 1e4 * np.sinh(3 * X[:, 3])
    return X.astype(np.float32), y


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=4, max_size=4))
def test_scaling_in_torch_is_that_of_the_classifier(row):
    inputs = FeatureInputs(table()[0], np.ones(150))
    assert sorted(inputs.scores) == [1, 3]
    X = np.array([row, *table()[0][:20]], dtype=np.float32)
    torch.testing.assert_close(FeatureScaling(inputs)(torch.from_numpy(X)), inputs(X))


@pytest.fixture(scope="module")
def classifier():
    return BalPoEClassifier(lambdas=(1, -1), epochs=3, mixup_alpha=0, hidden=(4,), random_state=0).fit(*table())


def test_a_file_of_a_classifier_gives_its_probabilities(classifier, tmp_path):
    X = table()[0]
    made = classifier.export(tmp_path / "model.onnx", images=X)
    assert made.check.difference < 1e-5
    loaded = balpoe.load(made.path)
    assert loaded.class_names == tuple(classifier.classes_)
    assert loaded.class_counts.tolist() == [50, 75, 25]
    for prior in ("uniform", "train"):
        expected = classifier.set_params(target_prior=prior).predict_proba(X)
        assert np.abs(loaded.predict(X, prior).numpy() - expected).max() < 1e-5
    experts = loaded.expert_logits(X).softmax(dim=2).numpy()
    assert np.abs(experts - classifier.predict_expert_proba(X)).max() < 1e-5


def test_features_without_heavy_tails_are_exported(tmp_path):
    X, y = table()
    X = X[:, [0, 2]]
    classifier = BalPoEClassifier(lambdas=(1, -1), epochs=2, mixup_alpha=0, hidden=(4,), random_state=0).fit(X, y)
    loaded = balpoe.load(classifier.export(tmp_path / "model.onnx", images=X).path)
    assert np.abs(loaded.predict(X).numpy() - classifier.predict_proba(X)).max() < 1e-5


def test_images_are_exported_as_bytes_alone(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8), np.arange(40) % 2
    small = {"epochs": 1, "mixup_alpha": 0, "random_state": 0}
    bytes_alone = BalPoEClassifier(network=lambda **sizes: expert_network("resnet32", width=2, **sizes), **small)
    model = bytes_alone.fit(X, y).deployed_model()
    assert np.abs(model.predict(X).numpy() - bytes_alone.predict_proba(X)).max() < 1e-5
    with pytest.raises(UserError, match="fit it with uint8 images"):
        bytes_alone.fit(X / 255.0, y).export(tmp_path / "model.onnx")


@pytest.mark.parametrize("chosen", [[0], [1, 0]])
def test_some_experts_are_those_of_every_network(classifier, chosen):
    X = table()[0]
    some = with_experts(classifier.deployed_model(), chosen)
    expected = classifier.predict_expert_proba(X)[:, chosen]
    assert np.abs(some.expert_logits(torch.from_numpy(X)).softmax(dim=2).numpy() - expected).max() < 1e-5


def test_a_file_has_the_chosen_experts_and_the_prior_that_is_set(classifier, tmp_path):
    X = table()[0]
    prior = {"oak": 1, "ash": 0, "yew": 9}
    model = classifier.set_params(target_prior=prior).deployed_model()
    assert np.abs(model.predict(torch.from_numpy(X)).numpy() - classifier.predict_proba(X)).max() < 1e-5
    loaded = balpoe.load(classifier.export(tmp_path / "model.onnx", images=X, experts=[0]).path)
    classifier.set_params(target_prior="uniform")
    torch.testing.assert_close(loaded.source_prior, loaded.train_prior)  # its lambda is 1
    logits = np.log(classifier.predict_expert_proba(X)[:, 0]) - np.log(classifier.class_prior_)
    weights = np.exp(logits) * [0, 1, 9]  # ash, oak and yew
    expected = weights / weights.sum(axis=1, keepdims=True)
    assert np.abs(loaded.predict(X).numpy() - expected).max() < 1e-5
    _, found, _ = loaded.network.outputs(torch.from_numpy(X))  # as of another runtime, which is fed the metadata
    assert np.abs(found.numpy() - expected).max() < 1e-5


def test_a_prior_that_new_samples_say_is_no_default(classifier):
    model = classifier.set_params(target_prior="estimate").deployed_model()
    classifier.set_params(target_prior="uniform")
    assert model.default_prior is None
