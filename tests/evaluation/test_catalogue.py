"""A metric is one entry: it is found wherever metrics are."""

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from balpoe import compare, evaluate
from balpoe.evaluation.catalogue import METRICS, Metric, OfClasses, OfSamples
from balpoe.evaluation.saved import is_evaluation
from balpoe.evaluation.shifted_tests import full_evaluation
from balpoe.report.console import print_scores
from balpoe.report.write import write_report
from explorer_pages import wait_until
from made_predictions import make

MARGIN = Metric(
    "margin", "the margin", "mean distance of confidence and right answer",
    OfSamples(lambda outputs: outputs.confidence - outputs.correct.double()),
    per_cent=False, lower_is_better=True,
    explorer="weightedMean(confidence.map((value, row) => value - correct[row]), weights)",
)  # fmt: skip
FIRST_TWO = Metric(
    "first two", "the first two classes", "mean accuracy of classes 0 and 1",
    OfClasses(lambda counts, _: torch.arange(len(counts)) < 2), explorer="mean(Array.from(perClass.slice(0, 2)))",
)  # fmt: skip


@pytest.fixture
def added(monkeypatch):
    """Two metrics that the catalogue does not have."""
    monkeypatch.setitem(METRICS, "margin", MARGIN)
    monkeypatch.setitem(METRICS, "first_two", FIRST_TWO)
    return make(600, 6)


def test_an_entry_is_in_scores_json_intervals_and_differences(added):
    evaluation = evaluate(added, num_resamples=50)
    confidence, answer = added.logits.double().softmax(dim=1).max(dim=1)
    right = (answer == added.targets).double()
    assert evaluation.margin == pytest.approx(float((confidence - right).mean()))
    both = [float(right[added.targets == label].mean()) for label in (0, 1)]
    assert evaluation.first_two == pytest.approx(sum(both) / 2)
    whole = json.loads(json.dumps(full_evaluation(added, (20, 100))))
    assert is_evaluation(whole, experts=3)
    assert whole["experts"][2]["margin"] == evaluation.experts[2].margin
    assert not is_evaluation({**whole, "margin": "wide"}, experts=3)
    for name in ("margin", "first_two"):
        low, high = evaluation.intervals[name]
        assert low < getattr(evaluation, name) < high
        assert name in compare(added, make(600, 6, seed=1), num_resamples=50)
    # Weighted to another prior, as every metric is.
    prior = [0.5, 0.3, 0.05, 0.05, 0.05, 0.05]
    weights = torch.tensor(prior)[added.targets].double()
    expected = float((weights * (confidence - right)).sum() / weights.sum())
    assert evaluate(added, prior, adjust=False, num_resamples=0).margin == pytest.approx(expected)


def test_a_file_from_before_the_metric_is_still_read(added):
    before = {name: value for name, value in full_evaluation(added, (20, 100)).items() if name not in ("margin",)}
    assert is_evaluation(json.loads(json.dumps(before)), experts=3)
    stream = io.StringIO()
    print_scores(Console(width=200, file=stream), {"before": [before]})
    assert "margin" in stream.getvalue()


@pytest.mark.slow
def test_an_entry_is_in_tables_and_in_the_explorer(added, tmp_path, browser, no_drawings):
    evaluation = evaluate(added, num_resamples=0).to_dict()
    stream = io.StringIO()
    print_scores(Console(width=200, file=stream), {"ours": [evaluation]})
    assert "first two %" in stream.getvalue()
    assert f"{evaluation['margin']:.3f}" in stream.getvalue()
    added.save(tmp_path / "ours")
    write_report([str(tmp_path / "ours")], tmp_path / "page.html")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    headings = page.locator("section:first-of-type > .scroll table").first.locator("th[scope=col]").all_inner_texts()
    assert {"margin", "first two %"} <= set(headings)
    wait_until(lambda: page.evaluate("window.balpoeExplorer.moves > 0"))
    page.get_by_role("button", name="Uniform").click()
    wait_until(lambda: page.evaluate("window.balpoeExplorer.result.prior === 'uniform'"))
    for name, text in (
        ("margin", f"{evaluation['margin']:.3f}"),
        ("first_two", f"{100 * evaluation['first_two']:.1f}"),
    ):
        row = page.locator(f'[data-metric="{name}"]')
        assert row.locator("td").nth(1).inner_text() == text
        assert METRICS[name].meaning in row.inner_text()
    page.close()


def test_the_page_lists_every_metric():
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    for name, metric in METRICS.items():
        better = "lower" if metric.lower_is_better else "higher"
        unit = "per cent" if metric.per_cent else ""
        assert f"| `{name}` | {metric.title} | {metric.meaning} | {unit} | {better} |" in text


def test_scores_know_no_other_names():
    scores = evaluate(make(60, 3), num_resamples=0)
    with pytest.raises(AttributeError, match="Evaluation has no attribute 'acuracy'"):
        scores.acuracy  # noqa: B018
