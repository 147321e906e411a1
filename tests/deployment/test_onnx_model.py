"""A model in ONNX Runtime is used like any other."""

from types import SimpleNamespace

import pytest
import torch

import balpoe
from balpoe import UserError
from balpoe.evaluation.image_views import VIEWS
from exported_models import NAMES, made_features, made_images


def test_a_loaded_file_is_used_like_any_model(image_model, image_export):
    loaded = balpoe.load(image_export.path, threads=1)
    assert isinstance(loaded, balpoe.Model)
    assert (loaded.run, loaded.held_out) == (None, None)
    for name in ("class_names", "preprocessing", "calibration", "num_classes"):
        assert getattr(loaded, name) == getattr(image_model, name)
    for name in ("class_counts", "train_prior", "lambdas", "source_prior"):
        torch.testing.assert_close(getattr(loaded, name), getattr(image_model, name))
    images = made_images(30)
    for prior in (None, "train", "uniform", {"oak": 1, "ash": 2, "elm": 3, "yew": 4}, [0.5, 0.5, 0, 0]):
        torch.testing.assert_close(loaded.predict(images, prior), image_model.predict(images, prior), atol=2e-6, rtol=0)
    costs = {"costs": [1, 1, 1, 30], "target_prior": "train"}
    assert torch.equal(loaded.decide(images, **costs), image_model.decide(images, **costs))
    torch.testing.assert_close(loaded.unlabelled(images).logits, image_model.unlabelled(images).logits)
    image = made_images(1)[0].permute(1, 2, 0).repeat(2, 2, 1).numpy()  # of another size, as anybody has it
    torch.testing.assert_close(loaded.predict([image]), image_model.predict([image]), atol=2e-6, rtol=0)


def test_what_the_graph_says_is_what_the_model_says(image_export):
    """One way in Python and one in the file: product, calibration and prior agree."""
    loaded, images = balpoe.load(image_export.path), made_images(5)
    for prior in (None, torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.5, 0.5, 0.0, 0.0])):
        logits, probabilities, expert_logits = loaded.network.outputs(images, None if prior is None else prior.log())
        torch.testing.assert_close(probabilities, loaded.predict(images, prior), atol=1e-6, rtol=0)
        torch.testing.assert_close(logits.softmax(dim=1), probabilities)
        assert torch.equal(expert_logits, loaded.expert_logits(images))


def test_labelled_data_are_scored_as_by_the_model(image_model, image_export):
    data = balpoe.Dataset(made_images(40), torch.arange(40) % 4, NAMES, image_model.preprocessing)
    ours, theirs = (
        balpoe.evaluate(each.predictions(data), "train") for each in (image_model, balpoe.load(image_export.path))
    )
    assert theirs.accuracy == ours.accuracy
    assert theirs.nll == pytest.approx(ours.nll, abs=1e-5)
    assert (theirs.parameters, theirs.multiply_adds) == (ours.parameters, ours.multiply_adds)


@pytest.mark.parametrize("views", VIEWS)
def test_views_are_those_of_the_model(image_model, image_export, views):
    loaded, images = balpoe.load(image_export.path), made_images(5)
    torch.testing.assert_close(loaded.predict(images, views=views), image_model.predict(images, views=views))
    larger = [image.permute(1, 2, 0).repeat(2, 2, 1).numpy() for image in images]  # crops are taken of those
    torch.testing.assert_close(loaded.predict(larger, views=views), image_model.predict(larger, views=views))
    data = balpoe.Dataset(images, torch.arange(5) % 4, NAMES, image_model.preprocessing)
    found, expected = (each.predictions(data, views=views).logits for each in (loaded, image_model))
    torch.testing.assert_close(found, expected)


def test_a_router_leaves_no_views(image_export):
    loaded = balpoe.load(image_export.path)
    loaded.network.router = True
    with pytest.raises(UserError, match="cannot be averaged where a router decides"):
        loaded.predict(made_images(2), views="flips")


def test_memory_bounds_the_samples_at_a_time(image_export, monkeypatch):
    whole, images = balpoe.load(image_export.path), made_images(10)
    monkeypatch.setattr("balpoe.deployment.onnx_memory.MOST_VALUES", 3 * whole.network.about["values_of_a_sample"] + 1)
    some, seen = balpoe.load(image_export.path), []
    run = some.network.session.run
    some.network.session = SimpleNamespace(run=lambda names, feed: seen.append(len(feed["images"])) or run(names, feed))
    torch.testing.assert_close(some.predict(images), whole.predict(images))
    assert seen == [3, 3, 3, 1]


def test_samples_that_it_cannot_take(image_export, feature_file):
    images, rows = balpoe.load(image_export.path), balpoe.load(feature_file)
    with pytest.raises(UserError, match=r"takes samples of torch.uint8, but got torch.float32"):
        images.predict(made_images(2).float())
    with pytest.raises(UserError, match=r"samples of shape \(6,\)"):
        rows.predict(torch.zeros(2, 5))
    torch.testing.assert_close(rows.predict(made_features(3).double()), rows.predict(made_features(3)))
