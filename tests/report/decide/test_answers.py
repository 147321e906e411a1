"""Answers from some confidence on: the numbers are those of the deployment room, which has its own references."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe.deployment.abstaining import abstained, risk_coverage_by_group
from balpoe.deployment.decisions import decide
from balpoe.evaluation.deployment_prior import target_prior
from balpoe.report.decide.answers import Answers, most_probable, surest, uniform_over_tested
from made_predictions import make


@pytest.mark.parametrize("word", [None, "train", "backward-50"])
def test_error_and_share_of_each_group_are_those_of_abstaining(word):
    predictions = make(2000, 10)
    prior = target_prior(word or "uniform", predictions)
    found = most_probable(predictions, prior, (20, 100))
    for cost in (0.3, 0.55):
        rows = abstained(predictions, decide(predictions, abstain_cost=cost, target_prior=prior), target_prior=prior)
        answered = found.from_confidence(1 - cost)
        assert list(answered) == [row.name for row in rows]
        for row in rows:
            assert answered[row.name].share == pytest.approx(1 - row.abstained)
            assert answered[row.name].error == pytest.approx(row.error)
    curves = risk_coverage_by_group(predictions, target_prior=prior)
    assert found.areas() == pytest.approx({name: curve.area for name, curve in curves.items()})


def test_nobody_is_answered_and_a_class_without_samples_does_not_count():
    predictions = make(600, 6)
    predictions = predictions.subset(predictions.targets != 2)
    prior = uniform_over_tested(predictions)
    assert prior.tolist() == [0.2, 0.2, 0, 0.2, 0.2, 0.2]
    found = most_probable(predictions, prior, (20, 100))
    assert {each.share for each in found.from_confidence(1.1).values()} == {0.0}
    assert {each.error for each in found.from_confidence(1.1).values()} == {None}
    answers = decide(predictions, target_prior=prior)
    assert not bool((answers == 2).any())
    assert found.from_confidence(0)["all"].error == pytest.approx(
        float((answers != predictions.targets).double().mean())
    )


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.floats(0.01, 1))
def test_the_surest_are_as_few_as_reach_the_share(tenths, share):
    confidence = torch.tensor(tenths).double() / 10
    answers = Answers(confidence, confidence > 0.5, {"all": torch.ones(len(tenths)).double()})
    (threshold,) = surest(answers, [share])
    given_, above = ((confidence >= threshold).double().mean(), (confidence > threshold).double().mean())
    assert given_ >= share - 1e-8
    assert above < share
