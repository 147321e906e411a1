"""Metrics of several views of each test image, against those of the library, and what views do not go with."""

import numpy as np

import balpoe
from balpoe.experiments.build import recipe_data
from balpoe.experiments.run_folder import Run
from commands import QUICK, sentence
from images import picture_folder


def test_metrics_are_those_of_the_library(run, forest, trees):
    model = balpoe.load(trees)
    recipe = Run(trees).recipe()
    _, test = recipe_data(recipe)
    evaluation = balpoe.evaluate(model.predictions(test, views="ten-crops"))
    code, out, _ = run("evaluate", trees, "--views", "ten-crops")
    assert code == 0
    assert "predicting ten-crops of its test set" in " ".join(out.split())
    assert "evaluation.json in the run" not in out  # which has one view
    for value in (evaluation.accuracy, evaluation.ece):
        assert f"{100 * value:.1f}" in out
    assert f"{evaluation.nll:.3f}" in out
    assert f"{Run(trees).evaluation()['nll']:.3f}" not in out  # which is of one view
    code, again, _ = run(
        "evaluate", trees / "model.safetensors", "--data-root", forest / "trees", "--views", "ten-crops"
    )
    assert code == 0
    assert f"{evaluation.nll:.3f}" in again
    code, both, _ = run("evaluate", trees, "--views", "flips", "--baseline", trees)
    assert code == 0
    assert "NLL +0.000 (+0.000 to +0.000)" in " ".join(both.split())


def test_a_test_part_that_is_no_longer_there(run, forest, trees, tmp_path):
    picture_folder(tmp_path / "others", {"ash": 9, "birch": 8, "cedar": 7}, first=50)
    code, _, err = run("evaluate", trees, "--views", "flips", "--data-root", tmp_path / "others")
    assert code == 2
    assert "are not what they were in training; train on them again" in sentence(err)


def test_what_views_do_not_go_with(run, forest, trees):
    for command, words in (
        (["evaluate", trees / "predictions", "--views", "flips"], "--views wants a model and its test images"),
        (["evaluate", trees, "--views", "flips", "--prior", "estimate"], "--prior estimate is checked by single views"),
        (["evaluate", trees, "--views", "flips", "--sets", "0.1"], "--views measures labels and probabilities alone"),
        (["evaluate", trees, "--views", "seven"], "invalid choice: 'seven'"),
        (["predict", trees, forest / "trees", "--views", "flips", "--sets", "0.1"], "fitted on single views"),
        (
            ["predict", trees, forest / "trees", "--views", "flips", "--track-prior", "a.npz", "--half-life", "9"],
            "--track-prior is checked by single views",
        ),
    ):
        code, _, err = run(*command)
        assert code == 2
        assert words in sentence(err)
    code, out, _ = run("predict", trees, forest / "trees", "--views", "flips", "--costs", forest / "costs.csv")
    assert code == 0
    assert out.count("\n") == 161


def test_features_have_no_views_and_images_in_memory_have(run, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", features=rng.normal(size=(40, 4)).astype("f4"), labels=np.arange(40) % 2)
    flags = ["--no-baseline", "--no-calibrate", "--epochs", "1", "--width", "4", "--device", "cpu"]
    assert run("train", tmp_path / "x.npz", *flags)[0] == 0
    code, _, err = run("evaluate", "runs/x", "--views", "flips")
    assert code == 2
    assert "flips are views of images, but samples have shape (4,); leave them out" in sentence(err)
    assert run(*QUICK, "--name", "digits")[0] == 0
    code, out, _ = run("evaluate", "runs/digits", "--views", "flips")
    assert code == 0
    model = balpoe.load("runs/digits")
    found = balpoe.evaluate(model.predictions(recipe_data(Run("runs/digits/seed-0").recipe())[1], views="flips"))
    assert f"{found.nll:.3f}" in out
