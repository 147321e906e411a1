"""Thresholds of one class against the rest, against a search over every one."""

import math

import numpy as np
import pytest
import torch

import balpoe
from balpoe import Predictions, Thresholds, UserError
from balpoe.deployment import thresholds as subject
from balpoe.deployment.posteriors import Posteriors, label_weights
from made_predictions import make

PREDICTIONS = make(samples=400, classes=8)


def probabilities(predictions, prior=None):
    return torch.cat([block for _, block in Posteriors(predictions, prior).probabilities()])


def slow_curve(predictions, label, prior):
    """Threshold, precision, recall, F1 and cost (2 a false alarm, 5 a miss) at every probability of a sample."""
    scores = probabilities(predictions, prior)[:, label].tolist()
    weights = label_weights(predictions, balpoe.target_prior(prior, predictions)).tolist()
    truth = (predictions.targets == label).tolist()
    total, rows = sum(w for w, t in zip(weights, truth, strict=True) if t), []
    for threshold in sorted(set(scores)):
        found = sum(w for s, w, t in zip(scores, weights, truth, strict=True) if t and s >= threshold)
        said = sum(w for s, w in zip(scores, weights, strict=True) if s >= threshold)
        cost = 2 * (said - found) + 5 * (total - found)
        rows.append((threshold, found / said, found / total, 2 * found / (said + total), cost, 5 * total))
    return rows


@pytest.mark.parametrize("prior", ["uniform", "train", "backward-20"])
def test_against_a_search(prior):
    fits = {
        "f1": Thresholds.fit(PREDICTIONS, target_prior=prior, num_resamples=2),
        "precision": Thresholds.fit(PREDICTIONS, precision=0.6, target_prior=prior, num_resamples=2),
        "recall": Thresholds.fit(PREDICTIONS, recall=0.7, target_prior=prior, num_resamples=2),
        "cost": Thresholds.fit(PREDICTIONS, costs=(2, 5), target_prior=prior, num_resamples=2),
    }
    for label in range(8):
        rows = slow_curve(PREDICTIONS, label, prior)
        f1, precise, found, cheap = (at(rows, fits[name].rows[label]) for name in ("f1", "precision", "recall", "cost"))
        assert f1[3] == pytest.approx(max(row[3] for row in rows))
        assert found[0] == max(row[0] for row in rows if row[2] >= 0.7 - 1e-9)
        row = fits["recall"].rows[label]
        assert (row.precision, row.recall) == pytest.approx(found[1:3])
        if max(row[1] for row in rows) >= 0.6:
            assert precise[1] >= 0.6 - 1e-9
            assert precise[2] == pytest.approx(max(row[2] for row in rows if row[1] >= 0.6))
        else:
            assert "precision 0.6 is not reached" in fits["precision"].rows[label].flag
        least = min(min(row[4] for row in rows), rows[0][5])
        assert (rows[0][5] if cheap is None else cheap[4]) == pytest.approx(least)


def at(rows, fitted):
    """The row of the lowest probability that reaches a threshold; halfway down to the next one."""
    if fitted.threshold is None:
        return None
    place = next(place for place, row in enumerate(rows) if row[0] >= fitted.threshold)
    below = rows[place - 1][0] if place else 0.0
    assert fitted.threshold == pytest.approx((rows[place][0] + below) / 2)
    return rows[place]


def test_answers_are_yes_from_the_threshold_on():
    fitted = Thresholds.fit(PREDICTIONS, recall=0.7, target_prior="train", num_resamples=2)
    answers = fitted(PREDICTIONS)
    assert torch.equal(answers, probabilities(PREDICTIONS, "train") >= fitted.values)
    for label, row in enumerate(fitted.rows):
        assert float(answers[PREDICTIONS.targets == label, label].double().mean()) == pytest.approx(row.recall)
    logits = PREDICTIONS.logits
    assert torch.equal(fitted(logits.numpy(), source_prior=PREDICTIONS.source_prior), answers)


def test_with_exact_posteriors_the_threshold_of_least_cost_is_the_ratio_of_costs():
    predictions = make(samples=40_000, classes=4, noise=0.0, lambdas=(0,))
    predictions = Predictions(predictions.expert_logits / 0.8, predictions.targets, predictions.class_counts, [0])
    for row in Thresholds.fit(predictions, costs=(1, 3), num_resamples=30).rows:
        assert row.interval[0] - 0.02 <= 0.25 <= row.interval[1] + 0.02
        assert row.threshold == pytest.approx(0.25, abs=0.06)


def test_intervals_hold_the_threshold_of_many_samples():
    """At about their level: 95 % of 8 classes in 6 draws of another 400 samples each."""
    truth = Thresholds.fit(make(samples=40_000, classes=8), recall=0.7, num_resamples=2)
    rng, inside = torch.Generator().manual_seed(1), 0
    pool = make(samples=40_000, classes=8)
    for _ in range(6):
        some = pool.subset(torch.randperm(40_000, generator=rng)[:800])
        fitted = Thresholds.fit(some, recall=0.7, num_resamples=100)
        pairs = zip(fitted.rows, truth.rows, strict=True)
        inside += sum(ours.interval[0] <= true.threshold <= ours.interval[1] for ours, true in pairs)
    assert inside >= 40  # of 48; 45 or so are expected


