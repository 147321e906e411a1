"""balpoe export, and what other commands make of its file."""

import contextlib
import csv
import io

import pytest

import balpoe
from balpoe.cli.main import main
from balpoe.experiments.build import recipe_data
from balpoe.experiments.model_file import save_model
from balpoe.experiments.recipe import updated
from commands import sentence
from exported_models import made_feature_model


@pytest.fixture(scope="module")
def small(forest):
    """A file with two of a run's experts in int8, and what was printed of it."""
    path, out = forest / "small.onnx", io.StringIO()
    command = ["export", str(forest / "runs" / "trees"), "--out", str(path), "--precision", "int8", "--experts", "0,2"]
    with contextlib.redirect_stdout(out):
        assert main([*command, "--images", str(forest / "trees" / "ash"), "--license", "CC0"]) == 0
    return path, out.getvalue()


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


def test_a_run_is_exported_predicts_the_same_and_is_evaluated(run, forest):
    folder = forest / "runs" / "trees" / "seed-0"
    code, out, _ = run("export", folder)
    assert code == 0
    assert out.splitlines()[0].startswith(f"{folder / 'model.onnx'}: ")
    assert "test samples: probabilities differ by at most" in out
    assert "100.0 % of the answers are the same" in out
    flags = ("--prior", "train", "--top", "2", "--experts", "--costs", forest / "costs.csv")
    images = forest / "trees" / "cedar"
    ours, theirs = (rows_of(run("predict", each, images, *flags)[1]) for each in (folder, folder / "model.onnx"))
    assert len(ours) == 30
    for one, other in zip(ours, theirs, strict=True):
        for name in one:
            if name.startswith("probability"):
                assert float(other[name]) == pytest.approx(float(one[name]), abs=1e-5)
            else:
                assert other[name] == one[name]
    files = folder / "model.safetensors", folder / "model.onnx"
    scores = [run("evaluate", each, "--data-root", forest / "trees")[1] for each in files]
    tables = [[line for line in each.splitlines() if "ensemble" in line] for each in scores]
    assert tables[0] == tables[1] != []


def test_fewer_bits_and_experts_are_measured_on_the_runs_own_test_set(forest, small, run):
    path, printed = small
    first, compared, measured = printed.splitlines()
    assert first.startswith(f"{path}: ")
    assert first.endswith(" MB, format onnx, int8")
    assert compared.startswith("Against the model, on 80 given images: ")
    whole, some = (balpoe.load(each) for each in (forest / "runs" / "trees", path))
    _, test = recipe_data(updated(whole.recipe, {"data_root": str(forest / "trees")}))
    before, after = (balpoe.evaluate(each.predictions(test)) for each in (whole, some))
    for title, name in (("accuracy", "accuracy"), ("balanced", "balanced_accuracy"), ("ECE", "ece")):
        values = (f"{100 * getattr(each, name):.1f}" for each in (before, after))
        assert "{} {} before, {} after".format(title, *values) in measured
    assert "ensemble" in run("evaluate", path, "--data-root", forest / "trees")[1]
    header, *rows = run("predict", path, forest / "trees" / "ash", "--experts")[1].splitlines()
    assert header == "file,label,probability,expert 1,expert 2,error"
    assert len(rows) == 80
    assert some.network.about["license"] == "CC0"


@pytest.fixture
def no_cifar(monkeypatch):
    """The file of a model names a data set, which would be read where it is at hand."""
    monkeypatch.delenv("BALPOE_DATA", raising=False)


def test_a_file_alone_is_checked_on_random_samples(run, no_cifar, tmp_path):
    save_model(tmp_path / "alone.safetensors", made_feature_model())
    code, out, _ = run("export", "alone.safetensors", "--format", "torch", "--experts", "0,1")
    assert code == 0
    assert out.startswith("alone.pt2: ")
    assert "random samples, as no image was given" in out
    assert "Not measured on labelled samples" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no model"),
        (["m.safetensors", "--experts", "a"], "--experts wants numbers from 0, such as 0,2, but is 'a'"),
        (["m.safetensors", "--experts", "7"], "different numbers from 0 to 2"),
        (["m.safetensors", "--precision", "int8"], "int8 takes its scales from images"),
        (["m.safetensors", "--format", "onx"], "invalid choice: 'onx'"),
        (["m.safetensors", "--out", "m.safetensors"], "is read, and would be lost"),
        (["m.safetensors", "--out", "m.bin"], "ends neither in .onnx nor in .pt2"),
        (["m.safetensors", "--images", "x.png"], "takes features, not images"),
    ],
)
def test_mistakes(run, no_cifar, tmp_path, arguments, words):
    save_model(tmp_path / "m.safetensors", made_feature_model())
    code, out, err = run("export", *arguments)
    assert (code, out) == (2, "")
    assert words in sentence(err)
    assert not list(tmp_path.glob("*.onnx"))
