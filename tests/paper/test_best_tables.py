"""The tables of the best of every column, from made-up records."""

import json
from dataclasses import asdict

import pytest
import torch

import balpoe
from balpoe.paper.best_columns import BEST_RESULTS, COLUMNS, WIDTH_64, planned
from balpoe.paper.best_tables import PARAMETERS_64, columns_table, search_table, shifted_columns_table, width_table
from balpoe.paper.expected import PAPER_RESULTS

AT_50 = next(column for column in COLUMNS if column.preset == "cifar100-lt-50-best")


def write(results, folder, *records):
    (results / folder).mkdir(parents=True)
    for seed, record in enumerate(records, start=1):
        (results / folder / f"seed-{seed}.json").write_text(json.dumps(record))


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.fixture
def measured(tmp_path):
    """Two seeds of the column of ratio 50, one of them calibrated and estimated."""
    shifted = [{"name": str(place), "samples": 9, "as_trained": 0.5, "adjusted": 0.6} for place in range(11)]
    plain = {"evaluation": {"accuracy": 0.62, "ece": 0.02, "shifted": shifted}}
    estimated = [{"name": str(place), "estimated": 0.64} for place in range(11)]
    whole = {"evaluation": {**plain["evaluation"], "accuracy": 0.64}, "calibrated": {"ece": 0.01}}
    write(tmp_path, AT_50.folder, plain, {**whole, "estimated": estimated})
    return tmp_path


def test_columns(measured):
    table = rows(columns_table(measured))
    assert len(table) == len(COLUMNS) == 7
    first, _, second = table[:3]
    published = ["55.9 ± 0.4", "56.3 (SHIKE)", "58.4", "60.0"]
    assert first[:6] == ["CIFAR-100-LT, ratio 100: `cifar100-lt-best`", *published, "not measured yet"]
    assert second[2:5] == ["60.1 (BalPoE)", "62.5", "64.5"]
    assert second[5:] == ["63.0 ± 1.4", "7", "2 of 5", "2.0 ± 0.0", "1.0", "about 174", "-"]
    timed = {"recipe": "cifar100-lt-50-best", "seeds": 1, "cold": False, "epochs_seconds": 251.4}
    cold = {**timed, "cold": True, "epochs_seconds": 290.0}
    (measured / "whole_trainings.json").write_text(json.dumps({"rows": [cold, timed]}))
    assert rows(columns_table(measured))[2][-2] == "251"


@pytest.mark.parametrize(
    ("seconds", "each"),
    [([798, 799, 800, 797, 780], "160"), ([798, 799, 800, 797, 750], "-"), ([175, 176, 174, 175, 177], "-")],
    ids=["side by side", "one of them apart", "one after the other"],
)
def test_seeds_that_were_trained_side_by_side_say_what_each_took(tmp_path, seconds, each):
    write(tmp_path, AT_50.folder, *({"evaluation": {"accuracy": 0.6, "ece": 0.02}, "seconds": n} for n in seconds))
    assert rows(columns_table(tmp_path))[2][-1] == each


def test_under_shifted_priors(measured):
    table = rows(shifted_columns_table(measured))
    theirs = sum(PAPER_RESULTS["cifar100-lt-50/balpoe"].shifted.adjusted) / 11
    scores = ["2 of 5", "50.0", "60.0", "64.0", f"{theirs:.1f}", f"{60 - theirs:+.1f}"]
    assert table[2] == ["CIFAR-100-LT, ratio 50: `cifar100-lt-50-best`", *scores]
    assert table[4] == ["CIFAR-10-LT, ratio 100: `cifar10-lt-best`", "", "not measured yet", "", "", "-", ""]


def test_the_search(tmp_path):
    before = rows(search_table(tmp_path))
    assert all(row[1:3] == ["both", "not measured yet"] and not row[-1] for row in before)
    for place, result in enumerate(AT_50.search):
        scores = dict.fromkeys(("accuracy", "many", "medium", "few", "ece"), 0.5) | {"nll": 1.5 + place}
        mixed = {**scores, "temperature": 0.7, "at_temperature": {"ece": 0.02, "nll": 1.45 + place}}
        unmixed = {**mixed, "accuracy": 0.51, "few": None, "at_temperature": {"ece": 0.03, "nll": 1.4 + place}}
        recipe = asdict(result.recipe(1))
        write(tmp_path, result.folder, {"recipe": recipe, "evaluation": scores, "mixed": mixed, "unmixed": unmixed})
    table = rows(search_table(tmp_path))
    assert len(before) == sum(len(column.search) for column in COLUMNS) == 6 * 2 + 3
    assert len(table) == len(before) - 3 + 6
    title, there = "cifar100-lt-50-best: start", ["0.70", "2.0", "1.450"]
    first, second = (row for row in table if row[0] == title)
    assert first == [title, "mixed", *["50.0"] * 5, "1.500", *there, "about 55", ""]
    there = ["0.70", "3.0", "1.400", "the same", "yes"]
    assert second == [title, "unmixed", "51.0", "50.0", "50.0", "-", "50.0", "1.500", *there]
    assert [row[-1] for row in table].count("yes") == 1
    recipe = asdict(planned(AT_50.result, tmp_path)[0].recipe(1))
    write(tmp_path, AT_50.folder, {"recipe": recipe, "evaluation": {"accuracy": 0.6, "ece": 0.02}})
    row = rows(columns_table(tmp_path))[2]  # of what was chosen, which the preset need not say yet
    assert (row[6], row[-2]) == ("3", "about 55")


def test_width_64(tmp_path):
    write(tmp_path, WIDTH_64[1].folder, {"evaluation": {"accuracy": 0.601, "ece": 0.031}})
    table = rows(width_table(tmp_path))
    assert [row[1] for row in table[:2]] == ["7,409,216", "21,484,096"]
    assert table[0][3:5] == ["0 of 3", "not measured yet"]
    assert table[1][3:] == ["1 of 3", "60.1", "-", "-", "3.1"]
    assert table[2][4:7] == ["58.41", "64.57", "74.28"]
    for result in WIDTH_64:
        recipe = result.recipe(1)
        with torch.device("meta"):
            network = balpoe.expert_network("resnet32", num_classes=100, num_experts=recipe.experts, width=64)
        assert sum(weight.numel() for weight in network.parameters()) == PARAMETERS_64[result.folder]


def test_results_have_folders_of_their_own():
    assert len(BEST_RESULTS) == len(COLUMNS)
    assert set(BEST_RESULTS) & set(PAPER_RESULTS) == {"cifar100-lt-best/balpoe"}
