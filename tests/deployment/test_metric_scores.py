import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from balpoe import Predictions
from balpoe.deployment.metric_scores import metric_scores
from balpoe.deployment.score_intervals import ScoreIntervals
from balpoe.method.intervals import wilson_interval

RNG = np.random.default_rng(0)
TARGETS = torch.tensor(RNG.integers(0, 3, 400))
OURS, PLAIN = (torch.where(torch.tensor(RNG.random(400)) < share, TARGETS, (TARGETS + 1) % 3) for share in (0.8, 0.6))


def predictions_of(targets, groups=None):
    return Predictions(torch.zeros(len(targets), 1, 4), targets, [9, 9, 9, 9], [0], groups=groups)


def scores(answers=OURS, plain=PLAIN, class_weights=(1.0, 2, 0.5, 1)):
    weights = torch.tensor(class_weights, dtype=torch.float64)[TARGETS]
    predictions = predictions_of(TARGETS)
    return metric_scores(answers, plain, predictions, weights, ScoreIntervals(predictions)), weights


def test_the_values_are_those_of_scikit_learn_and_the_intervals_hold_them():
    found, weights = scores()
    for way, answers in (("decision", OURS), ("most probable class", PLAIN)):
        expected = f1_score(TARGETS, answers, average="macro", sample_weight=weights.numpy())
        assert found[way]["macro_f1"] == pytest.approx(expected)
        assert found[way]["accuracy"] == pytest.approx(float(weights[answers == TARGETS].sum() / weights.sum()))
        recall = [float((answers == TARGETS)[y == TARGETS].double().mean()) for y in range(3)]
        assert found[way]["recall"] == pytest.approx([*recall, None])  # the last class has no sample
        assert found[way]["balanced_accuracy"] == pytest.approx(sum(recall) / 3)
        total = torch.bincount(TARGETS).double()
        ends = wilson_interval(torch.tensor(recall).double() * total, total).T
        assert [list(each) for each in found[way]["recall_intervals"][:3]] == [
            pytest.approx(row.tolist()) for row in ends
        ]
        assert found[way]["recall_intervals"][3] is None
    for row in found.values():
        for name, (low, high) in row["intervals"].items():
            assert low < row[name] < high < low + 0.2


def macro_f1(targets, answers):
    table = np.bincount(3 * targets + answers, minlength=9).reshape(3, 3)
    return np.mean(2 * table.diagonal() / (table.sum(axis=0) + table.sum(axis=1)))


def test_the_f1_of_resamples_by_hand():
    """The same percentiles from a loop over other resamples, each drawn within the classes."""
    found, _ = scores(class_weights=(1, 1, 1, 1))
    rng, values = np.random.default_rng(1), []
    of_class = [np.flatnonzero(TARGETS.numpy() == y) for y in range(3)]
    for _ in range(1000):
        rows = np.concatenate([rng.choice(each, len(each)) for each in of_class])
        ours, plain = (macro_f1(TARGETS.numpy()[rows], answers.numpy()[rows]) for answers in (OURS, PLAIN))
        values.append((ours, plain, ours - plain))
    expected = np.percentile(values, [2.5, 97.5], axis=0).T
    for way, ends in zip(("decision", "most probable class", "difference"), expected, strict=True):
        assert found[way]["intervals"]["macro_f1"] == pytest.approx(tuple(ends), abs=0.012)


def test_the_difference_is_paired():
    found, _ = scores(OURS, OURS)
    assert found["difference"]["intervals"]["macro_f1"] == (0, 0)
    found, _ = scores()
    assert found["difference"]["accuracy"] == found["decision"]["accuracy"] - found["most probable class"]["accuracy"]


def test_a_class_without_weight_does_not_count():
    found, _ = scores(class_weights=(1, 1, 0, 1))
    assert found["decision"]["recall"][2] is found["decision"]["recall_intervals"][2] is None
    assert found["decision"]["balanced_accuracy"] == pytest.approx(sum(found["decision"]["recall"][:2]) / 2)
