"""The section "Decide": what a reader without JavaScript, or of the Markdown, has of it."""

from dataclasses import replace

import pytest
import torch

from balpoe.cli.main import main
from balpoe.deployment.abstaining import abstained
from balpoe.deployment.conformal import ConformalSets
from balpoe.deployment.thresholds import Thresholds
from balpoe.deployment.unknown import UnknownDetector
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.calibrate import Choice, calibrated_by
from balpoe.experiments.run_folder import Run
from balpoe.report.decide.section import NO_DECISION, NO_SETS, decide_section
from balpoe.report.inputs import Subject
from balpoe.report.render import Fragment, Table, markdown_page
from made_predictions import make


def subject_of(predictions, *runs):
    return Subject("made", (predictions,), ({},), (20, 100), runs)


@pytest.fixture
def run(tmp_path):
    """A run that kept held-out samples, and its test predictions."""
    both = make(3000, 10)
    chosen = torch.arange(3000) < 1000
    held_out = calibrated_by(both.subset(chosen))
    Choice(0.0, held_out).save(tmp_path)
    return Run(tmp_path), replace(both.subset(~chosen), calibration=held_out.calibration)


def test_tables_say_what_decisions_come_to(run):
    folder, predictions = run
    section = decide_section(subject_of(predictions, folder))
    controls, answers, sets, unknown, thresholds = section.exhibits
    assert isinstance(controls, Fragment)
    assert NO_SETS not in section.sentences
    _, threshold, error, *without = next(row for row in answers.rows if row[0] == "80.0")
    given = predictions.logits.double().softmax(dim=1).max(dim=1)
    kept = torch.where(given.values >= given.values.sort(descending=True).values[1599], given.indices, 10)
    everyone, *groups = abstained(predictions, kept)
    assert error == f"{100 * everyone.error:.1f}"
    assert [float(share) for share in without] == pytest.approx([100 * group.abstained for group in groups], abs=0.051)
    assert f"{error} % of the surest 80 %" in section.sentences[0]
    assert float(threshold) == pytest.approx(100 * float(given.values.sort(descending=True).values[1599]), abs=0.051)
    found = ConformalSets.of_run(folder.folder, alpha=0.1, method="per-class").predict(predictions)
    held = found[torch.arange(len(predictions)), predictions.targets].double()
    row = next(row for row in sets.rows if row[:2] == ["per-class", "90"])
    place = sets.headings.index("all, each class alike")
    assert row[place] == f"{100 * float(held.mean()):.1f} ({float(found.sum(dim=1).double().mean()):.1f})"
    detector = UnknownDetector.of_run(folder.folder, keep=0.95)
    called, few = detector.predict(predictions), predictions.class_counts[predictions.targets] < 20
    row = next(row for row in unknown.rows if row[0] == "95")
    assert row[1] == f"{detector.threshold:.3f}"
    assert row[unknown.headings.index("few-shot")] == f"{100 * float(called[few].double().mean()):.1f}"
    fitted = Thresholds.fit(Choice.load(folder.folder).held_out, precision=0.9, num_resamples=1)
    yes = fitted(predictions)
    found = yes[torch.arange(len(yes)), predictions.targets][few].double().mean()
    row_of = {row[0]: row for row in thresholds.rows}
    assert list(row_of) == ["best F1", "precision 0.9", "recall 0.9"]
    assert row_of["precision 0.9"][thresholds.headings.index("few-shot")].split(" / ")[1] == f"{100 * float(found):.1f}"
    text = markdown_page("Report", [section])
    assert "| per-class | 90 |" in text
    assert f"{row[unknown.headings.index('few-shot')]} % of the few-shot samples." in text


def test_without_held_out_samples_a_sentence():
    section = decide_section(subject_of(make(300, 10)))
    assert NO_SETS in section.sentences
    assert len([each for each in section.exhibits if isinstance(each, Table)]) == 1


def test_scores_that_are_no_posterior_decide_nothing():
    made = make(100, 5)
    section = decide_section(subject_of(Predictions(made.expert_logits, made.targets, made.class_counts)))
    assert (list(section.sentences), list(section.exhibits)) == ([NO_DECISION], [])


def test_the_flag_brings_a_tree(tmp_path, capsys, no_drawings):
    make(200, 4).save(tmp_path / "made")
    tree, out = tmp_path / "tree.csv", tmp_path / "report.md"
    tree.write_text("class,kind\n0,even\n1,odd\n2,even\n3,odd\n")
    assert main(["report", str(tmp_path / "made"), "--taxonomy", str(tree), "--out", str(out)]) == 0
    assert "| kind | 2 |" in out.read_text()
    assert "| none |" in out.read_text()
    tree.write_text("class,kind\n0,even\n1,odd\n2,even\n")
    assert main(["report", str(tmp_path / "made"), "--taxonomy", str(tree), "--out", str(out)]) == 2
    assert "3" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "made"), "--taxonomy", str(tree), "--out", str(tree) + ".md"]) == 2
