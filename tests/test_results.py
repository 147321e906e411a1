"""Every number of docs/results.md, computed again from the JSON files that the runs wrote."""

import json
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest

from balpoe.presets import preset
from balpoe.recipes import FIELDS, updated

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
RESULTS = ROOT / "results" / "cifar100-lt"
ROWS = re.findall(r"^\| .*\[([\w-]+)\]\(\.\./results/cifar100-lt/\1\) \| (\d+) \| (.*) \|$", TEXT, flags=re.MULTILINE)
CHANGES = {
    "cross-entropy": {"lambdas": (1,), "mixup_alpha": 0.0},
    "cross-entropy-mixup": {"lambdas": (1,)},
    "logit-adjusted": {"lambdas": (0,)},
    "balpoe-no-mixup": {"mixup_alpha": 0.0},
    "uniform": {"lambdas": (0, 0, 0)},
    "balpoe": {},
    "as-released": {"cosine_scale": 30.0},
}


def records(name):
    return [json.loads(path.read_text()) for path in sorted((RESULTS / name).glob("seed-*.json"))]


def text(values, scale=100):
    return f"{scale * fmean(values):.1f} ± {scale * stdev(values):.1f}"


def test_every_result_has_a_row():
    assert {name for name, _, _ in ROWS} == {path.name for path in RESULTS.iterdir()} == set(CHANGES)


@pytest.mark.parametrize(("name", "seeds", "cells"), ROWS, ids=lambda value: value if str(value) in CHANGES else "")
def test_the_main_table(name, seeds, cells):
    evaluations = [record["evaluation"] for record in records(name)]
    assert len(evaluations) == int(seeds)
    expected = [text([e[key] for e in evaluations]) for key in ("accuracy", "many", "medium", "few", "ece", "mce")]
    assert [cell.strip() for cell in cells.split("|")] == expected


def test_what_the_page_says_about_the_paper_s_numbers():
    """No difference beyond twice the larger of the two deviations."""
    lines = TEXT.splitlines()
    compared = 0
    for number, line in enumerate(lines):
        if line.startswith("| *paper* |"):
            pairs = zip(lines[number - 1].split("|")[3:-1], line.split("|")[3:-1], strict=True)
            for ours, paper in pairs:
                if "±" in paper:
                    (a, deviation), (b, other) = ([float(x) for x in cell.split("±")] for cell in (ours, paper))
                    assert abs(a - b) <= 2 * max(deviation, other) + 1e-9, line
                    compared += 1
    assert compared == 24


@pytest.mark.parametrize("name", CHANGES)
def test_each_record_is_of_the_recipe_that_the_row_names(name):
    for record in records(name):
        values = {key: value for key, value in record["recipe"].items() if key in FIELDS}
        recipe = updated(preset("cifar100-lt"), values)
        expected = updated(preset("cifar100-lt"), {**CHANGES[name], "seed": recipe.seed})
        assert recipe.identity() == expected.identity()
        assert record["environment"]["gpu"] == "NVIDIA H200"
        assert not record["recipe"]["data_root"]


def test_the_shifted_test_sets():
    evaluations = [record["evaluation"] for record in records("balpoe")]
    for number, row in enumerate(evaluations[0]["shifted"]):
        told, not_told = (text([e["shifted"][number][key] for e in evaluations]) for key in ("told", "not_told"))
        pattern = rf"^\| {row['name']} \| {row['samples']:,} \| {not_told} \| [\d.]+ \| {told} \| [\d.]+ \|$"
        assert re.search(pattern, TEXT, flags=re.MULTILINE), row["name"]


def test_the_checks_of_the_experts():
    for expert, lambda_ in enumerate((1, 0, -1)):
        cells = []
        for name in ("balpoe", "balpoe-no-mixup"):
            checks = [record["evaluation"]["expert_checks"][expert] for record in records(name)]
            cells.append(f"{fmean(check['weighted_kl'] for check in checks):.3f}")
            cells.append(f"{100 * fmean(check['weighted_ece'] for check in checks):.1f}")
        assert f"| lambda = {lambda_} | {' | '.join(cells)} |" in TEXT


def test_numbers_that_the_presets_quote():
    from balpoe.presets import PRESETS

    ours = text([record["evaluation"]["accuracy"] for record in records("balpoe")])
    assert f"ours {ours} %" in " ".join(PRESETS["cifar100-lt"].__doc__.split())


def test_what_experts_cost_on_a_cpu():
    rows = json.loads((ROOT / "results" / "cpu_experts.json").read_text())["rows"]
    for row in rows:
        kind = {"training": "training step", "inference": "inference"}[row["kind"]]
        line = f"| {kind} | {row['experts']} | {row['ours_over_loop']:.2f} | {row['ours_over_one_expert']:.2f} |"
        assert (line in TEXT) == (row["experts"] > 1)
    three = [row for row in rows if row["experts"] == 3]
    assert all(row["ours_over_loop"] <= 1.05 for row in three)
    assert next(row for row in three if row["kind"] == "inference")["ours_over_one_expert"] < 2.4
