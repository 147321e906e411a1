"""What a record of a fine-tuned network holds beside that of every run, on digits."""

import json

import pytest

from balpoe.cli.main import main
from balpoe.evaluation.evaluate import evaluate
from balpoe.evaluation.rival import adjusted_rival
from balpoe.experiments.run_folder import Run
from balpoe.paper.further_records import trained_parameters
from balpoe.paper.paper_result import PaperResult


@pytest.fixture
def records(monkeypatch, tmp_path, undrawn):
    """Cross-entropy and BalPoE, some epochs of digits."""
    monkeypatch.chdir(tmp_path)
    quick = {"epochs": 3, "width": (8,)}
    table = (
        PaperResult("transfer/plain", "plain", "digits-lt", {**quick, "lambdas": (1,)}, 1),
        PaperResult("transfer/ours", "ours", "digits-lt", quick, 1),
    )
    monkeypatch.setattr("balpoe.paper.reproduce.FURTHER_TABLES", {"digits": table})
    assert main(["reproduce", "digits"]) == 0
    folders = {name: tmp_path / "runs" / "reproduce" / "transfer" / name / "seed-1" for name in ("plain", "ours")}
    read = {name: json.loads((tmp_path / "results/transfer" / name / "seed-1.json").read_text()) for name in folders}
    assert not (tmp_path / "results" / "tables").exists()  # those are the paper's
    return {name: (Run(folder), read[name]) for name, folder in folders.items()}


def test_cross_entropy_is_also_adjusted(records):
    run, record = records["plain"]
    rival = evaluate(adjusted_rival(run.predictions()), num_resamples=0)
    assert record["adjusted"]["balanced_accuracy"] == rival.balanced_accuracy
    assert record["adjusted"]["nll"] == pytest.approx(rival.nll)
    uniform = next(row for row in record["evaluation"]["shifted"] if row["name"] in ("uniform", "test set"))
    assert record["adjusted"]["nll"] < record["evaluation"]["nll"]  # of a test set that is nearly balanced
    assert 0 < uniform["adjusted"] <= 1
    assert record["adjusted_calibrated"]["balanced_accuracy"] > 0
    assert records["ours"][1]["adjusted"] is records["ours"][1]["adjusted_calibrated"] is None
    assert records["ours"][1]["calibrated"]["temperature"] > 0


def test_trained_parameters_are_counted(records):
    run, record = records["ours"]
    assert record["trained_parameters"] == trained_parameters(run)
    assert record["trained_parameters"] >= record["evaluation"]["parameters"]  # and what normalisation counts
