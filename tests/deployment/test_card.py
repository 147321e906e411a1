"""A card says what the run's predictions say, stays short, and its folder is the model."""

import functools
import re
import shutil
from dataclasses import replace

import pytest
import torch
from huggingface_hub import ModelCard, metadata_load
from markdown_it import MarkdownIt

import balpoe
from balpoe import Preprocessing, UserError
from balpoe.cli.main import main
from balpoe.deployment import card_scores
from balpoe.deployment.card import KINDS, write_card
from balpoe.deployment.card_scores import CardScores
from balpoe.deployment.card_text import card_text
from balpoe.deployment.loaded_model import Model
from balpoe.evaluation.catalogue import METRICS
from balpoe.experiments.build import build_network
from balpoe.experiments.recipe import Recipe
from balpoe.method.expert_calibration import ExpertCalibration
from balpoe.networks.frozen_weights import weights_digest
from commands import QUICK
from made_predictions import HOSTILE, make


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits")
    assert main([*QUICK, "--runs", str(root), "--name", "my digits"]) == 0
    return root / "my digits" / "seed-0"


@pytest.fixture(scope="module")
def card(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("card") / "out"
    assert write_card(balpoe.load(run), folder) == ["model.safetensors", "recipe.toml", "config.json", "README.md"]
    return folder


def like(predictions, **settings):
    """A model that such predictions could be of."""
    recipe = Recipe(network="mlp", width=(4,), lambdas=(1, 0, -1))
    network = balpoe.expert_network("mlp", num_classes=predictions.num_classes, num_experts=3, num_features=5, width=4)
    fields = {"lambdas": predictions.lambdas, "class_names": predictions.class_names, **settings}
    return Model(
        network, class_counts=predictions.class_counts, preprocessing=Preprocessing((5,)),
        train_prior=predictions.train_prior, recipe=recipe, **fields,
    )  # fmt: skip


def text_of(predictions, **settings):
    return card_text("trees", like(predictions, **settings), CardScores.of(predictions, (20, 100)))


def tables(text):
    """Rows of cells of all tables."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]


def test_every_score_is_that_of_the_saved_predictions(run, card):
    predictions = balpoe.load_predictions(run / "predictions")
    groups = balpoe.load(run).recipe.shot_groups
    rows = {row[0]: row[1:] for row in tables((card / "README.md").read_text())}
    found = balpoe.evaluate(predictions, shot_groups=groups)
    for name in KINDS:
        label = METRICS[name].label + (", %" if METRICS[name].per_cent else "")
        value, low, high = (METRICS[name].shown(number) for number in (found.metrics[name], *found.intervals[name]))
        assert rows[label][0] == f"{value} ({low} to {high})"
    for label, (mix, word) in enumerate({"as in training": "train", "reversed, 50 to 1": "backward-50"}.items()):
        for place, adjust in enumerate((False, True)):
            scores = balpoe.evaluate(predictions, word, adjust=adjust, shot_groups=groups)
            assert rows[mix][place].startswith(f"{100 * scores.accuracy:.1f} ("), label
            assert rows[mix][2 + place].startswith(f"{100 * scores.ece:.1f} (")
    per_class = [rows[str(label)] for label in range(10)]
    assert [int(row[0]) for row in per_class] == predictions.class_counts.tolist()
    assert [row[2].split()[0] for row in per_class] == [f"{100 * value:.1f}" for value in found.per_class]


def test_the_hub_reads_the_metadata(run, card):
    metadata = metadata_load(card / "README.md")
    assert metadata["library_name"] == "balpoe"
    assert metadata["license"] == "unknown"
    loaded = ModelCard.load(card / "README.md")
    assert loaded.data.model_name == "my digits"
    assert loaded.data.pipeline_tag == "image-classification"
    evaluation = balpoe.evaluate(balpoe.load_predictions(run / "predictions"), num_resamples=0)
    values = {each.metric_type: each.metric_value for each in loaded.data.eval_results}
    assert values["accuracy"] == pytest.approx(evaluation.accuracy, abs=1e-4)
    assert set(values) == set(KINDS.values())
    assert loaded.text.lstrip().startswith("# my digits")


def test_the_folder_is_the_model(run, card):
    """It loads by itself, says the same, and tells nothing of this machine."""
    samples = torch.randint(0, 256, (7, *balpoe.load(run).preprocessing.size), dtype=torch.uint8)
    assert torch.equal(balpoe.load(card).predict(samples), balpoe.load(run).predict(samples))
    for file in ("README.md", "recipe.toml", "config.json"):
        assert str(run.parents[1]) not in (card / file).read_text()


def test_a_thousand_classes_fit_on_a_page(monkeypatch):
    monkeypatch.setattr(card_scores, "evaluate", functools.partial(balpoe.evaluate, num_resamples=0))
    counts = [1000 - label for label in range(1000)]
    text = text_of(balpoe.Predictions(torch.randn(1000, 3, 1000), torch.arange(1000), counts, [1, 0, -1]))
    assert len(text.splitlines()) < 80
    assert "| ... 990 more |  |  |  |" in text
    assert "1,000 classes have fewer than 20 test samples, 19 of them few-shot: " in text


def test_hostile_names_stay_text():
    names = (*HOSTILE, "a|b", "*bold* `code` [link](x)", "\nnew # heading", "y" * 500, "&amp;")
    predictions = make(samples=200, classes=len(names))
    text = card_text(HOSTILE[0], like(predictions, class_names=names), CardScores.of(predictions, (20, 100)))
    html = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(text)
    assert not re.search(r"<(script|img|em|a)\b", html)
    assert "yyy..." in html
    assert html.count("<h1>") == 1
    table = html.split("<table>")[1]
    assert table.count("<td>") == 4 * len(names)
    assert "a|b" in table


def test_limits_say_what_is_known():
    predictions = make(samples=400, classes=20)
    text = text_of(predictions)
    assert "It is not calibrated: probabilities are as trained" in text
    assert "No licence was given" in text
    none = balpoe.Predictions(
        predictions.expert_logits[:380], torch.arange(380) % 19, predictions.class_counts, [1, 0, -1]
    )
    text = text_of(none)
    assert "1 class has no test sample: nothing is known of them." in text
    assert "It was not measured under other class frequencies: " in text
    assert "## Under other class frequencies" not in text
    scores = balpoe.Predictions(predictions.expert_logits, predictions.targets, predictions.class_counts)
    text = text_of(scores, lambdas=None)
    assert "This method's scores are not probabilities for a known class mix" in text
    assert "target_prior" not in text
    few = balpoe.evaluate(predictions).few
    assert f"Rare classes are recognised less well: {100 * few:.1f} % of a few-shot class" in text


def test_confidence_that_is_too_high_is_told():
    predictions = make(samples=400, classes=20)
    sure = balpoe.Predictions(5 * predictions.expert_logits, predictions.targets, predictions.class_counts, [1, 0, -1])
    confidence = sure.logits.softmax(dim=1).max(dim=1).values.mean()
    accuracy = (sure.logits.argmax(dim=1) == sure.targets).double().mean()
    assert f"on the whole {100 * float(confidence - accuracy):.1f} points more sure than right" in text_of(sure)


def test_a_model_by_itself_has_no_scores(run, tmp_path):
    file = shutil.copy(run / "model.safetensors", tmp_path / "trees.safetensors")
    write_card(balpoe.load(file), tmp_path / "card", license="mit")
    text = (tmp_path / "card" / "README.md").read_text()
    assert "Not known: the card was written for a model's file alone" in text
    assert "model-index" not in metadata_load(tmp_path / "card" / "README.md")
    assert metadata_load(tmp_path / "card" / "README.md")["license"] == "mit"
    assert "No licence" not in text
    assert [row[0] for row in tables(text)] == ["class", "---", *map(str, range(10))]


def test_an_exported_model_goes_along(run, tmp_path):
    whole = shutil.copytree(run, tmp_path / "digits" / "seed-0")
    model = balpoe.load(whole)
    file = balpoe.export(model, whole / "model.onnx", experts=[0, 2], precision="fp16").path
    assert "model.onnx" in write_card(model, tmp_path / "card")
    assert (tmp_path / "card" / "model.onnx").read_bytes() == file.read_bytes()
    text = (tmp_path / "card" / "README.md").read_text()
    assert "`model.onnx` is the same model (2 of its 3 experts, fp16) for ONNX Runtime" in text
    with pytest.raises(UserError, match="this is an ONNX file; give the run that it is of"):
        write_card(balpoe.load(file), tmp_path / "further")
    model.network.classifier.weight.data += 0.1  # as if trained again since
    with pytest.warns(UserWarning, match="it is not of the model as it is now; export it again"):
        assert "model.onnx" not in write_card(model, tmp_path / "later")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.warns(UserWarning, match=r"model\.onnx is left out: .* export or fetch it again"):
        assert "model.onnx" not in write_card(model, tmp_path / "damaged")
    assert "model.onnx" not in (tmp_path / "damaged" / "README.md").read_text()


def test_an_exported_file_of_before_calibrations_could_be_known(run, tmp_path, monkeypatch):
    whole = shutil.copytree(run, tmp_path / "digits" / "seed-0")
    (whole / "model.onnx").touch()
    model = replace(balpoe.load(whole), calibration=ExpertCalibration((1.5, 1.25, 1.0)))
    kept = {"temperatures": [1.5, 1.25, 1.0], "frequency_bias": 0.0, "gain": 0.0}
    about = {"weights": weights_digest(model.network), "calibration": kept, "experts": 3, "precision": "fp32"}
    monkeypatch.setattr("balpoe.deployment.card.read_onnx", lambda path: (None, about))
    assert "model.onnx" in write_card(model, tmp_path / "card")


def test_adapters_take_their_backbone_along(tmp_path):
    torch.manual_seed(0)
    recipe = Recipe(network="test_vit", tune="adapters", split=-1, lambdas=(0,), image_size=32, width=(8,))
    network = build_network(recipe, 3, (3, 32, 32), trained=True)
    counts = torch.tensor([5, 3, 2])
    model = Model(
        network.eval(), ("a", "b", "c"), counts, Preprocessing((3, 32, 32)), counts / 10, torch.zeros(1), recipe
    )
    write_card(model, tmp_path / "card")
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(balpoe.load(tmp_path / "card").predict(images), model.predict(images))


def test_a_card_that_is_there_is_not_overwritten(run, card):
    before = (card / "README.md").read_bytes()
    with pytest.raises(UserError, match=r"README\.md is there already, perhaps with changes of yours"):
        write_card(balpoe.load(run), card)
    assert (card / "README.md").read_bytes() == before
