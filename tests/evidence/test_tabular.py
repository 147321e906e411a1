"""The benchmark on tables: its weights, ranks and problems; and what docs/scikit-learn.md says it found."""

import json

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.naive_bayes import GaussianNB

from scripts import ROOT, script


@pytest.fixture(scope="module")
def tabular():
    return script("benchmarks/tabular.py")


def test_at_least_eight_imbalanced_problems_of_several_classes(tabular):
    assert len(tabular.PROBLEMS) >= 8
    for name, problem in tabular.PROBLEMS.items():
        X, y = problem(0)
        counts = np.bincount(y)
        assert len(X) == len(y)
        assert len(counts) >= 3, name
        assert counts.max() >= 5 * counts.min() >= 25, name


def test_scores_are_those_of_a_test_set_drawn_from_the_target(tabular):
    """Weighted samples against samples that are really there so many times."""
    chance = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [40, 20, 10])
    probabilities = chance.dirichlet([1, 1, 1], 70)
    target = np.array([0.1, 0.3, 0.6])
    found = tabular.scores(probabilities, y, target)
    times = np.array([1, 6, 24])[y]  # 40, 120 and 240 of 400
    repeated, labels = np.repeat(probabilities, times, axis=0), np.repeat(y, times)
    right = repeated.argmax(axis=1) == labels
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["nll"] == pytest.approx(log_loss(labels, repeated))
    confidence = repeated.max(axis=1)
    slow = 0.0
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        slow += abs((confidence[inside] - right[inside]).sum()) / len(labels)
    assert found["ece"] == pytest.approx(slow)
    uniform = tabular.scores(probabilities, y, np.full(3, 1 / 3))
    assert uniform["accuracy"] == pytest.approx(balanced_accuracy_score(y, probabilities.argmax(axis=1)))


def test_moving_to_another_prior_is_bayes(tabular):
    likelihood, source, target = np.array([[0.2, 0.5, 0.1]]), np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.1, 0.8])
    posterior = likelihood * source / (likelihood * source).sum()
    expected = likelihood * target / (likelihood * target).sum()
    np.testing.assert_allclose(tabular.moved(posterior, source, target), expected)


def test_every_rival_is_told_the_prior(tabular):
    X, y = tabular.PROBLEMS["wine"](0)
    rows = tabular.measure("naive Bayes", tabular.Method(lambda seed: GaussianNB(), "train"), X, y, 0)
    assert [row["method"] for row in rows] == ["naive Bayes", "naive Bayes + prior"]
    assert rows[0]["uniform_nll"] != rows[1]["uniform_nll"]
    assert rows[0]["fit_s"] == rows[1]["fit_s"]


def test_ranks(tabular):
    rows = [
        {"problem": problem, "method": method, "nll": value}
        for problem, values in {"a": (1.0, 2.0, 2.0), "b": (3.0, 1.0, 2.0)}.items()
        for method, value in zip("xyz", values, strict=True)
    ]
    assert tabular.mean_ranks(rows, "nll") == {"x": 2.0, "y": 1.75, "z": 2.25}
    assert tabular.mean_ranks(rows, "nll", max) == {"x": 2.0, "y": 2.25, "z": 1.75}


def test_what_the_page_says():
    """Bars for the record, not for the code: nothing is trained here."""
    record = json.loads((ROOT / "results" / "tabular.json").read_text())
    text = (ROOT / "docs" / "scikit-learn.md").read_text(encoding="utf-8")
    table = record["summary"]
    for row in table:
        cells = [f"{row['rank_nll']:.1f}", f"{row['rank_accuracy']:.1f}", f"{100 * row['uniform_accuracy']:.1f}"]
        cells += [f"{row['uniform_nll']:.2f}", f"{100 * row['uniform_ece']:.1f}", f"{row['backward_nll']:.2f}"]
        cells += [f"{100 * row['backward_ece']:.1f}", f"{row['fit_s']:.2g}", f"{1000 * row['predict_s']:.2g}"]
        assert f"| {row['method']} | {' | '.join(cells)} |" in text
    for problem in dict.fromkeys(row["problem"] for row in record["rows"]):
        rows = {row["method"]: row for row in record["rows"] if row["problem"] == problem}
        ours = rows.pop("BalPoE")
        right = max(rows.values(), key=lambda row: row["uniform_accuracy"])
        likely = min(rows.values(), key=lambda row: row["backward_nll"])
        cells = f"{100 * ours['uniform_accuracy']:.1f} | {100 * right['uniform_accuracy']:.1f} ({right['method']})"
        cells += f" | {ours['backward_nll']:.2f} | {likely['backward_nll']:.2f} ({likely['method']}) |"
        assert cells in text, problem
    ours = next(row for row in table if row["method"] == "BalPoE")
    assert sum(row["rank_nll"] < ours["rank_nll"] for row in table) < 3
    assert ours["uniform_accuracy"] > max(row["uniform_accuracy"] for row in table) - 0.02
