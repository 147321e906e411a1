"""The queue of trainings, on digits: what is missing is trained, recorded, and not trained again."""

import json
from dataclasses import replace

import pytest

from balpoe import UserError
from balpoe.cli.main import main
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import recipe_toml
from balpoe.files import locked, write_json, write_text
from balpoe.paper.expected import PAPER_RESULTS, PAPER_TABLES
from balpoe.paper.not_reproduced import NOT_REPRODUCED
from balpoe.paper.paper_result import PaperResult
from balpoe.paper.reproduce import MissingRun, missing_runs
from balpoe.paper.training_cost import training_steps

QUICK = {"epochs": 1, "width": (8,)}
SMALL = (
    PaperResult("digits/plain", "plain", "digits-lt", {**QUICK, "lambdas": (1,)}, 1),
    PaperResult("digits/ours", "ours", "digits-lt", QUICK, 2),
)


@pytest.fixture
def tables(monkeypatch, tmp_path, undrawn):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("balpoe.paper.reproduce.PAPER_TABLES", {"digits": SMALL})


def test_what_is_missing_is_trained_and_recorded(tables, tmp_path, capsys):
    order = [(each.result.title, each.seed) for each in missing_runs(["digits"], tmp_path / "results")]
    assert order == [("plain", 1), ("ours", 1), ("ours", 2)]
    assert main(["reproduce", "digits"]) == 0
    out = capsys.readouterr().out
    assert "3 trainings are missing" in out
    assert "digits, on digits-lt: plain (seeds 1); ours (seeds 1,2)" in out
    assert "3 records written to results, 0 are still missing" in out
    record = json.loads((tmp_path / "results" / "digits" / "ours" / "seed-2.json").read_text())
    assert set(record) == {"recipe", "environment", "evaluation", "seconds", "duplicates", "steps", "loss"}
    assert record["recipe"]["seed"] == 2
    assert record["duplicates"]["duplicates"] == 0
    assert record["duplicates"]["accuracy_without"] == pytest.approx(record["evaluation"]["accuracy"])
    (tmp_path / "results" / "digits" / "plain" / "seed-1.json").unlink()
    assert main(["reproduce"]) == 0
    out = capsys.readouterr().out
    assert "1 trainings are missing" in out


def test_a_temperature_is_fitted_on_a_validation_set(tables, tmp_path, monkeypatch):
    monkeypatch.setattr("balpoe.paper.reproduce.VALIDATED", {"digits/ours"})
    monkeypatch.setattr("balpoe.paper.reproduce.estimated_test_sets", lambda *_: [])  # tested elsewhere
    longer = (PaperResult("digits/ours", "ours", "digits-lt", {"epochs": 12, "mixup_alpha": 1.0}, 1),)
    monkeypatch.setattr("balpoe.paper.reproduce.PAPER_TABLES", {"digits": longer})
    assert main(["reproduce"]) == 0
    record = json.loads((tmp_path / "results" / "digits" / "ours" / "seed-1.json").read_text())
    assert record["calibrated"]["temperature"] < 1  # mixup of this strength makes too modest
    assert record["calibrated"]["nll"] < record["evaluation"]["nll"]
    assert record["calibrated"]["ece"] < record["evaluation"]["ece"]


def test_a_run_of_an_earlier_version_of_the_result_is_set_aside(tables, tmp_path, monkeypatch, capsys):
    assert main(["reproduce"]) == 0
    longer = (PaperResult("digits/plain", "plain", "digits-lt", {**QUICK, "lambdas": (1,), "epochs": 2}, 1),)
    monkeypatch.setattr("balpoe.paper.reproduce.PAPER_TABLES", {"digits": longer})
    path = tmp_path / "results" / "digits" / "plain" / "seed-1.json"
    path.unlink()
    assert main(["reproduce"]) == 0
    assert json.loads(path.read_text())["recipe"]["epochs"] == 2
    assert (tmp_path / "runs" / "reproduce" / "digits" / "plain" / "seed-1.before-1").is_dir()


def test_what_was_begun_counts_less(tmp_path):
    missing = MissingRun(PaperResult("digits/ours", "ours", "digits-lt", {"epochs": 8}, 1), 1)
    assert missing.seconds_left(tmp_path) == missing.seconds
    folder = missing.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(recipe_toml(missing.result.recipe(1)))
    (folder / "history.jsonl").write_text('{"epoch": 0}\n{"epoch": 1}\n')
    assert missing.seconds_left(tmp_path) == missing.seconds * 6 / 8
    (folder / "recipe.toml").write_text(recipe_toml(missing.result.recipe(2)))
    assert missing.seconds_left(tmp_path) == missing.seconds  # of another recipe, which is set aside


def test_more_experts_take_longer():
    """As many steps of three experts as take as long: within what was measured alone and side by side."""
    steps = [training_steps(PAPER_RESULTS[f"experts/{n}"].recipe(1)) for n in (1, 2, 4, 7)]
    assert steps == [24_286, 29_143, 38_857, 53_429]
    assert training_steps(PAPER_RESULTS["cifar100-lt-long/balpoe"].recipe(1)) == 34_000 == 400 * 85


def test_two_processes_share_the_work(tables, tmp_path, capsys):
    """What another process is training is left to it, and what it has written meanwhile is not done again."""
    with locked(tmp_path / "runs" / "reproduce" / "digits" / "plain" / "seed-1"):
        assert main(["reproduce"]) == 0
    out = capsys.readouterr().out
    assert "digits/plain/seed-1.json: left to the process that trains it" in out
    assert "2 records written to results, 1 are still missing" in out


