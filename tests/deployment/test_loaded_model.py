"""Decisions of a loaded model are those on its predictions."""

from dataclasses import replace

import pytest
import torch

import balpoe
from balpoe import Abstention, ConformalSets, Taxonomy, Thresholds, UnknownDetector, UserError
from balpoe.experiments.build import build_network
from balpoe.experiments.calibrate import Choice
from balpoe.experiments.model_file import save_model
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import recipe_toml, updated
from balpoe.method.expert_calibration import ExpertCalibration

COUNTS = torch.tensor([300, 120, 60, 15])
NAMES = ("oak", "ash", "elm", "yew")
TREE = Taxonomy.from_rows([("oak", "x"), ("ash", "x"), ("elm", "y"), ("yew", "y")], levels=("class", "group"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder, with a network that knows a little, and held-out predictions of it."""
    folder = tmp_path_factory.mktemp("run")
    recipe = updated(preset("digits-lt"), {"width": (16,)})
    torch.manual_seed(0)
    model = balpoe.Model(
        build_network(recipe, 4, (6,)).eval(), NAMES, COUNTS, balpoe.Preprocessing((6,)), COUNTS / COUNTS.sum(),
        torch.tensor([1.0, 0.0, -1.0]), recipe, None, ExpertCalibration((1.5, 1.5, 1.5)),
    )  # fmt: skip
    save_model(folder / "model.safetensors", model)
    (folder / "recipe.toml").write_text(recipe_toml(recipe))
    images = torch.randn(400, 6)
    answers = model.unlabelled(images).logits.argmax(dim=1)
    targets = torch.where(torch.rand(400) < 0.7, answers, torch.randint(4, (400,)))
    Choice(0.0, replace(model.unlabelled(images), targets=targets)).save(folder)
    return folder


IMAGES = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"target_prior": "train"},
        {"costs": [1, 1, 1, 30]},
        {"abstain_cost": 0.4, "target_prior": {"oak": 0.5, "ash": 0.2, "elm": 0.2, "yew": 0.1}},
        {"metric": "balanced_accuracy", "target_prior": "train"},
        {"costs": [[0, 1], [0, 1], [1, 0], [1, 0]], "answers": ("leave", "cut")},
    ],
)
def test_decisions_are_those_on_its_predictions(run, settings):
    model = balpoe.load(run)
    samples = model.unlabelled(IMAGES)
    torch.testing.assert_close(samples.logits.softmax(dim=1), model.predict(IMAGES))
    assert torch.equal(model.decide(IMAGES, **settings), balpoe.decide(samples, **settings))


def test_a_metric_is_fitted_on_the_held_out_samples_of_the_run(run, tmp_path):
    model = balpoe.load(run)
    for metric in ("macro_f1", "recall of yew at least 0.8"):
        rule = balpoe.fit_rule(model.held_out, metric, target_prior="train")
        assert torch.equal(model.decide(IMAGES, metric=metric, target_prior="train"), rule(model.unlabelled(IMAGES)))
        assert torch.equal(model.decide(IMAGES, rule=rule), rule(model.unlabelled(IMAGES)))
    (tmp_path / "alone.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    alone = balpoe.load(tmp_path / "alone.safetensors")
    assert (alone.run, alone.held_out) == (None, None)
    with pytest.raises(UserError, match="found with labelled samples; give held_out="):
        alone.decide(IMAGES, metric="recall of yew at least 0.8")
    again = alone.decide(IMAGES, metric="recall of yew at least 0.8", held_out=model.held_out)
    assert torch.equal(again, model.decide(IMAGES, metric="recall of yew at least 0.8"))


def test_everything_that_decides_takes_what_a_model_says(run):
    model = balpoe.load(run)
    samples, held_out = model.unlabelled(IMAGES), model.held_out
    assert Thresholds.fit(held_out, num_resamples=1)(samples).shape == (50, 4)
    assert Abstention.fit(held_out, 0.5)(samples).shape == (50,)
    assert ConformalSets.fit(held_out, alpha=0.2).predict(samples).shape == (50, 4)
    assert UnknownDetector.fit(held_out, "disagreement").predict(samples).shape == (50,)
    assert len(TREE.decide(samples, 0.8).names) == 50


def test_scores_that_are_no_posterior_are_refused(run):
    model = replace(balpoe.load(run), lambdas=None, source_prior=None)
    with pytest.raises(UserError, match="not probabilities for a known class mix"):
        model.decide(IMAGES)
