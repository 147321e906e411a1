"""Abstaining at a wanted error, and who is sent away."""

import re
from dataclasses import replace

import pytest
import torch

import balpoe
from balpoe import Abstention, Predictions, UserError, decide
from balpoe.deployment.abstaining import abstained, risk_coverage_by_group
from balpoe.deployment.posteriors import Posteriors, label_weights
from balpoe.method.expert_calibration import ExpertCalibration
from made_predictions import make

HELD_OUT, FRESH = (
    make(samples=4000, separation=1.0),
    make(samples=4000, separation=1.0).subset(torch.arange(3999, -1, -1)),
)


def error_of(predictions, answers, prior):
    weights = label_weights(predictions, balpoe.target_prior(prior, predictions)) * (answers < 20)
    return float(weights @ (answers != predictions.targets).double() / weights.sum())


@pytest.mark.parametrize("prior", ["uniform", "forward-10"])
@pytest.mark.parametrize("balance", ["none", "share", "error"])
def test_the_error_is_at_most_as_wanted(prior, balance):
    for confidence in (None, 0.9):
        fitted = Abstention.fit(HELD_OUT, 0.2, confidence=confidence, target_prior=prior, balance=balance)
        answers = fitted(HELD_OUT)
        assert error_of(HELD_OUT, answers, prior) <= 0.2 + 1e-9
        assert 0.05 < float((answers < 20).double().mean()) < 1
        plain = decide(HELD_OUT, target_prior=prior)
        assert torch.equal(answers[answers < 20], plain[answers < 20])
    assert error_of(HELD_OUT, plain, prior) > 0.2


def test_a_balance_of_errors_keeps_each_groups_error():
    answers = Abstention.fit(HELD_OUT, 0.2, confidence=None, balance="error")(HELD_OUT)
    for mask in balpoe.evaluation.metrics.shot_groups(HELD_OUT.class_counts).values():
        given = (answers < 20) & mask[answers.clamp(max=19)]
        assert float((answers != HELD_OUT.targets)[given].double().mean()) <= 0.2 + 1e-9


def test_a_balance_of_shares_keeps_the_same_share_of_each_groups_answers():
    plain = decide(HELD_OUT, target_prior="train")
    shares = {}
    for balance in ("none", "share"):
        fitted = Abstention.fit(HELD_OUT, 0.15, confidence=None, target_prior="train", balance=balance)
        weights, kept = label_weights(HELD_OUT, HELD_OUT.train_prior), fitted(HELD_OUT) < 20
        groups = balpoe.evaluation.metrics.shot_groups(HELD_OUT.class_counts).values()
        members = [mask[plain] for mask in groups]
        shares[balance] = [float(weights[rows & kept].sum() / weights[rows].sum()) for rows in members]
    assert max(shares["share"]) - min(shares["share"]) < 0.02
    assert max(shares["none"]) - min(shares["none"]) > 0.1


def test_the_table_shows_who_is_sent_away():
    rows = {row.name: row for row in abstained(HELD_OUT, decide(HELD_OUT, abstain_cost=0.3, target_prior="train"))}
    answers = decide(HELD_OUT, abstain_cost=0.3, target_prior="train")
    for name, mask in balpoe.evaluation.metrics.shot_groups(HELD_OUT.class_counts).items():
        members = mask[HELD_OUT.targets]
        assert rows[name].samples == int(members.sum())
        assert rows[name].abstained == pytest.approx(float((answers[members] == 20).double().mean()))
        given = members & (answers < 20)
        assert rows[name].error == pytest.approx(float((answers != HELD_OUT.targets)[given].double().mean()))
        assert rows[name].interval[0] < rows[name].abstained < rows[name].interval[1]
    assert rows["few"].abstained > rows["many"].abstained + 0.1  # under the training prior they are
    everyone = abstained(HELD_OUT, torch.full((4000,), 20))
    assert [(row.abstained, row.error) for row in everyone] == [(1.0, None)] * 4


def test_weights_and_groups_in_the_table():
    predictions = Predictions(torch.zeros(4, 1, 2), torch.tensor([0, 0, 1, 1]), [500, 5], [0])
    answers = torch.tensor([0, 0, 2, 2])
    assert abstained(predictions, answers, target_prior=[0.9, 0.1])[0].abstained == pytest.approx(0.1)
    grouped = Predictions(
        torch.zeros(4, 1, 2), torch.tensor([0, 0, 1, 1]), [9, 5], [0], groups=torch.tensor([0, 0, 1, 1])
    )
    alone, together = abstained(predictions, answers)[0].interval, abstained(grouped, answers)[0].interval
    assert together[1] - together[0] > alone[1] - alone[0]


