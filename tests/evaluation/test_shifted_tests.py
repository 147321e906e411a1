from dataclasses import replace

import pytest
import torch

from balpoe import Predictions, estimate_prior
from balpoe.data.long_tail import long_tailed_counts, long_tailed_indices
from balpoe.evaluation.learnt_weights import with_learnt_weights
from balpoe.evaluation.shifted_tests import estimated_test_sets, full_evaluation, shifted_test_sets
from gaussians import Gaussians

CLASSES = 20
COUNTS = torch.tensor(long_tailed_counts(CLASSES, 500, 100))


def predictions_of(lambdas, seed=0):
    """Exact experts of a Gaussian problem, on a balanced test set of 100 samples a class."""
    problem = Gaussians(CLASSES, dimensions=8, separation=0.7, seed=seed)
    labels = torch.arange(CLASSES * 100) % CLASSES
    prior = (COUNTS / COUNTS.sum()).double()
    logits = problem.log_likelihood(problem.sample_of(labels))
    experts = torch.stack([logits + value * prior.log() for value in lambdas], dim=1)
    return Predictions(experts, labels, COUNTS, torch.tensor(lambdas))


def test_names_sizes_and_order():
    found = shifted_test_sets(predictions_of([1.0, 0.0, -1.0]))
    names = [scores.name for scores in found]
    ratios = (50, 25, 10, 5, 2)
    assert names == [f"forward-{r}" for r in ratios] + ["uniform"] + [f"backward-{r}" for r in reversed(ratios)]
    assert [scores.samples for scores in found] == [scores.samples for scores in reversed(found)]
    assert found[5].samples == CLASSES * 100


def test_accuracies_against_the_subsets_written_out():
    predictions = predictions_of([1.0, 0.0, -1.0])
    forward = shifted_test_sets(predictions, ratios=(50,))[0]
    counts = long_tailed_counts(CLASSES, 100, 50)
    rows = long_tailed_indices(predictions.targets, counts)
    logits, labels = predictions.expert_logits[rows].mean(dim=1), predictions.targets[rows]
    assert forward.as_trained == pytest.approx(float((logits.argmax(dim=1) == labels).double().mean()))
    frequency = torch.tensor(counts) / sum(counts)
    moved = (logits + frequency.log()).argmax(dim=1)
    assert forward.adjusted == pytest.approx(float((moved == labels).double().mean()))


def test_a_cross_entropy_model_is_moved_from_the_training_prior():
    """Adjusted to the prior, exact cross-entropy and exact balanced experts agree: both then know everything."""
    biased, balanced = (shifted_test_sets(predictions_of(lambdas)) for lambdas in ([1.0], [1.0, 0.0, -1.0]))
    for ours, theirs in zip(biased, balanced, strict=True):
        assert ours.adjusted == pytest.approx(theirs.adjusted, abs=1e-3)
    assert biased[-1].as_trained < balanced[-1].as_trained < balanced[-1].adjusted
    assert biased[-1].adjusted - biased[-1].as_trained > 0.1


def test_small_and_unbalanced_test_sets():
    few = predictions_of([0.0]).subset(torch.arange(CLASSES * 10))
    assert [scores.name for scores in shifted_test_sets(few)] == [
        "forward-10", "forward-5", "forward-2", "uniform", "backward-2", "backward-5", "backward-10",
    ]  # fmt: skip
    uneven = predictions_of([0.0]).subset(torch.arange(CLASSES * 10 + 3))
    assert "test set" in [scores.name for scores in shifted_test_sets(uneven)]


def test_estimated_sets_are_calibrated_on_the_validation_samples():
    """Too sharp and leaning to some classes, so that a balanced test set looks shifted without the validation."""
    problem = Gaussians(CLASSES, dimensions=8, separation=0.7)

    def predicted(labels):
        exact = problem.log_likelihood(problem.sample_of(labels))
        lean = 1.5 * torch.linspace(1, -1, CLASSES, dtype=torch.float64)
        logits = 1.6 * (exact - exact.mean(dim=1, keepdim=True)) + lean
        return Predictions(logits[:, None], labels, COUNTS, torch.zeros(1))

    whole, validation = predicted(torch.arange(CLASSES * 50) % CLASSES), predicted(torch.arange(CLASSES * 25) % CLASSES)
    forward, uniform, backward = estimated_test_sets(whole, validation, ratios=(25,))
    assert [forward.name, uniform.name, backward.name] == ["forward-25", "uniform", "backward-25"]
    plain = estimate_prior(whole.logits, family="tempered", train_prior=whole.train_prior)
    assert plain.significant
    assert not uniform.significant
    assert uniform.lambda_ == pytest.approx(0, abs=0.15)
    assert forward.significant
    assert backward.significant
    assert forward.lambda_ > 0.4
    assert backward.lambda_ < -0.4
    as_trained = {scores.name: scores.as_trained for scores in shifted_test_sets(whole, ratios=(25,))}
    assert backward.estimated > as_trained["backward-25"] + 0.1
    assert uniform.estimated > as_trained["uniform"]


def with_views(predictions, noise):
    """Two views in which the logits of each expert are off by its own noise."""
    generator = torch.Generator().manual_seed(3)
    shape = len(predictions), 2, predictions.num_experts, CLASSES
    off = torch.tensor(noise)[:, None] * torch.randn(shape, generator=generator)
    return with_learnt_weights(replace(predictions, view_logits=predictions.expert_logits[:, None] + off))


def test_each_set_has_weights_of_its_own():
    whole = with_views(predictions_of([1.0, 0.0, -1.0]), (1.0, 1.0, 1.0))
    found = shifted_test_sets(whole, ratios=(50,))
    for scores, direction in zip((found[0], found[-1]), (1, -1), strict=True):
        counts = long_tailed_counts(CLASSES, 100, 50)[::direction]
        subset = whole.subset(long_tailed_indices(whole.targets, counts))
        again = with_learnt_weights(subset)
        right = float((again.logits.argmax(dim=1) == subset.targets).double().mean())
        assert scores.as_trained == pytest.approx(right)
        assert scores.expert_weights == pytest.approx(again.expert_weights.tolist())
        first, _, last = scores.expert_weights
        assert (first > last) == (direction == 1)  # the expert whose classes are there
    assert found[1].as_trained == pytest.approx(float((whole.logits.argmax(dim=1) == whole.targets).double().mean()))


def test_whatever_the_weights_exact_experts_agree_once_they_are_adjusted():
    """The prior of a weighted product is known, too."""
    plain = predictions_of([1.0, 0.0, -1.0])
    weighted = replace(plain, expert_weights=torch.tensor([0.7, 0.2, 0.1]))
    for ours, theirs in zip(shifted_test_sets(weighted), shifted_test_sets(plain), strict=True):
        assert ours.adjusted == pytest.approx(theirs.adjusted, abs=1e-9)


def test_an_evaluation_says_what_the_weights_are_worth():
    predictions = with_views(predictions_of([1.0, 0.0, -1.0]), (0.1, 2.0, 2.0))
    found = full_evaluation(predictions, (20, 100))
    assert found["test_time"]["expert_weights"] == predictions.expert_weights.tolist()
    equal = full_evaluation(replace(predictions, expert_weights=None, view_logits=None), (20, 100))
    assert found["test_time"]["with_equal_weights"]["accuracy"] == equal["accuracy"] != found["accuracy"]
    assert "test_time" not in equal
    assert all("expert_weights" in row for row in found["shifted"])
    assert not any("expert_weights" in row for row in equal["shifted"])
