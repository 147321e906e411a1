"""Images and pretrained backbones in scikit-learn, with a tiny transformer of random weights in a file."""

import pickle

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.base import clone
from sklearn.model_selection import cross_val_predict

import balpoe
from balpoe import BalPoEClassifier, UserError
from balpoe.data.loading.image_files import decoded
from balpoe.estimator.backbones import BackboneFeatures, BackboneImages, image_rows, tuned_network
from images import picture

COUNTS = {"ash": 24, "birch": 12, "oak": 6}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), file)
    return str(file)


@pytest.fixture(scope="module")
def photos():
    """Images of 24 pixels, uint8 (samples, 24, 24, 3), and their labels."""
    images = [picture(label, number) for label, count in enumerate(COUNTS.values()) for number in range(count)]
    return np.stack(images), np.repeat(list(COUNTS), list(COUNTS.values()))


def made(weights, tune, **settings):
    same = {"network": "test_vit", "image_size": 32, "weights": weights, "random_state": 0, "mixup_alpha": 0}
    return BalPoEClassifier(tune=tune, **{**same, "epochs": 2, "device": "cpu", **settings})


@pytest.fixture(scope="module")
def fitted(weights, photos):
    return {tune: made(weights, tune).fit(*photos) for tune in ("head", "adapters", "full")}


@pytest.mark.parametrize("tune", ["head", "adapters", "full"])
def test_probabilities_priors_and_copies(fitted, photos, tune):
    (images, labels), classifier = photos, fitted[tune]
    assert classifier.classes_.tolist() == list(COUNTS)
    np.testing.assert_allclose(classifier.class_prior_, [24 / 42, 12 / 42, 6 / 42])
    uniform = classifier.predict_proba(images[:9])
    np.testing.assert_allclose(uniform.sum(axis=1), 1, rtol=1e-6)
    prior = np.array([1, 2, 7])
    moved = clone(classifier)  # which is as new
    with pytest.raises(Exception, match="not fitted"):
        moved.predict(images)
    moved = pickle.loads(pickle.dumps(classifier)).set_params(target_prior=prior)
    expected = uniform * prior / (uniform * prior).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(moved.predict_proba(images[:9]), expected, rtol=1e-5)
    assert classifier.temperature_ > 0
    assert len(classifier.held_out_) > 0
    assert classifier.predict_expert_proba(images[:4]).shape == (4, 3, 3)
    assert classifier.predict_set(images[:4]).shape == (4, 3)
    assert classifier.score(images, labels) >= 0


def test_what_learns(fitted, weights):
    """Of the backbone: nothing, adapters alone, all of it."""
    before = timm.create_model("test_vit", num_classes=0)
    theirs = torch.nn.ModuleDict({"model": before})
    state = balpoe.networks.pretrained.read_weights(weights)
    assert len(list(fitted["head"].network_.trunk.parameters())) == 0  # features come in
    kept = fitted["head"]._plan.inputs.network.trunk.state_dict()
    assert torch.equal(kept["model.blocks.0.attn.qkv.weight"], state["blocks.0.attn.qkv.weight"])
    adapted = fitted["adapters"].network_.trunk
    assert torch.equal(adapted.model.blocks[0].attn.qkv.weight, state["blocks.0.attn.qkv.weight"])
    assert adapted.model.blocks[0].mlp.adapter.up.abs().max() > 0
    whole = fitted["full"].network_.trunk.state_dict()
    assert not torch.equal(whole["model.blocks.0.attn.qkv.weight"], state["blocks.0.attn.qkv.weight"])
    assert set(theirs.state_dict()) == set(whole)


@pytest.mark.parametrize("tune", ["head", "adapters"])
def test_images_in_any_form_are_the_same(fitted, photos, tmp_path, tune):
    images, classifier = photos[0][:5], fitted[tune]
    expected = classifier.predict_proba(images)
    opened = [Image.fromarray(image) for image in images]
    for number, image in enumerate(opened):
        image.save(tmp_path / f"{number}.png")
    paths = sorted(tmp_path.glob("*.png"))
    forms = [list(images), opened, paths, list(map(str, paths)), np.array(list(map(str, paths))), torch.tensor(images)]
    for same in forms:
        np.testing.assert_allclose(classifier.predict_proba(same), expected, rtol=1e-5)


def test_features_are_those_of_the_backbone_on_each_image(photos, weights):
    settings = {"weights": weights, "image_size": 32, "cosine_scale": 16.0, "num_classes": 2, "num_experts": 1}
    network = tuned_network("head", "test_vit", **settings)
    images = BackboneImages("test_vit", 32)
    rows = image_rows(photos[0])
    inputs = BackboneFeatures(images, network, rows, np.ones(len(rows)), "cpu")
    with torch.no_grad():
        batches = (images.preprocessing.normalise(decoded(row, images.preprocessing)[None]) for row in rows)
        one_by_one = [network.features(batch) for batch in batches]
    features = torch.cat(one_by_one).double()
    standard = (features - features.mean(dim=0)) / features.std(dim=0, correction=0)
    middle = standard.abs().max(dim=0).values < 3  # no heavy tails
    bent = standard / (1 + (standard / 8) ** 2).sqrt()
    torch.testing.assert_close(inputs(rows)[:, middle].double(), bent[:, middle], rtol=1e-3, atol=1e-3)


