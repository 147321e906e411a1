import pytest
import torch

from balpoe import Abstention, ConformalSets, Predictions, Taxonomy, UnknownDetector, UserError, decide
from balpoe.deployment.deciders import Decider, HeldOut, Wanted
from balpoe.evaluation.prior_estimate import estimate_target

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
