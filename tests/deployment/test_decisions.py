"""decide(): every way to ask, and what it costs where the posterior is exact."""

import pytest
import torch

import balpoe
from balpoe import UserError, decide
from balpoe.deployment.decisions import fit_rule
from gaussians import Gaussians, long_tail, random_prior
from made_predictions import make


@pytest.mark.parametrize("seed", range(3))
def test_with_exact_posteriors_no_decision_costs_more_than_the_most_probable_class(seed):
    """By more than four standard errors of the difference, over matrices of many kinds."""
    problem, prior = Gaussians(8, dimensions=4, seed=seed), long_tail(8, 50)
    x, targets = problem.sample(prior, 10_000)
    logits, saved = problem.log_likelihood(x), 0.0
    for kind in range(10):
        costs = torch.rand(8, 8 + kind % 3, generator=problem.generator, dtype=torch.float64) ** (1 + kind)
        costs[range(8), range(8)] = 0
        ours = costs[targets, decide(logits, costs=costs, target_prior=prior)]
        plain = costs[targets, decide(logits, target_prior=prior)]
        difference = ours - plain
        assert float(difference.mean()) < 4 * float(difference.std()) / 100
        saved -= float(difference.mean())
    assert saved > 0.1


def test_the_prior_of_the_deployment_is_what_it_is_decided_for():
    problem, generator = Gaussians(6, dimensions=4), torch.Generator().manual_seed(0)
    source, target = random_prior(6, generator), random_prior(6, generator)
    x, _ = problem.sample(target, 500)
    logits = problem.log_likelihood(x) + source.log()
    exact = problem.posterior(x, target)
    assert torch.equal(decide(logits, target_prior=target, source_prior=source), exact.argmax(dim=1))
    weights = torch.tensor([1.0, 5, 1, 1, 9, 2]).double()
    found = decide(logits, costs=weights, target_prior=target, source_prior=source)
    assert torch.equal(found, (exact * weights).argmax(dim=1))


def test_balanced_accuracy_is_the_balanced_posterior_under_any_prior():
    logits = torch.randn(300, 4, dtype=torch.float64)
    for prior in (None, [0.7, 0.1, 0.1, 0.1]):
        assert torch.equal(decide(logits, metric="balanced accuracy", target_prior=prior), logits.argmax(dim=1))
    excluded = decide(logits, metric="balanced_accuracy", target_prior=[0.5, 0.5, 0, 0])
    assert torch.equal(excluded, logits[:, :2].argmax(dim=1))


def test_accuracy_is_what_predictions_answer():
    predictions = make(samples=400)
    prior = balpoe.target_prior("forward-50", predictions)
    assert torch.equal(
        decide(predictions, metric="accuracy", target_prior="forward-50"), predictions.answers([prior])[1]
    )


def test_chow():
    """Answer where the most probable class is likelier than 1 - cost."""
    logits = torch.randn(500, 4, dtype=torch.float64)
    confidence, answers = logits.softmax(dim=1).max(dim=1)
    found = decide(logits, abstain_cost=0.4)
    assert torch.equal(found, torch.where(confidence >= 0.6, answers, 4))
    column = torch.cat([1 - torch.eye(4), torch.full((4, 1), 0.4)], dim=1)
    assert torch.equal(decide(logits, costs=column), found)


def test_a_fitted_rule_is_what_decide_fits(tmp_path):
    held_out, fresh = make(samples=2000, seed=0), make(samples=300, seed=0)
    for metric in ("macro_f1", "recall of 12 at least 0.8"):
        rule = fit_rule(held_out, metric, target_prior="train")
        rule.save(tmp_path / "rule.json")
        again = balpoe.DecisionRule.load(tmp_path / "rule.json")
        direct = decide(fresh, metric=metric, target_prior="train", held_out=held_out)
        assert torch.equal(direct, decide(fresh, rule=again))
        assert torch.equal(direct, decide(fresh.logits, rule=rule, source_prior=fresh.source_prior))
    both = fit_rule(held_out, {"12": 0.8, "3": 0.5}, target_prior="train")
    assert float((both(held_out)[held_out.targets == 12] == 12).double().mean()) >= 0.8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"costs": [1, 1], "metric": "accuracy"}, "give one of costs, metric and rule"),
        ({"metric": "acuracy"}, "did you mean 'accuracy'"),
        ({"metric": "recall of 0 at least 0.5"}, "give held_out="),
        ({"metric": "accuracy", "abstain_cost": 0.1}, "a metric has no cost to compare"),
        ({"metric": "macro_f1", "held_out": make(samples=40)}, "the logits have 20 classes, but 2 are wanted"),
        ({"costs": torch.ones(3, 3)}, r"costs have shape \(3, 3\), but there are 2 classes"),
        ({"rule": balpoe.DecisionRule(("a", "b"), [1, 1]), "target_prior": [0.5, 0.5]}, "leave them out"),
        ({"target_prior": "uniform"}, "target_prior must be numbers"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(UserError, match=message):
        decide(torch.zeros(1, 2), **arguments)


@pytest.mark.parametrize(
    ("metric", "confidence", "message"),
    [
        ("macro_f1", 0.95, "confidence is that of a wanted recall, which macro_f1 has not"),
        ({}, None, "no recall is wanted of any class"),
    ],
)
def test_rules_that_cannot_be_fitted(metric, confidence, message):
    with pytest.raises(UserError, match=message):
        fit_rule(make(samples=20), metric, confidence=confidence)
