"""The honest rival: exact where cross-entropy is, no verdict inside the noise, and an interval for few samples."""

from dataclasses import replace

import pytest
import torch

from balpoe import Predictions, compare, evaluate
from balpoe.evaluation.rival import Difference, adjusted_rival, paired_difference, rival_name, verdict
from made_predictions import make


def test_the_rival_is_what_evaluate_calls_adjusted():
    plain = make(600, 6, lambdas=(1,))
    rival = adjusted_rival(plain)
    wanted, found = evaluate(plain, "uniform", num_resamples=0), evaluate(rival, num_resamples=0)
    assert found.metrics == pytest.approx(wanted.metrics, abs=1e-6)  # as many test samples of each class
    assert wanted.balanced_accuracy > evaluate(plain, num_resamples=0).balanced_accuracy
    assert rival.source_prior.tolist() == pytest.approx([1 / 6] * 6)
    assert rival.lambdas.tolist() == [0]


@pytest.mark.parametrize("lambdas", [[1.0, 0.0], [[1.0] * 6, [0.5] * 3 + [0.0] * 3], None])
def test_ensembles_and_foreign_logits_become_uniform_too(lambdas):
    made = make(60, 6, lambdas=(1, 0))
    source = None if lambdas is not None else torch.tensor([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    lambdas = None if lambdas is None else torch.tensor(lambdas)
    plain = Predictions(made.expert_logits, made.targets, made.class_counts, lambdas, source_prior=source)
    rival = adjusted_rival(plain)
    torch.testing.assert_close(rival.source_prior, torch.full((6,), 1 / 6))
    torch.testing.assert_close(
        rival.logits.log_softmax(1), plain.adjusted(plain.logits, [1 / 6] * 6).log_softmax(1), rtol=0, atol=1e-5
    )
    assert adjusted_rival(rival) is None


def test_weighted_experts_become_uniform_too():
    plain = replace(make(60, 6, lambdas=(1, 0)), expert_weights=torch.tensor([0.8, 0.2]))
    rival = adjusted_rival(plain)
    torch.testing.assert_close(rival.source_prior, torch.full((6,), 1 / 6, dtype=rival.source_prior.dtype))
    expected = plain.adjusted(plain.logits, [1 / 6] * 6).log_softmax(1)
    torch.testing.assert_close(rival.logits.log_softmax(1), expected, rtol=0, atol=1e-5)


def test_a_class_without_test_samples_does_no_harm_and_no_posterior_has_no_rival():
    plain = make(600, 6, lambdas=(1,))
    cut = plain.subset(plain.targets != 5)
    assert len(adjusted_rival(cut)) == len(cut)
    assert adjusted_rival(Predictions(plain.expert_logits, plain.targets, plain.class_counts)) is None


def test_no_interval_reaches_beyond_all_and_nothing():
    """Two seeds that differ by 60 points say so little that Student's interval is wider than a fraction can differ."""
    ours, theirs = [make(300, 6, noise=noise, seed=3) for noise in (0.1, 20.0)], [make(300, 6, seed=3)] * 2
    found = paired_difference(ours, theirs)
    assert (found.low, found.high) == (-1.0, 1.0)
    assert -1 < found.value < 0
    nll = paired_difference(ours, theirs, "nll")
    assert nll.high > 1


def test_one_pair_is_the_paired_bootstrap_and_several_add_their_spread():
    ours = [make(800, 8, seed=3), make(800, 8, noise=1.5, seed=3)]
    theirs = [adjusted_rival(make(800, 8, lambdas=(1,), noise=1.0, seed=3))] * 2
    one = paired_difference(ours[:1], theirs)
    assert (one.value, one.low, one.high) == compare(ours[0], theirs[0])["balanced_accuracy"]
    both = paired_difference(ours, theirs)
    singles = [compare(a, b)["balanced_accuracy"] for a, b in zip(ours, theirs, strict=True)]
    assert both.pairs == 2
    assert both.value == pytest.approx(sum(value for value, _, _ in singles) / 2)
    assert both.high - both.low > max(high - low for _, low, high in singles)
    same = paired_difference([ours[0]] * 3, [theirs[0]] * 3)
    assert (same.low, same.high) == pytest.approx((one.low, one.high))


def test_one_sample_a_class_is_no_certainty():
    """Resampling one sample gives it again: without care the interval would have no width."""
    targets = torch.arange(20)
    right = torch.nn.functional.one_hot(targets)[:, None] * 3.0
    ours = Predictions(right, targets, torch.arange(20, 0, -1), [0])
    theirs = replace(ours, expert_logits=torch.where(targets[:, None, None] < 1, -right, right))
    found = paired_difference([ours], [theirs])
    assert found.value == pytest.approx(0.05)
    assert found.low < 0 < found.high
    assert found.sign == 0


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Difference("balanced_accuracy", 0.03, 0.01, 0.05), "a is better than b: balanced accuracy differs by +3.0"),
        (Difference("balanced_accuracy", 0.03, -0.01, 0.07), "a cannot be told from b"),
        (Difference("balanced_accuracy", 0.0, 0.0, 0.0), "a cannot be told from b"),
        (Difference("balanced_accuracy", -0.03, -0.05, -0.01), "a is worse than b"),
        (Difference("nll", -0.03, -0.05, -0.01, pairs=3), "a is better than b: NLL differs by -0.030 (95 % interval"),
    ],
)
def test_no_verdict_inside_the_noise(difference, words):
    sentence = verdict("a", "b", difference)
    assert sentence.startswith("On these data " + words)
    assert ("may be random" in sentence) == (difference.sign == 0)
    assert ("3 seeds" in sentence) == (difference.pairs == 3)


def test_names():
    assert rival_name("cross-entropy", make(20, 4, lambdas=(1,))) == "cross-entropy, adjusted"
    assert rival_name("run", make(20, 4, lambdas=(1, 1))) == "run, adjusted"
