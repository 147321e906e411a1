"""Rows of predict, against what the library says of the same images."""

import csv
import io
import re

import numpy as np
import pytest
import torch

import balpoe
from balpoe.cli import flags
from balpoe.evaluation.image_views import VIEWS
from commands import sentence


def test_flags_know_all_views():
    assert set(flags.VIEWS) == set(VIEWS)


@pytest.mark.parametrize("views", VIEWS)
def test_rows_are_those_of_the_library(run, forest, trees, views):
    folder = forest / "trees" / "cedar"
    files = sorted(map(str, folder.iterdir()))
    code, out, _ = run("predict", trees, folder, "--views", views, "--top", 3, "--prior", "backward-20")
    assert code == 0
    model = balpoe.load(trees)
    expected = model.predict(files, target_prior="backward-20", views=views)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["file"] for row in rows] == files
    columns = ("probability", "probability 2", "probability 3")
    found = torch.tensor([[float(row[name]) for name in columns] for row in rows])
    torch.testing.assert_close(found, expected.sort(descending=True).values, rtol=1e-4, atol=1e-5)
    single = model.predict(files, target_prior="backward-20")
    assert not torch.allclose(single.sort(descending=True).values, found, atol=1e-3)


def test_what_was_trained_on_features_is_asked_in_python(run, tmp_path):
    """The step that is named can be copied as it is."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 4))
    np.savez(tmp_path / "x.npz", features=features, labels=np.arange(40) % 2)
    np.save(tmp_path / "new.npy", features[:3])
    flags = ["--no-baseline", "--no-calibrate", "--epochs", "1", "--width", "4", "--device", "cpu"]
    assert run("train", "x.npz", *flags)[0] == 0
    for file, samples in (("new.npy", 3), ("x.npz", 40)):
        code, _, err = run("predict", "x", file)
        assert code == 2
        step = re.search(r"trained on features, not on images; use (.+) in Python", sentence(err))[1]
        assert eval(step, {"balpoe": balpoe, "numpy": np}).shape == (samples, 2)
    assert "predict(numpy.load('FILE.npy')) in Python" in run("predict", "x", "photos")[2]