def test_blocks_of_images_change_nothing(fitted, photos, monkeypatch):
    whole = fitted["adapters"].predict_proba(photos[0])
    monkeypatch.setattr("balpoe.estimator.classifier.IMAGES_AT_ONCE", 5)
    np.testing.assert_allclose(fitted["adapters"].predict_proba(photos[0]), whole, rtol=1e-4)
    assert fitted["adapters"].predict_set(photos[0]).shape == (42, 3)


def test_in_cross_validation_with_paths_weights_and_groups(photos, weights, tmp_path):
    images, labels = photos
    paths = []
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number:03}.png")
        paths.append(str(tmp_path / f"{number:03}.png"))
    classifier = made(weights, "head")
    assert cross_val_predict(classifier, paths, labels, cv=2).shape == (42,)
    half = np.arange(42) % 2
    weighted = clone(classifier).fit(images, labels, sample_weight=half, groups=np.arange(42) // 4)
    np.testing.assert_allclose(weighted.class_prior_, [12 / 21, 6 / 21, 3 / 21])


def test_warm_start_goes_on_with_images(photos, weights):
    classifier = made(weights, "adapters", warm_start=True, epochs=1).fit(*photos)
    up = classifier.network_.trunk.model.blocks[0].mlp.adapter.up.clone()
    classifier.fit(*photos)
    assert [entry["epoch"] for entry in classifier.history_] == [0, 1]
    assert not torch.equal(classifier.network_.trunk.model.blocks[0].mlp.adapter.up, up)
    with pytest.raises(UserError, match="warm_start goes on with what learnt in the last fit, but tune is another"):
        classifier.set_params(tune="full").fit(*photos)


def test_parameters_and_what_is_usual(photos, weights):
    classifier = made(weights, "full")
    assert clone(classifier).get_params() == classifier.get_params()
    settings = classifier._settings(classifier._new_plan(image_rows(photos[0]), np.ones(42)), 42, 38, 0.2)
    preset = balpoe.experiments.presets.preset("own-full")
    same = (
        "optimizer",
        "lr",
        "weight_decay",
        "depth_lr_decay",
        "clip_gradients",
        "weight_average_decay",
        "decay_norms",
    )
    assert [getattr(settings, name) for name in same] == [getattr(preset, name) for name in same]
    classifier.set_params(lr=0.5, weight_decay=0.1)
    changed = classifier._settings(classifier._new_plan(image_rows(photos[0]), np.ones(42)), 42, 38, 0.2)
    assert (changed.lr, changed.weight_decay) == (0.5, 0.1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tune": "heads"}, "unknown tune 'heads'; did you mean 'head'"),
        ({"tune": True}, "unknown tune 'True'"),
        ({"network": "resnet32"}, "tune is for backbones of timm, but network is 'resnet32'; leave one"),
        ({"network": "test_vitt"}, "unknown network 'test_vitt'; did you mean 'test_vit'"),
        ({"network": lambda **_: None}, "network must be a model of timm, by its name, where tune is given"),
        (
            {"image_size": 20},
            "images of 20 pixels cannot be cut into the patches of 16 pixels of test_vit; give an image",
        ),
        ({"image_size": 32.5}, "image_size must be a whole number, but is 32.5"),
        ({"weights": "nowhere.pth"}, "there is no file nowhere.pth to read weights from; check the path"),
        (
            {"network": "test_resnet", "tune": "adapters"},
            "'conv1.0.weight'; give a file that was made for this",
        ),
        (
            {"network": "test_resnet", "tune": "adapters", "weights": "random"},
            "has no blocks that can be adapted; choose",
        ),
        ({"augmentation": "crop-flip"}, "features that are computed once cannot be varied; set augmentation to"),
        ({"cosine_scale": "a"}, "cosine_scale must be a number, but is 'a'"),
        ({"lr": "a"}, "lr must be a number, but is 'a'"),
    ],
)
def test_wrong_settings_get_one_sentence(photos, weights, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        made(weights, "head").set_params(**settings).fit(*photos)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda X: X.transpose(0, 3, 1, 2), r"shape \(3, 24, 24\) and type uint8; its channels come first"),
        (lambda X: X / 255, "X has images of shape .* and type float64"),
        (
            lambda X: X.reshape(len(X), -1)[:, :3],
            r"of shape \(3,\) and type uint8; leave tune out for tables",
        ),
        (lambda X: [*X[:-1], X[0] / 255], "sample 41 of X has images of shape .* and type float64"),
        (lambda X: X.reshape(len(X), -1).tolist(), "but X holds list; leave tune out for tables"),
        (lambda X: np.arange(len(X)), "but X holds int"),
        (lambda X: "photos", "but X is of type str"),
        (lambda X: [f"{number}.png" for number in range(len(X))], "cannot read 0.png: no such file or directory"),
    ],
)
def test_what_is_no_image_gets_one_sentence(photos, weights, change, sentence):
    with pytest.raises(UserError, match=sentence):
        made(weights, "head").fit(change(photos[0]), photos[1])


def test_lengths_and_nothing(fitted, photos, weights):
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        made(weights, "head").fit(photos[0][:5], photos[1])
    with pytest.raises(ValueError, match="0 sample"):
        fitted["head"].predict([])


def test_a_class_of_one_image_has_a_mean(photos, weights):
    images, labels = photos
    rows = [*range(24), 24]
    classifier = made(weights, "adapters", epochs=1).fit(images[rows], labels[rows])
    assert np.isfinite(classifier.predict_proba(images)).all()
