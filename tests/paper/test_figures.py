"""Figures from records: those of this repository, and made-up ones where nothing is measured yet."""

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from balpoe.paper import figures
from balpoe.paper.expected import PAPER_TABLES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A record for every result of the ablations, whose accuracy tells which it is."""
    tmp_path = tmp_path_factory.mktemp("results")
    record = json.loads((ROOT / "results" / "cifar100-lt" / "balpoe" / "seed-1.json").read_text())
    for table in ("experts", "mean-lambda", "alpha", "cifar100-lt", "cifar10-lt-calibration"):
        for number, result in enumerate(PAPER_TABLES[table]):
            path = tmp_path / result.folder / "seed-1.json"
            if path.exists():
                continue
            record["evaluation"]["accuracy"] = number / 100
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(record))
    # Of an early version, without the ensemble's check.
    early = tmp_path / "cifar100-lt" / "balpoe-no-mixup" / "seed-1.json"
    early.write_text((ROOT / "results" / "cifar100-lt" / "balpoe-no-mixup" / "seed-2.json").read_text())
    return tmp_path


def test_every_figure_is_drawn(results):
    figures.write_figures(results)
    names = {path.name for path in (results / "figures").iterdir()}
    ablations = {"experts.svg", "mean-lambda.svg", "alpha.svg"}
    diagrams = {"reliability-cifar100-lt.svg", "reliability-cifar10-lt-100.svg"}
    others = {"figure2.svg", "cost-cifar100-lt.svg", "marginals-cifar100-lt.svg"}
    assert names == {*others, *diagrams, *ablations}
    for path in (results / "figures").iterdir():
        text = path.read_text(encoding="utf-8")
        assert ET.fromstring(text).tag.endswith("svg")
        assert {"paper", "ink"} <= set(re.findall(r"var\(--([a-z-]+)\)", text))
        assert not re.findall(r"(?:fill|stroke): #", text)  # no colour that a dark page would not change


def test_average_predictions_lie_beside_their_priors(results, monkeypatch, undrawn):
    drawn = []
    monkeypatch.setattr(figures, "plot_marginal", lambda prior, marginal, *_, **__: drawn.append((prior, marginal)))
    figures.write_figures(results)
    evaluation = json.loads((results / "cifar100-lt" / "balpoe" / "seed-1.json").read_text())["evaluation"]
    checks = [evaluation["check"], *evaluation["expert_checks"]]
    for (prior, marginal), check in zip(drawn, checks, strict=True):
        assert marginal == pytest.approx(check["marginal"])
        divergence = sum(m * math.log(m / p) for m, p in zip(marginal, prior, strict=True))
        assert divergence == pytest.approx(check["marginal_kl"], rel=1e-3)


def test_curves_hold_the_results_they_should(results, monkeypatch, undrawn):
    drawn = []
    monkeypatch.setattr(figures, "plot_curves", lambda curves, axes, x, y, **_: drawn.append((x, y, curves)))
    figures.write_figures(results)
    by_label = {(x, y): curves for x, y, curves in drawn}
    experts = by_label["experts", "accuracy, all, %"]["all"]
    assert sorted(count for count, _ in experts) == [1, 2, 3, 4, 5, 6, 7]
    error = by_label["mean of the lambdas", "error, %"]
    assert set(error) == {"alpha 0", "alpha 0.2", "alpha 0.4"}
    assert all(sorted(mean for mean, _ in points) == [-1, -0.5, -0.25, 0, 0.25, 0.5, 1] for points in error.values())
    grid = [result.recipe(1) for result in PAPER_TABLES["mean-lambda"]]
    number = next(n for n, r in enumerate(grid) if r.expert_lambdas[1] == 0.5 and r.mixup_alpha == 0.2)
    assert dict(error["alpha 0.2"])[0.5] == pytest.approx(100 - number)
    alphas = by_label["alpha", "accuracy, all, %"]["ensemble"]
    assert sorted(alpha for alpha, _ in alphas) == [0, 0.1, 0.2, 0.4, 0.6, 0.8, 1]
    divergences = by_label["alpha", "KL of average and prior"]
    assert sorted(alpha for alpha, _ in divergences["ensemble"]) == [0.1, 0.2, 0.4, 0.6, 0.8, 1]
    assert len(divergences["lambda -1"]) == 7