def test_curves_of_groups_are_those_of_their_samples():
    curves = risk_coverage_by_group(HELD_OUT, target_prior="train")
    sure, answers = torch.cat([block for _, block in Posteriors(HELD_OUT, "train").probabilities()]).max(dim=1)
    right, weights = answers == HELD_OUT.targets, label_weights(HELD_OUT, HELD_OUT.train_prior)
    assert list(curves) == ["all", "many", "medium", "few"]
    assert curves["all"].area == pytest.approx(balpoe.risk_coverage(sure, right, weights).area)
    few = HELD_OUT.class_counts[HELD_OUT.targets] < 20
    assert curves["few"].area == pytest.approx(balpoe.risk_coverage(sure[few], right[few], weights[few]).area)
    assert curves["few"].area > curves["many"].area


def test_when_nothing_is_good_enough_nothing_is_answered():
    hopeless = make(samples=200, separation=0.1)
    fitted = Abstention.fit(hopeless, 0.01)
    assert bool((fitted(hopeless) == 20).all())
    assert "nothing is answered" in fitted.notes[0]


def test_a_class_without_held_out_samples_is_named():
    lacking = HELD_OUT.subset((HELD_OUT.targets != 3).nonzero().squeeze(1))
    absent = Abstention.fit(lacking, 0.2).notes[-1]
    assert absent.startswith("no held-out sample is of '3', 5.0% of the deployment prior: nothing is promised of them")
    assert len(Abstention.fit(HELD_OUT, 0.2).notes) == 1


def test_what_a_class_without_held_out_samples_does_at_worst_is_said():
    """It is: a class that looks like another, and was never held out."""
    lacking = HELD_OUT.subset((HELD_OUT.targets != 3).nonzero().squeeze(1))
    fitted = Abstention.fit(lacking, 0.2, confidence=None)
    worst = float(re.search(r"about ([\d.]+)% of all answers are wrong", fitted.notes[-1])[1]) / 100
    sure = torch.zeros(200, 3, 20)
    sure[:, :, 4] = 30.0  # all of that class are answered, and wrongly
    answers = torch.cat([fitted(lacking), fitted(replace(HELD_OUT.subset(torch.arange(200)), expert_logits=sure))])
    wrong = answers[answers < 20] != torch.cat([lacking.targets, torch.full((200,), 3)])[answers < 20]
    assert float(wrong.double().mean()) == pytest.approx(worst, abs=0.001)


def test_the_calibration_of_the_held_out_samples_comes_along():
    """Half of the held-out samples calibrate anew: thresholds of the others are for that calibration."""
    other = replace(HELD_OUT, calibration=ExpertCalibration((2.0,) * 3))
    fitted = Abstention.fit(other, 0.2)
    assert torch.equal(fitted(HELD_OUT), fitted(other))


def test_through_a_file(tmp_path):
    held_out = replace(HELD_OUT, calibration=ExpertCalibration((2.0,) * 3))
    fitted = Abstention.fit(held_out, 0.2, balance="share", target_prior="train")
    fitted.save(tmp_path / "abstention.json")
    again = Abstention.load(tmp_path / "abstention.json")
    assert torch.equal(again(FRESH), fitted(FRESH))
    assert (again.notes, again.calibration) == (fitted.notes, fitted.calibration)
    (tmp_path / "abstention.json").write_text('{"thresholds": 1}')
    with pytest.raises(UserError, match=r"abstention\.json has no thresholds of answers"):
        Abstention.load(tmp_path / "abstention.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"error": 0}, r"the wanted error must lie in \(0, 1\), but is 0"),
        ({"error": "5 %"}, "error must be a number, but is '5 %'"),
        ({"error": None}, "error must be a number, but is None"),
        ({"error": [0.1]}, "error must be a number, but is 0.1"),
        ({"error": 0.1, "confidence": "high"}, "confidence must be a number, but is 'high'"),
        ({"error": 0.1, "confidence": 1}, r"confidence must lie in \(0, 1\)"),
        ({"error": 0.1, "balance": "shares"}, "did you mean 'share'"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(UserError, match=message):
        Abstention.fit(HELD_OUT, **arguments)
    with pytest.raises(UserError, match="there are 4000 samples"):
        abstained(HELD_OUT, torch.zeros(3))
    with pytest.raises(UserError, match="the logits have 3 classes, but 20 are wanted"):
        Abstention.fit(HELD_OUT, 0.2)(torch.zeros(1, 3))
