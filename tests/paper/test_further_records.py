"""What some records hold beside that of every run, on digits."""

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


def test_a_trial_is_measured_with_statistics_of_unmixed_batches_too(monkeypatch, tmp_path, undrawn, eight_layers):
    """Against a training that takes them itself: its weights are the same, and of one batch its statistics, too."""
    monkeypatch.chdir(tmp_path)
    quick = {"network": "resnet32", "width": (4,), "epochs": 4, "batch_size": 400, "weight_average_fraction": 0.5,
             "cutmix_probability": 0.5, "mixup_alpha": 1.0, "validation": 5}  # fmt: skip
    table = (
        PaperResult("digits/trial", "trial", "digits-lt", quick, 1),
        PaperResult("digits/unmixed", "unmixed", "digits-lt", {**quick, "unmixed_statistics": True}, 1),
    )
    monkeypatch.setattr("balpoe.paper.reproduce.FURTHER_TABLES", {"digits": table})
    monkeypatch.setattr("balpoe.paper.reproduce.SEARCHED", {"digits/trial"})
    assert main(["reproduce", "digits"]) == 0
    trial, unmixed = (json.loads((tmp_path / "results" / each.folder / "seed-1.json").read_text()) for each in table)
    assert "unmixed" not in unmixed
    for name in ("nll", "ece", "accuracy"):
        assert trial["unmixed"][name] == pytest.approx(unmixed["evaluation"][name], rel=1e-3), name
        assert trial["mixed"][name] == trial["evaluation"][name], name
    assert trial["unmixed"]["nll"] != pytest.approx(trial["evaluation"]["nll"], rel=1e-3)
    for kind in ("mixed", "unmixed"):
        assert trial[kind]["at_temperature"]["nll"] < trial[kind]["nll"]
        assert trial[kind]["at_temperature"]["accuracy"] == trial[kind]["accuracy"]
