"""The user's own images on the page: the right ones, small and few, and a plain word where they are not there."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from balpoe import Predictions
from balpoe.data.loading.decode import read_image
from balpoe.experiments.build import own_data
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import recipe_toml, updated
from balpoe.experiments.run_folder import Run
from balpoe.report.confusions import confident_errors, confident_errors_section, confusions_section
from balpoe.report.images import CHANGED, NOT_THERE, SIDE, Shown, gallery, load_images
from balpoe.report.inputs import Subject
from images import picture, picture_folder


@pytest.fixture
def subject(tmp_path, monkeypatch):
    """A run on a folder of images whose every answer is wrong; nothing is trained."""
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))
    root = picture_folder(tmp_path / "photos", {"ash <b>": 60, "birch": 40, "elm": 20})
    changes = {"dataset": "own", "data_root": str(root), "network": "resnet32", "image_size": 32}
    data = own_data(updated(preset("cifar100-lt"), changes))
    recipe = updated(preset("cifar100-lt"), {**changes, "data_version": data.version})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text(recipe_toml(recipe), encoding="utf-8")
    targets = data.test.targets
    logits = torch.nn.functional.one_hot((targets + 1) % 3, 3) * torch.linspace(1, 4, len(targets))[:, None]
    predictions = Predictions(logits[:, None], targets, data.train.class_counts, [0.0], data.test.class_names)
    return Subject("photos", (predictions,), ({},), (20, 100), (Run(tmp_path / "run"),))


def pictures(sections):
    """Every image of some sections: its words, its file's name, and its pixels."""
    text = "".join(each.html for part in sections for each in part.exhibits if hasattr(each, "html"))
    tags = re.findall(r'<img src="data:image/jpeg;base64,([^"]+)" alt="([^"]*)" title="([^"]*)">', text)
    opened = (Image.open(io.BytesIO(base64.b64decode(data))) for data, _, _ in tags)
    return [(words, name, np.asarray(image)) for (_, words, name), image in zip(tags, opened, strict=True)]


def test_they_are_the_samples_that_were_mistaken_as_the_loader_reads_them(subject):
    images, predictions = load_images(subject), subject.predictions[0]
    part = confident_errors_section(subject, images)
    errors = confident_errors(predictions)
    assert [row for row, _, _ in errors] == list(range(len(predictions) - 1, len(predictions) - 13, -1))
    for (words, name, pixels), (row, answer, _) in zip(pictures([part]), errors, strict=True):
        true = predictions.class_names[int(predictions.targets[row])].replace("<", "&lt;").replace(">", "&gt;")
        assert words.startswith(true)
        assert words.endswith(predictions.class_names[answer].replace("<", "&lt;").replace(">", "&gt;"))
        assert images.samples.paths[row].endswith(name)
        wanted = read_image(images.samples.paths[row], SIDE, SIDE).permute(1, 2, 0).numpy()
        assert pixels.shape == (SIDE, SIDE, 3)
        assert np.abs(pixels.astype(float) - wanted).mean() < 12  # a JPEG of noise


def test_they_are_few_and_small_and_their_folders_stay_at_home(subject, tmp_path):
    images = load_images(subject)
    parts = [confusions_section(subject, images), confident_errors_section(subject, images)]
    assert 12 < len(pictures(parts)) <= 24
    text = "".join(each.html for part in parts for each in part.exhibits if hasattr(each, "html"))
    assert len(text) < 300_000
    assert str(tmp_path) not in text
    assert "<b>" not in text


def test_a_folder_that_moved_is_found_by_data_root(subject, tmp_path):
    moved = (tmp_path / "photos").rename(tmp_path / "elsewhere")
    assert load_images(subject).why_not == NOT_THERE
    assert NOT_THERE in [each.markdown for each in confusions_section(subject, load_images(subject)).exhibits[1:]]
    assert load_images(subject, str(moved)).samples is not None


def test_other_images_are_not_shown_in_their_place(subject, tmp_path):
    picture(1, 99).save(tmp_path / "photos" / "birch" / "000.png")
    assert load_images(subject).why_not == CHANGED


def test_a_file_that_is_gone_is_named(subject):
    images = load_images(subject)
    with open(images.samples.paths[0], "wb") as stream:
        stream.write(b"garbage")
    shown, sentence = gallery(images, [Shown([0, 1], "elm, taken for ash")])
    assert shown.html.count("<img") == 1
    assert f"could not be read when this page was made: {images.file(0)}." in sentence.html


def test_features_and_predictions_from_elsewhere_have_none_and_no_complaint(subject):
    assert gallery(load_images(Subject("p", subject.predictions, ({},), (20, 100))), []) == []
