import functools
from dataclasses import replace

import pytest
import torch

from balpoe import (
    Abstention,
    ConformalSets,
    Predictions,
    Taxonomy,
    Thresholds,
    UnknownDetector,
    UserError,
    decide,
    split_validation,
)
from balpoe.deployment.deciders import Decider, HeldOut, Wanted
from balpoe.evaluation.prior_estimate import estimate_target
from balpoe.experiments.calibrate import calibrated_by

TREE = Taxonomy.from_rows([("oak", "x"), ("ash", "x"), ("elm", "y")], levels=("class", "group"))


def made(samples, seed, lambdas=(1, 0, -1)):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (samples,), generator=generator)
    logits = torch.randn(samples, 3, 3, generator=generator) + 2 * torch.nn.functional.one_hot(targets, 3)[:, None]
    return Predictions(logits, targets, [500, 50, 5], lambdas, ("oak", "ash", "elm"))


HELD_OUT, TEST = made(400, 0), made(100, 1)


@pytest.mark.parametrize("prior", [None, [0.7, 0.2, 0.1]])
def test_everything_is_fitted_for_the_same_prior(prior):
    prior = None if prior is None else torch.tensor(prior, dtype=torch.float64)
    wanted = Wanted(abstain_error=0.1, alpha=0.1, taxonomy=TREE, confidence=0.8, unknown="energy")
    decided = Decider.fit(wanted, TEST, HeldOut(HELD_OUT, HELD_OUT), prior)(TEST)
    assert torch.equal(decided.answers, Abstention.fit(HELD_OUT, 0.1, target_prior=prior)(TEST))
    assert torch.equal(decided.sets, ConformalSets.fit(HELD_OUT, target_prior=prior).predict(TEST))
    assert decided.levels.names == TREE.decide(TEST, 0.8, target_prior=prior).names
    assert torch.equal(decided.unknown, UnknownDetector.fit(HELD_OUT, target_prior=prior).predict(TEST))
    assert [set(row) for row in decided.rows()] == [{"decision", "set", "level", "level_label", "unknown"}] * len(TEST)


def test_an_estimated_prior_makes_the_promise_of_sets_approximate():
    wanted, held_out = Wanted(alpha=0.1), HeldOut(HELD_OUT, HELD_OUT)
    prior = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    assert Decider.fit(wanted, TEST, held_out, prior).notes[0].startswith("At least 90 % of samples")
    (note,) = Decider.fit(wanted, TEST, held_out, prior, estimated=True).notes
    assert note.startswith("Approximate: about 90 % of samples")
    assert Decider.fit(wanted, TEST, held_out, estimated=True).notes[0].startswith("At least")  # there is no prior
    estimate = estimate_target(TEST, HELD_OUT)
    decider = Decider.fit(wanted._replace(metric="macro_f1", unknown="energy", taxonomy=TREE), TEST, held_out, estimate)
    assert decider.sets.estimated
    torch.testing.assert_close(decider.target_prior, estimate.shift.prior)
    torch.testing.assert_close(decider.rule.target_prior, estimate.shift.prior)


def test_without_a_prior_answers_are_for_the_one_that_the_model_is_made_for():
    """Of cross-entropy that is the training prior, under which predict gives its labels, too."""
    test = made(100, 1, lambdas=(1, 1, 1))
    decided = Decider.fit(Wanted(metric="accuracy", taxonomy=TREE, confidence=0.5), test, None)(test)
    assert torch.equal(decided.answers, test.logits.argmax(dim=1))
    assert not torch.equal(decided.answers, decide(test))
    assert decided.levels.names == TREE.decide(test, 0.5, target_prior="train").names


def test_what_is_fitted_wants_samples():
    for wanted in (Wanted(alpha=0.1), Wanted(unknown="energy"), Wanted(abstain_error=0.1), Wanted(metric="macro_f1")):
        assert wanted.needs_held_out
        with pytest.raises(UserError, match="fitted on held-out predictions"):
            Decider.fit(wanted, TEST, None)
    for wanted in (Wanted(), Wanted(costs=torch.ones(3)), Wanted(metric="Balanced accuracy"), Wanted(taxonomy=TREE)):
        assert not wanted.needs_held_out
        Decider.fit(wanted, TEST, None)(TEST)


def test_all_that_is_asked_of_abstaining_thresholds_and_unknown_is_passed_on():
    asked = {"abstain_confidence": 0.6, "abstain_balance": "error", "unknown_keep": 0.8, "shot_groups": (2, 100)}
    scores = ("probability", "disagreement")
    wanted = Wanted(abstain_error=0.2, unknown=scores, thresholds={"recall": 0.7}, **asked)
    decider = Decider.fit(wanted, TEST, HeldOut(HELD_OUT, HELD_OUT))
    decided, prior = decider(TEST), TEST.source_prior
    settings = {"confidence": 0.6, "balance": "error", "shot_groups": (2, 100)}
    abstention = Abstention.fit(HELD_OUT, 0.2, target_prior=prior, **settings)
    assert torch.equal(decided.answers, abstention(TEST))
    assert torch.equal(decided.unknown, UnknownDetector.fit(HELD_OUT, scores, keep=0.8).predict(TEST))
    thresholds = Thresholds.fit(HELD_OUT, recall=0.7, target_prior=prior)
    assert torch.equal(decided.yes, thresholds(TEST))
    named = [[name for name, yes in zip(TEST.class_names, row, strict=True) if yes] for row in thresholds(TEST)]
    assert [row["yes"] for row in decided.rows()] == named


def test_what_other_networks_predicted_is_called_approximate():
    wanted = Wanted(abstain_error=0.2, unknown="energy")
    for cross_fitted in (False, True):
        notes = Decider.fit(wanted, TEST, HeldOut(HELD_OUT, HELD_OUT, cross_fitted)).notes
        assert sum("networks other than the model" in note for note in notes) == 2 * cross_fitted


def test_the_wanted_error_is_kept_though_half_of_the_samples_calibrate(monkeypatch):
    """A promise of confidence 0.8 is broken by at most a fifth of the fits, but for chance; a plain fit breaks half."""
    quick = functools.partial(calibrated_by, one_temperature=True)
    monkeypatch.setattr("balpoe.deployment.validation_split.calibrated_by", quick)
    sharp, repeats = 4 * torch.eye(3), 40

    def hard(samples, seed):
        """Far from calibrated, and wrong more often than wanted."""
        plain = made(samples, seed)
        noise = torch.randn(samples, 1, 3, generator=torch.Generator().manual_seed(seed + 1))
        return replace(plain, expert_logits=(plain.expert_logits + 1.2 * noise) @ sharp)

    fresh, broken = hard(3000, 1000), dict.fromkeys((0.8, None), 0)
    for seed in range(repeats):
        held_out = hard(240, seed)
        known = HeldOut(quick(held_out), split_validation(held_out)[1])
        test = replace(fresh, calibration=known.predictions.calibration)
        for confidence in broken:
            wanted = Wanted(abstain_error=0.1, abstain_confidence=confidence)
            answers = Decider.fit(wanted, test, known)(test).answers
            given = answers < 3
            broken[confidence] += bool(given.any()) and float((answers != test.targets)[given].double().mean()) > 0.1
    assert broken[0.8] <= 0.2 * repeats + 3 * (0.2 * 0.8 * repeats) ** 0.5
    assert broken[None] > 0.35 * repeats
