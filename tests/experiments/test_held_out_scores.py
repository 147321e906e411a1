"""What a comparison asks of runs: scores that are no posterior get a temperature, too, and keep their answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from balpoe.experiments.build import own_data
from balpoe.experiments.calibrate import Choice
from balpoe.experiments.model_file import load
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import train_run


def made_features(path):
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), (40, 20, 8))
    features = (generator.normal(size=(3, 5))[labels] + generator.normal(size=(68, 5))).astype(np.float32)
    np.savez(path, features=features, labels=labels)


def recipe_on(kind, tmp_path):
    changes = {"method": "ldam-drw", "epochs": 2, "width": (8,), "calibrate": True, "device": "cpu"}
    if kind == "digits":
        return updated(preset("digits-lt"), changes)
    made_features(tmp_path / "made.npz")
    recipe = updated(preset("own-features"), {**changes, "data_root": str(tmp_path / "made.npz")})
    return updated(recipe, {"data_version": own_data(recipe).version})


@pytest.mark.parametrize("kind", ["digits", "features"])
def test_a_run_gets_a_temperature_and_keeps_its_answers(kind, tmp_path, scores_without_a_prior):
    recipe, folder = recipe_on(kind, tmp_path), tmp_path / "run"
    run = train_run(recipe, folder)
    predictions, choice = run.predictions(), Choice.load(folder)
    assert choice.cross_fitted == (kind == "features")
    assert predictions.source_prior is None
    assert predictions.calibration == choice.held_out.calibration == load(folder).calibration
    assert predictions.calibration.frequency_bias == 0
    assert torch.equal(predictions.logits.argmax(dim=1), predictions.uncalibrated().logits.argmax(dim=1))
    evaluation = run.evaluation()
    assert evaluation["calibration"]["before"]["ece"] != evaluation["ece"]
    assert replace(choice.held_out, calibration=None).source_prior is None