def test_a_ctrl_c_is_not_the_end_of_the_time(tables, monkeypatch, capsys):
    def stop(self, *_):
        raise KeyboardInterrupt

    monkeypatch.setattr("balpoe.training.loop.Trainer.run", stop)
    assert main(["reproduce", "digits"]) == 2
    assert "stopped; the same command goes on from what was written last" in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["-1", "nan"])
def test_minutes_that_are_none(tables, minutes, capsys):
    assert main(["reproduce", "--minutes", minutes]) == 2
    assert "--minutes must be a number from 0" in capsys.readouterr().err


def test_folders_and_records_that_are_none(tables, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["reproduce", "--results", "file"]) == 2
    assert "--results must be a folder, but file is a file; name another" in capsys.readouterr().err
    record = tmp_path / "results" / "digits" / "plain" / "seed-1.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    assert main(["reproduce", "--minutes", "0"]) == 2
    assert "is not the record of a training; delete it" in capsys.readouterr().err


def test_time_that_does_not_suffice(tables, capsys):
    assert main(["reproduce", "digits", "--minutes", "0"]) == 0
    assert "0 records written to results, 3 are still missing" in capsys.readouterr().out
    assert main(["reproduce", "digits", "--minutes", "0.0001"]) == 0
    assert "0 records written to results, 3 are still missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("of_plain", "of_ours", "minutes", "order"),
    [  # the second of ours fits as soon as the first one has done half of its epochs, and no sooner
        (400, 1000, 1700 / 60, ["plain 1", "ours 1", "plain 1 ends", "ours 2", "ours 1 ends", "ours 2 ends"]),
        (1000, 400, 900 / 60, ["ours 1", "ours 2", "ours 1 ends", "ours 2 ends"]),
    ],
)
def test_a_training_begins_when_it_ends_in_time_beside_those_under_way(
    tables, monkeypatch, of_plain, of_ours, minutes, order
):
    seen = []

    def measure(missing, results, runs, **_):
        name, folder = f"{missing.path.parent.name} {missing.seed}", missing.folder(runs)
        seen.append(name)
        yield
        recipe = missing.result.recipe(missing.seed)
        write_text(folder / "recipe.toml", recipe_toml(recipe))
        write_text(folder / "history.jsonl", "{}\n" * (recipe.epochs // 2))
        yield from [None] * (1 if name == "plain 1" else 5)
        write_json(results / missing.path, {})
        seen.append(f"{name} ends")
        return ""

    longer = tuple(replace(result, changes={**result.changes, "epochs": 8}) for result in SMALL)
    monkeypatch.setattr("balpoe.paper.reproduce.PAPER_TABLES", {"digits": longer})
    monkeypatch.setattr("balpoe.paper.reproduce._measure", measure)
    monkeypatch.setattr("balpoe.paper.reproduce._on_one_gpu", lambda waiting: True)
    seconds = {1: of_plain, 3: of_ours}  # by the number of experts
    monkeypatch.setattr("balpoe.paper.reproduce.gpu_seconds", lambda recipe: seconds[recipe.experts])
    monkeypatch.setattr("balpoe.paper.reproduce.write_tables", lambda results: None)
    assert main(["reproduce", "digits", "--minutes", str(minutes)]) == 0
    assert seen == order


def test_time_that_ends_in_the_middle_of_a_training(tables, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("balpoe.paper.training_cost.SECONDS_A_STEP", 1e-9)  # so that it is begun at all
    endless = (PaperResult("digits/ours", "ours", "digits-lt", {**QUICK, "epochs": 100_000}, 1),)
    monkeypatch.setattr("balpoe.paper.reproduce.PAPER_TABLES", {"digits": endless})
    history = tmp_path / "runs" / "reproduce" / "digits" / "ours" / "seed-1" / "history.jsonl"

    def go_on(done):
        for doubled in range(10):  # a busy machine may need all of the first times to begin
            assert main(["reproduce", "--minutes", f"{0.01 * 2**doubled}"]) == 0
            out = capsys.readouterr().out
            assert "0 records written to results, 1 are still missing" in out
            epochs = len(history.read_text().splitlines()) if history.exists() else 0
            if epochs > done:
                assert "time is up: what is unfinished goes on with the same command" in out
                return epochs
        raise AssertionError(f"it does not go on after {done} epochs")

    assert go_on(go_on(0)) < 100_000


def test_a_result_of_two_tables_is_trained_once(tmp_path, monkeypatch):
    monkeypatch.setattr("balpoe.paper.reproduce.PAPER_TABLES", {"digits": SMALL, "again": SMALL[:1]})
    order = [(each.result.title, each.seed) for each in missing_runs(["digits", "again"], tmp_path)]
    assert order == [("plain", 1), ("ours", 1), ("ours", 2)]


def test_an_unknown_item(tables, tmp_path):
    with pytest.raises(UserError, match="unknown item 'digit'; did you mean 'digits'"):
        missing_runs(["digit"], tmp_path)


def test_every_result_has_a_recipe_and_a_folder_of_its_own():
    for result in (result for table in PAPER_TABLES.values() for result in table):  # some are in several tables
        assert PAPER_RESULTS[result.folder].recipe(1) == result.recipe(1)
    for result in PAPER_RESULTS.values():
        recipe = result.recipe(1)
        assert recipe.seed == 1
        assert main([*result.command().split()[1:], "--data-root", "nowhere"]) == 2  # all flags are known
        assert set(result.paper) <= {"accuracy", "many", "medium", "few", "ece", "mce"}
    for row in (row for rows in NOT_REPRODUCED.values() for row in rows):
        assert main(["train", *row.command.split(), "--data-root", "nowhere"]) == 2
    assert PAPER_TABLES["cifar100-lt"][0].recipe(3).identity() == {
        **preset("cifar100-lt").identity(), "lambdas": (1.0,), "num_experts": 1, "mixup_alpha": 0.0, "seed": 3,
    }  # fmt: skip
