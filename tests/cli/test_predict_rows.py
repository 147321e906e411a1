"""Rows of predict, against what the library says of the same images."""

import csv
import io

import pytest
import torch

import balpoe
from balpoe.cli import flags
from balpoe.evaluation.image_views import VIEWS


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
