"""What docs/priors-measured.md says of made-up sites, from the record; the benchmark on predictions of a second."""

import json
from pathlib import Path

import numpy as np
import torch

from scripts import script

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "sites.json").read_text())
LINES = (ROOT / "docs" / "priors-measured.md").read_text(encoding="utf-8").splitlines()
NAMES = {
    "as trained": "as trained",
    "exact prior": "the exact priors",
    "shrunk counts": "`PriorTable` of 200 labels a site",
    "raw counts": "shares of the 200 labels",
    "yes/no list": "yes/no list of the 200 labels",
}


def test_200_labels_a_site_regain_nine_tenths_of_what_exact_priors_gain():
    row = RECORD["rows"][0]
    assert (row["concentration"], RECORD["labels"], RECORD["sites"]) == (0.1, 200, 20)
    assert RECORD["repetitions"] >= 20
    assert row["shrunk counts"]["regained"][1] >= 90  # also the lower end of its interval


def test_every_number_of_the_page():
    for row in RECORD["rows"]:
        for way, name in NAMES.items():
            start = f"| Dirichlet({row['concentration']:g}) | {name} | "
            cells = next(line for line in LINES if line.startswith(start)).removeprefix(start).rstrip(" |").split(" | ")
            value = row[way]
            assert cells[0] == f"{value['accuracy'][0]:.1f}"
            assert cells[-1] == ("infinite" if value["nll"] is None else f"{value['nll'][0]:.2f}")
            if way != "as trained":
                assert cells[1] == "{:+.1f} ({:+.1f} to {:+.1f})".format(*value["gain"])
            if way not in ("as trained", "exact prior"):
                assert cells[2] == "{:.1f} ({:.1f} to {:.1f})".format(*value["regained"])


def test_the_benchmark_runs_on_anybody_s_predictions(tmp_path):
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(400) % 20
    logits = torch.randn(400, 1, 20, generator=generator) + 2 * torch.nn.functional.one_hot(targets, 20)[:, None]
    np.savez(tmp_path / "theirs.npz", logits=logits, targets=targets, class_counts=np.full(20, 20), lambdas=[0])
    sites = script("benchmarks/sites.py")
    found = sites.measure(sites.predictions_of(tmp_path / "theirs.npz"), 0.1, 5, 100, 200, 0)
    gains = {way: found[way]["accuracy"] - found["as trained"]["accuracy"] for way in sites.WAYS}
    assert gains["exact prior"] > 0.1
    assert gains["shrunk counts"] > 0.7 * gains["exact prior"]
    assert found["shrunk counts"]["nll"] < found["as trained"]["nll"]
