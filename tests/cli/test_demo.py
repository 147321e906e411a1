import re
from pathlib import Path

import pytest

from balpoe.cli.demo_runs import RIVAL, ROWS, explanation
from balpoe.cli.main import main


def evaluations(*accuracies):
    return {
        row: [{"balanced_accuracy": value} for value in values] for row, values in zip(ROWS, accuracies, strict=True)
    }


def test_the_explanation_is_made_of_the_numbers():
    adjusted = [{"balanced_accuracy": 0.78}]
    text = explanation(evaluations([0.70, 0.72], [0.74, 0.74], [0.80, 0.80], [0.81, 0.81]), adjusted)
    assert "three experts and mixup +3.0" in text
    assert "training prior +6.0" in text
    assert "instead of one +1.0: on data this easy one logit-adjusted expert comes close" in text
    assert "BalPoE is +7.0 ahead of the better cross-entropy, and +3.0 of the one that is adjusted afterwards" in text
    apart = explanation(evaluations([0.70], [0.74], [0.75], [0.81]), adjusted)
    assert "comes close" not in apart


@pytest.mark.slow
def test_the_demo_as_a_newcomer_sees_it(tmp_path, monkeypatch, capsys, no_drawings):
    """The real thing, but for the third seed: BalPoE's mean is ahead of the better cross-entropy by five points."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("balpoe.cli.demo_runs.SEEDS", (0, 1))
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    lead = re.search(r"BalPoE is ([+-][\d.]+) ahead", out)
    assert lead
    assert float(lead[1]) >= 5.0
    page = (tmp_path / "runs" / "demo.html").read_text(encoding="utf-8")
    assert "On these data BalPoE is better than cross-entropy, adjusted" in page
    for text in (*ROWS, RIVAL, "parameters", "seconds", "runs/demo-balpoe", "runs/demo.html", "Next: balpoe evaluate"):
        assert text in out
    assert (tmp_path / "runs" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.glob("runs/demo-*/seed-*/evaluation.json"))) == 8
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    for row in (*ROWS, RIVAL):  # there of three seeds, and processors round differently
        printed = re.search(rf"{re.escape(row)} +│ +([\d.]+) ±", out)
        shown = re.search(rf"^\| {re.escape(row)} \| ([\d.]+) ±", page, flags=re.MULTILINE)
        assert float(printed[1]) == pytest.approx(float(shown[1]), abs=1.5)
    monkeypatch.setattr("balpoe.cli.demo_runs.write_report", lambda *_, **settings: None)
    assert main(["demo"]) == 0
    assert "(trained before)" in capsys.readouterr().out
