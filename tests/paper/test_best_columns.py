"""The best of every column: where each search starts, what it tries, and what it chooses."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

import pytest

from balpoe.cli.main import main
from balpoe.errors import UserError
from balpoe.experiments.presets import PRESETS, preset
from balpoe.experiments.recipe import updated
from balpoe.files import write_json
from balpoe.paper.best_columns import (
    BEST_RESULTS,
    BEST_TABLES,
    COLUMNS,
    EPOCHS,
    LONGER,
    TRIALS,
    WIDTH_64,
    candidates,
    chosen,
    is_outdated,
    leading,
    planned,
)
from balpoe.paper.best_tables import columns_table
from balpoe.paper.expected import PAPER_RESULTS, PAPER_TABLES
from balpoe.paper.reproduce import VALIDATED, missing_runs
from balpoe.paper.tables import measured_records
from balpoe.paper.training_cost import training_steps
from balpoe.paper.transfer import FURTHER_TABLES

ROOT = Path(__file__).parents[2]
SEARCHED = [column for column in COLUMNS if column.search]
BY_PRESET = {column.preset: column for column in COLUMNS}
TWO_TRIALS = BY_PRESET["cifar10-lt-50-best"]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.preset)
def test_a_preset_is_what_its_search_has_chosen(column):
    """So far; where the search starts, before its first trials are measured.

    And what it had chosen without a longer trial, as long as the records of the seeds are of that.
    """
    results = ROOT / "results"
    found = leading(column._replace(trials=TRIALS) if is_outdated(column, results) else column, results)
    changes = {**column.start, **(found.changes if found else {})}
    assert preset(column.preset).identity() == updated(preset("cifar100-lt-best"), changes).identity()


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.preset)
def test_columns_are_those_of_the_paper(column):
    recipe = preset(column.preset)
    name = {"cifar100-lt": "CIFAR-100-LT", "cifar10-lt": "CIFAR-10-LT"}[recipe.dataset]
    assert column.title == f"{name}, ratio {recipe.imbalance_ratio:g}"
    at_100 = column.title == "CIFAR-100-LT, ratio 100"
    long = "cifar100-lt-long/balpoe" if at_100 else column.folder.replace("-best", "-long")
    assert PAPER_RESULTS[long].paper["accuracy"] == column.paper
    assert column.published[0] >= column.paper[0]
    shifted = {result.folder for result in PAPER_RESULTS.values() if result.shifted}
    assert column.standard in shifted or (not column.standard and recipe.dataset == "cifar10-lt")
    assert column.folder in VALIDATED
    assert BEST_RESULTS[column.folder].seeds == 5


@pytest.mark.parametrize("column", SEARCHED, ids=lambda column: column.preset)
def test_trials_are_few_and_measured_on_held_out_images(column, tmp_path):
    assert len(list(candidates(column, tmp_path))) == 2 * len(column.trials) <= 6
    start = updated(preset("cifar100-lt-best"), column.start)
    for result, changes in zip(column.search, column.trials.values(), strict=True):
        recipe = result.recipe(1)
        classes = {"cifar100-lt": 100, "cifar10-lt": 10}[recipe.dataset]
        assert recipe.validation * classes == 2000
        assert (recipe.dataset, recipe.imbalance_ratio) == (start.dataset, start.imbalance_ratio)
        assert recipe.epochs == changes.get("epochs", EPOCHS)
        assert start.epochs >= 2 * EPOCHS
        assert not recipe.unmixed_statistics  # those are measured as well, of the same training
    assert column.search[0].recipe(1).identity() == updated(
        start, {"epochs": EPOCHS, "validation": column.validation, "seed": 1}
    ).identity()  # fmt: skip


def written(results, column, scores):
    """Records of a search: the NLL of each trial, with mixed and unmixed statistics."""
    for result, (mixed, unmixed) in zip(column.search, scores, strict=True):
        path = results / result.folder / "seed-1.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        kinds = {"mixed": mixed, "unmixed": unmixed}
        record = {kind: {"temperature": 0.123, "at_temperature": {"nll": nll}} for kind, nll in kinds.items()}
        path.write_text(json.dumps({"recipe": asdict(result.recipe(1)), "evaluation": {}, **record}))


@pytest.mark.parametrize(
    ("scores", "changes"),
    [
        ([(1.5, 1.6), (1.7, 1.6)], {}),
        ([(1.5, 1.4), (1.7, 1.6)], {"unmixed_statistics": True}),
        ([(1.5, 1.6), (1.7, 1.4)], {"num_experts": 7, "unmixed_statistics": True}),
    ],
)
def test_the_lowest_nll_is_chosen(tmp_path, scores, changes):
    written(tmp_path, TWO_TRIALS, scores)
    assert chosen(TWO_TRIALS, tmp_path).changes == {**changes, "epochs": 400, "temperature": 0.12}
    (tmp_path / TWO_TRIALS.search[1].folder / "seed-1.json").unlink()
    assert chosen(TWO_TRIALS, tmp_path) is None  # before all are measured


@pytest.mark.parametrize("column", SEARCHED, ids=lambda column: column.preset)
def test_a_longer_trial_is_for_columns_whose_seeds_missed_the_bar(column):
    found = measured_records(column.result, ROOT / "results")
    accuracy = 100 * fmean(record["evaluation"]["accuracy"] for record in found) if found else 100
    assert column.trials is LONGER or accuracy >= column.bar_and_goal[0]
    assert column.trials in (TRIALS, LONGER)


def test_a_longer_trial_is_waited_for_and_may_be_chosen(tmp_path):
    column = BY_PRESET["cifar100-lt-50-best"]
    written(tmp_path, column, [(1.5, 1.6), (1.7, 1.4), (1.5, 1.3)])
    longer = {"num_experts": 7, "unmixed_statistics": True, "epochs": 800, "temperature": 0.12}
    assert leading(column, tmp_path) == chosen(column, tmp_path)
    assert chosen(column, tmp_path).changes == longer
    (tmp_path / column.search[2].folder / "seed-1.json").unlink()
    assert leading(column, tmp_path).changes == {**longer, "epochs": 400}
    assert chosen(column, tmp_path) is None
    plan, settled = planned(column.result, tmp_path)
    assert (plan.recipe(1).epochs, settled) == (800, False)
    written(tmp_path, column, [(1.5, 1.6), (1.7, 1.4), (1.5, 1.3)])
    (tmp_path / column.search[1].folder / "seed-1.json").unlink()
    assert leading(column, tmp_path) is None  # before the first two


def test_what_is_chosen_changes_the_start_whatever_the_preset_says(tmp_path, monkeypatch):
    column, start = TWO_TRIALS, updated(preset("cifar100-lt-best"), TWO_TRIALS.start)
    longest, settled = planned(column.result, tmp_path)
    assert (longest.recipe(1).experts, settled) == (7, False)
    written(tmp_path, column, [(1.5, 1.6), (1.7, 1.6)])
    changes = {"epochs": 400, "temperature": 0.12}
    now = updated(start, {"num_experts": 7, "unmixed_statistics": True, "epochs": 400, "temperature": 0.75})
    monkeypatch.setitem(PRESETS, column.preset, lambda as_released: now)  # what another search had chosen
    plan, settled = planned(column.result, tmp_path)
    assert settled
    assert plan.recipe(3).identity() == updated(start, {**changes, "seed": 3}).identity()
    assert "--imbalance-ratio 50 --epochs 400 --temperature 0.12" in plan.command()
    assert replace(plan, changes={"lr": 0.12345678}).command().endswith("--lr 0.12345678")
    monkeypatch.setitem(PRESETS, column.preset, lambda as_released: updated(start, changes))
    assert planned(column.result, tmp_path) == (column.result, True)


def test_a_search_takes_no_record_of_another_recipe(tmp_path):
    column = TWO_TRIALS
    written(tmp_path, column, [(1.5, 1.6), (1.7, 1.6)])
    path = tmp_path / column.search[1].folder / "seed-1.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "recipe": {**record["recipe"], "epochs": 100}}))
    with pytest.raises(UserError, match="seven-experts has a record of another recipe than this search's; move it"):
        missing_runs([column.preset], tmp_path)
    path.write_text(json.dumps({"recipe": record["recipe"], "evaluation": {}}))  # of before statistics were compared
    with pytest.raises(UserError, match="a record of another recipe"):
        chosen(column, tmp_path)


def test_seeds_of_another_recipe_than_was_chosen_are_not_taken_for_it(tmp_path):
    column = TWO_TRIALS
    path = tmp_path / column.folder / "seed-1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"recipe": asdict(column.result.recipe(1)), "evaluation": {}}))
    assert len(missing_runs([column.preset], tmp_path)) == 2 + 4  # nothing is chosen yet
    written(tmp_path, column, [(1.5, 1.6), (1.7, 1.6)])
    other = replace(column.result, changes={"lr": 0.123}).recipe(1)
    path.write_text(json.dumps({"recipe": asdict(other), "evaluation": {}}))
    for wanted in (lambda: missing_runs([column.preset], tmp_path), lambda: columns_table(tmp_path)):
        with pytest.raises(UserError, match="balpoe-best has a record of another recipe than its search chose"):
            wanted()


def test_seeds_of_the_first_choice_stay_when_a_longer_trial_is_chosen(tmp_path, monkeypatch, capsys):
    column = BY_PRESET["cifar100-lt-10-best"]
    first = {"num_experts": 7, "unmixed_statistics": True, "epochs": 400, "temperature": 0.12}
    now = updated(preset("cifar100-lt-best"), {**column.start, **first})
    monkeypatch.setitem(PRESETS, column.preset, lambda as_released: now)
    written(tmp_path, column, [(1.5, 1.6), (1.7, 1.4), (1.5, 1.45)])
    for seed in range(1, 6):
        scores = {"recipe": asdict(column.result.recipe(seed)), "evaluation": {"accuracy": 0.6, "ece": 0.02}}
        write_json(tmp_path / column.folder / f"seed-{seed}.json", scores)
    assert not is_outdated(column, tmp_path)
    assert planned(column.result, tmp_path) == (column.result, True)
    written(tmp_path, column, [(1.5, 1.6), (1.7, 1.4), (1.5, 1.3)])
    assert is_outdated(column, tmp_path)
    assert missing_runs([column.preset], tmp_path) == []
    assert "60.0 ± 0.0" in columns_table(tmp_path)
    monkeypatch.setattr("balpoe.paper.reproduce.write_tables", lambda _: None)
    assert main(["reproduce", column.preset, "--results", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"the search of {column.preset} has chosen another recipe than that of the records in" in said
    for path in (tmp_path / column.folder).iterdir():
        path.unlink()
    plan, settled = planned(column.result, tmp_path)
    assert (plan.recipe(1).epochs, settled) == (800, True)
    assert len(missing_runs([column.preset], tmp_path)) == 5


@pytest.mark.parametrize("column", SEARCHED, ids=lambda column: column.preset)
def test_no_choice_costs_more_than_the_start(column, tmp_path):
    start = updated(preset("cifar100-lt-best"), column.start)
    for each in candidates(column, tmp_path):
        if each.changes["epochs"] == EPOCHS:
            assert training_steps(updated(start, each.changes)) <= training_steps(start)


def test_the_recipe_that_all_searches_start_from_was_chosen_before():
    (before,) = [column for column in COLUMNS if not column.search]
    assert before is BY_PRESET["cifar100-lt-best"]
    assert chosen(before, ROOT / "results") is None


def test_they_are_trained_when_they_are_asked_for(tmp_path):
    assert not BEST_TABLES.keys() & (PAPER_TABLES.keys() | FURTHER_TABLES.keys())
    folders = {result.folder for table in BEST_TABLES.values() for result in table}
    missing = {each.result.folder for each in missing_runs([], tmp_path)}
    assert missing & folders == {"cifar100-lt-best/balpoe"}  # which a table of candidates has, too
    found = missing_runs(["best-columns"], tmp_path)
    assert found == missing_runs(list(BEST_TABLES), tmp_path)
    assert len(found) == 6 * 2 + 3 + 7 * 5 + 2 * 3
    assert {each.result.folder for each in found if not each.settled} == {column.folder for column in SEARCHED}
    assert [each.seed for each in missing_runs(["cifar100-lt-best-five"], tmp_path)] == [1, 2, 3, 4, 5]


def test_what_a_search_chooses_is_trained_by_the_same_command(tmp_path, monkeypatch, capsys):
    """Trials and seeds are not trained here: records are written in their place, after some turns."""
    column, begun = TWO_TRIALS, []

    def measure(missing, results, **_):
        begun.append(missing)
        for _ in range(3 * len(begun)):
            yield
        path = results / missing.path
        path.parent.mkdir(parents=True, exist_ok=True)
        nll = 1.5 if missing.result.recipe(1).experts == 3 else 1.4
        scores = {"temperature": 0.753, "at_temperature": {"nll": nll}}
        recipe = asdict(missing.result.recipe(missing.seed))
        path.write_text(json.dumps({"recipe": recipe, "evaluation": {}, "mixed": scores, "unmixed": scores}))
        return f"{missing.path}: beside {len(begun)}"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("balpoe.paper.reproduce._measure", measure)
    monkeypatch.setattr("balpoe.paper.reproduce._on_one_gpu", lambda _: True)
    monkeypatch.setattr("balpoe.paper.reproduce.write_tables", lambda _: None)
    assert main(["reproduce", column.preset]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "7 trainings are missing: about 11 minutes on one H200" in lines[0]  # the seeds as if of seven experts
    ended = [line.split()[2] for line in lines if " min " in line]
    assert ended[:2] == [f"{each.folder}/seed-1.json:" for each in column.search]
    assert lines[-1] == "7 records written to results, 0 are still missing"
    assert [each.result for each in begun[:2]] == list(column.search)
    assert [each.seed for each in begun[2:]] == [1, 2, 3, 4, 5]
    start = updated(preset("cifar100-lt-best"), column.start)
    for each in begun[2:]:
        changes = {"epochs": 400, "num_experts": 7, "temperature": 0.75, "seed": each.seed}
        assert each.result.recipe(each.seed).identity() == updated(start, changes).identity()


def test_width_64_is_the_same_recipe_for_a_wider_network():
    best = preset("cifar100-lt-best")
    for result, experts in zip(WIDTH_64, (1, 3), strict=True):
        recipe = result.recipe(1)
        same = {**best.identity(), "width": (64,), "epochs": 200, "seed": 1}
        same |= {"num_experts": experts, "lambdas": recipe.expert_lambdas}
        assert recipe.identity() == same
        assert recipe.experts == experts