def test_where_samples_do_not_tell_the_interval_is_their_gap():
    """Two classes far apart: in every resample the same threshold is the lowest, and could be anywhere in between."""
    scores = torch.tensor([3.0, 2.0, -2.0, -3.0])
    apart = Predictions(
        torch.stack([scores, -scores], dim=1)[:, None], torch.tensor([0, 0, 1, 1]), [2, 2], [0], ("oak", "ash")
    )
    row = Thresholds.fit(apart, precision=0.9, num_resamples=50).rows[0]
    assert row.interval == pytest.approx(torch.tensor([-4.0, 4.0]).sigmoid().tolist())
    assert row.threshold == pytest.approx(0.5)


def test_groups_widen_the_intervals():
    grouped = Predictions(
        PREDICTIONS.expert_logits.repeat_interleave(10, dim=0),
        PREDICTIONS.targets.repeat_interleave(10),
        PREDICTIONS.class_counts,
        PREDICTIONS.lambdas,
        groups=torch.arange(400).repeat_interleave(10),
    )
    alone = Predictions(grouped.expert_logits, grouped.targets, grouped.class_counts, grouped.lambdas)
    by_group, by_sample = (Thresholds.fit(each, recall=0.7, num_resamples=100) for each in (grouped, alone))
    width = [
        sum(row.recall_interval[1] - row.recall_interval[0] for row in each.rows) for each in (by_group, by_sample)
    ]
    assert width[0] > 2.5 * width[1]
    width = [sum(row.interval[1] - row.interval[0] for row in each.rows) for each in (by_group, by_sample)]
    assert width[0] > 1.5 * width[1]


def test_classes_with_too_few_samples_are_flagged_and_one_without_never_says_yes(monkeypatch):
    monkeypatch.setattr(subject, "FITTED_VALUES", 700)  # some classes at a time
    few = PREDICTIONS.targets.ne(6) & (PREDICTIONS.targets.ne(5) | (torch.arange(400) < 40))
    some = PREDICTIONS.subset(few.nonzero().squeeze(1))
    fitted = Thresholds.fit(some, num_resamples=10)
    assert [row.name for row in fitted.flagged] == ["5", "6"]
    assert fitted.rows[5].flag == "only 5 held-out samples"
    assert fitted.rows[6].threshold is None
    assert not bool(fitted(PREDICTIONS)[:, 6].any())
    assert bool(fitted(PREDICTIONS)[:, 5].any())


def test_equal_probabilities_are_told_together():
    logits = torch.tensor([[1.0, 0], [1.0, 0], [0, 0], [0, 0]])
    held_out = Predictions(logits[:, None], torch.tensor([0, 1, 0, 1]), [2, 2], [0])
    row = Thresholds.fit(held_out, recall=0.5, num_resamples=2).rows[0]
    assert (row.threshold, row.precision) == (pytest.approx((torch.sigmoid(torch.tensor(1.0)).item() + 0.5) / 2), 0.5)


@pytest.mark.parametrize("row", [list, torch.tensor, np.array])
def test_costs_are_any_row_of_two_numbers(row):
    found, expected = (Thresholds.fit(PREDICTIONS, costs=each, num_resamples=2) for each in (row([2, 5]), (2, 5)))
    assert found.rows == expected.rows
    assert found.aim == expected.aim == "least cost (2 a false alarm, 5 a miss)"


def test_a_miss_that_costs_nothing_is_never_answered():
    row = Thresholds.fit(PREDICTIONS, costs=(1, 0), num_resamples=5).rows[0]
    assert (row.threshold, row.recall, row.interval) == (None, 0.0, (2.0, 2.0))


def test_through_a_file(tmp_path):
    fitted = Thresholds.fit(PREDICTIONS, costs=(9, 1), num_resamples=5, target_prior="train")
    fitted.save(tmp_path / "thresholds.json")
    again = Thresholds.load(tmp_path / "thresholds.json")
    assert torch.equal(again(PREDICTIONS), fitted(PREDICTIONS))
    assert (again.aim, again.rows[0].name) == ("least cost (9 a false alarm, 1 a miss)", "0")
    (tmp_path / "thresholds.json").write_text("{}")
    with pytest.raises(UserError, match=r"thresholds\.json has no thresholds"):
        Thresholds.load(tmp_path / "thresholds.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": 0.9, "recall": 0.9}, "give one of precision, recall and costs"),
        ({"precision": 1.5}, "the wanted precision must lie above 0 and up to 1, but is 1.5"),
        ({"recall": 0}, "the wanted recall must lie"),
        ({"precision": "0.9"}, "the wanted precision must be a number, but is '0.9'"),
        ({"level": None}, "level must be a number, but is None"),
        ({"num_resamples": 1.5}, "num_resamples must be a whole number, but is 1.5"),
        ({"costs": (1, math.nan)}, "costs must be those of a false alarm and of a miss"),
        ({"costs": (0, 0)}, "not both 0"),
        ({"costs": 3}, "costs must be those of a false alarm and of a miss"),
        ({"costs": "ab"}, "but are ab"),
        ({"costs": [[1, 2], [3, 4]]}, "costs must be those of a false alarm and of a miss"),
        ({"level": 1}, r"level must lie in \(0, 1\)"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(UserError, match=message):
        Thresholds.fit(PREDICTIONS, **arguments)
    fitted = Thresholds.fit(PREDICTIONS, num_resamples=1)
    with pytest.raises(UserError, match="the logits have 3 classes, but 8 are wanted"):
        fitted(torch.zeros(1, 3))
