"""What docs/scikit-learn.md says of features with heavy tails, from the record; and what the benchmark makes."""

import json

import numpy as np
from scipy.stats import kurtosis as excess

from scripts import ROOT, script

WAYS = ("normal scores", "without")


def test_what_the_page_says():
    rows = json.loads((ROOT / "results" / "heavy_tails.json").read_text())["rows"]
    plain, sinh, cauchy = ({way: f"{100 * value:.1f}" for way, value in row.items() if way in WAYS} for row in rows)
    text = " ".join((ROOT / "docs" / "scikit-learn.md").read_text(encoding="utf-8").split())
    assert f"{plain['normal scores']} % balanced as they are" in text
    assert f"{sinh['normal scores']} with normal scores and {sinh['without']} without them" in text
    assert f"a Cauchy distribution {cauchy['normal scores']} and {cauchy['without']}." in text


def test_the_maps_keep_the_order_and_make_heavy_tails():
    module = script("benchmarks/heavy_tails.py")
    x, y = module.problem(0)
    assert x.shape == (module.TRAIN + module.TEST, 20)
    assert len(np.unique(y)) == 5
    column = np.sort(x[:, 0])
    for name, mapped in module.MAPS.items():
        values = mapped(column)
        assert bool((np.diff(values) >= 0).all()), name
        assert (excess(values) > 9) == (name != "as they are"), name
