"""The estimated deployment prior, and the check whether any prior explains the predictions."""

from dataclasses import replace

import pytest
import torch

from balpoe import Predictions, UserError, estimate_prior, estimate_target, evaluate, shift_prior, tempered_prior
from balpoe.evaluation.prior_estimate import _Steps, fit_p_value, looks
from balpoe.report.deployment import estimate_sentences
from gaussians import Gaussians, long_tail

CLASSES = 6
COUNTS = (1000 * long_tail(CLASSES, 50)).round().long()
TRAIN = COUNTS.double() / COUNTS.sum()


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    """The interval of lambda is tested in test_label_shift.py; here it may be rough."""

    def rough(logits, **settings):
        return estimate_prior(logits, **{"num_resamples": 40, **settings})

    monkeypatch.setattr("balpoe.evaluation.prior_estimate.estimate_prior", rough)


def network(problem, x):
    """Too sure of itself, and fonder of some classes."""
    exact = problem.log_likelihood(x)
    return 1.7 * (exact - exact.mean(dim=1, keepdim=True)) + 0.5 * torch.sin(torch.arange(CLASSES))


def data(problem, prior, samples, change=lambda x: x):
    x, labels = problem.sample(prior, samples)
    return Predictions(network(problem, change(x))[:, None], labels, COUNTS, torch.zeros(1))


def known(problem, per_class=20):
    labels = torch.arange(CLASSES * per_class) % CLASSES
    return Predictions(network(problem, problem.sample_of(labels))[:, None], labels, COUNTS, torch.zeros(1))


def test_distance_against_a_loop_over_all_points():
    generator = torch.Generator().manual_seed(0)
    ours = torch.randint(20, (30,), generator=generator).double()  # with ties
    theirs = torch.randint(20, (25,), generator=generator).double()
    weights = torch.rand(25, generator=generator, dtype=torch.float64)
    weights = weights / weights.sum()
    naive = max(
        abs(float((ours <= point).double().mean()) - float(weights[theirs <= point].sum())) for point in range(20)
    )
    steps = _Steps(torch.cat([ours, theirs])[None])
    difference = torch.cat([torch.full((30,), 1 / 30).double(), -weights])
    assert float(steps.distance(difference)) == pytest.approx(naive)
    several = steps.distance(torch.stack([difference, 2 * difference, 0 * difference]))
    assert several.tolist() == pytest.approx([naive, 2 * naive, 0])


@pytest.mark.parametrize("lambda_", [1.0, -1.0])
def test_a_shift_of_the_labels_is_found_used_and_explains_the_predictions(lambda_):
    problem = Gaussians(CLASSES, separation=0.6, seed=3)
    validation, predictions = known(problem), data(problem, tempered_prior(TRAIN, lambda_), 1500)
    estimate = estimate_target(predictions, validation)
    assert estimate.shift.significant
    assert estimate.shift.lambda_ == pytest.approx(lambda_, abs=0.4)
    assert estimate.changed is False
    moved = estimate.adjusted(predictions)
    torch.testing.assert_close(moved.logits, estimate.shift.adjust(predictions.logits))
    torch.testing.assert_close(moved.source_prior.double(), estimate.shift.prior, rtol=1e-5, atol=1e-7)
    adjusted, plain = (evaluate(p, num_resamples=0) for p in (moved, predictions))
    assert adjusted.accuracy > plain.accuracy
    assert adjusted.nll < plain.nll
    assert adjusted.effective_samples == 1500
    # Moved on to another prior, it starts from the estimate.
    target = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
    again = shift_prior(moved.logits, target, moved.source_prior).log_softmax(dim=1)
    calibrated = estimate.shift.calibration(predictions.logits).log_softmax(dim=1)
    torch.testing.assert_close(again, calibrated, rtol=1e-5, atol=1e-5)


def test_networks_that_are_surer_of_held_out_samples_do_not_raise_an_alarm():
    """Cross-fitted networks differ from the model in their confidence: the estimate stays, nothing is checked."""
    problem = Gaussians(CLASSES, separation=0.6, seed=3)
    predictions = data(problem, tempered_prior(TRAIN, -1.0), 1500)
    surer = known(problem, 100)
    surer = replace(surer, expert_logits=1.4 * surer.expert_logits)
    assert estimate_target(predictions, surer).changed
    estimate = estimate_target(predictions, surer, cross_fitted=True)
    assert estimate.changed is None
    assert estimate.shift.lambda_ == estimate_target(predictions, surer).shift.lambda_


def test_old_samples_that_weigh_nothing_do_not_speak():
    """Weights of 1 are no weights; changed images do not count where they weigh nothing."""
    problem = Gaussians(5, 4, seed=2)
    prior = torch.full((5,), 0.2, dtype=torch.float64)
    (first, _), (second, labels) = problem.sample(prior, 300), problem.sample(prior, 400)
    theirs = looks(problem.log_likelihood(second))
    good, changed = looks(problem.log_likelihood(first)), looks(4 * problem.log_likelihood(first))

    def p_value(ours, weights=None):
        return fit_p_value(ours, theirs, labels, prior, torch.Generator().manual_seed(0), weights)

    ones, zeros = torch.ones(300, dtype=torch.float64), torch.zeros(300, dtype=torch.float64)
    assert p_value(good) == p_value(good, ones) == p_value(torch.cat([changed, good], dim=1), torch.cat([zeros, ones]))
    assert p_value(good) > 0.05
    assert p_value(changed) < 0.01
    assert p_value(torch.cat([changed, good], dim=1), torch.cat([ones, ones])) < 0.01


def test_labels_of_the_predictions_are_not_looked_at():
    problem = Gaussians(CLASSES, separation=0.6)
    validation, predictions = known(problem), data(problem, TRAIN, 300)
    blind = Predictions(predictions.expert_logits, torch.zeros(300, dtype=torch.long), COUNTS, torch.zeros(1))
    ours, theirs = (estimate_target(p, validation) for p in (predictions, blind))
    assert torch.equal(ours.shift.estimate, theirs.shift.estimate)
    assert ours.fit_p_value == theirs.fit_p_value


def test_labels_that_shift_alone_are_rarely_called_a_change_of_the_pictures():
    calls = 0
    for seed in range(8):
        problem = Gaussians(CLASSES, separation=0.6, seed=seed)
        prior = tempered_prior(TRAIN, (0.0, 1.0, -1.0, 0.5)[seed % 4])
        calls += bool(estimate_target(data(problem, prior, 600), known(problem), seed=seed).changed)
    assert calls <= 1  # Binomial(8, 0.01): more once in 370, and the level is not reached


def test_a_prior_that_is_on_no_curve_is_not_called_a_change_either():
    odd = torch.tensor([0.05, 0.4, 0.05, 0.4, 0.05, 0.05], dtype=torch.float64)
    calls = 0
    for seed in range(3):
        problem = Gaussians(CLASSES, separation=0.8, seed=seed)
        calls += bool(estimate_target(data(problem, odd, 800), known(problem, 50), seed=seed).changed)
    assert calls <= 1


@pytest.mark.parametrize("kind", ["blurred", "noisy"])
def test_pictures_that_changed_are_noticed(kind):
    calls = 0
    for seed in range(3):
        problem = Gaussians(CLASSES, separation=1.0, seed=seed)
        noise = torch.Generator().manual_seed(seed)

        middle = problem.means.mean(dim=0)

        def change(x, noise=noise, middle=middle):
            if kind == "noisy":
                return x + 1.5 * torch.randn(x.shape, generator=noise, dtype=torch.float64)
            return 0.4 * x + 0.6 * middle

        calls += bool(estimate_target(data(problem, TRAIN, 600, change), known(problem), seed=seed).changed)
    assert calls >= 2


def test_without_validation_samples_of_likely_classes_there_is_no_check():
    problem = Gaussians(CLASSES, separation=0.6)
    whole = known(problem)
    estimate = estimate_target(data(problem, TRAIN, 400), whole.subset(whole.targets > 0))
    assert estimate.changed is None
    assert estimate.unseen > 0.01


def test_validation_of_another_model_or_of_the_same_samples():
    problem = Gaussians(CLASSES)
    predictions = known(problem)
    other = Predictions(predictions.expert_logits + 1, predictions.targets, COUNTS, torch.ones(1))
    with pytest.raises(UserError, match="validation has other lambdas than the predictions"):
        estimate_target(predictions, other)
    with pytest.raises(UserError, match="validation are the predictions themselves"):
        estimate_target(predictions, predictions)


def test_a_balanced_training_set_has_no_curve_and_any_prior_is_sought():
    """Six equal classes in training; half of the test samples are of the first one."""
    problem = Gaussians(6, separation=1.0, seed=3)
    counts = torch.full((6,), 100)

    def predicted(labels):
        logits = problem.log_likelihood(problem.sample_of(labels))
        return Predictions(logits[:, None], labels, counts, torch.zeros(1))

    labels = torch.cat([torch.zeros(500, dtype=torch.long), torch.arange(500) % 5 + 1])
    found = estimate_target(predicted(labels), predicted(torch.arange(180) % 6))
    assert found.shift.lambda_ is None
    assert found.shift.significant
    assert float(found.shift.prior[0]) == pytest.approx(0.5, abs=0.1)
    assert found.changed is False
    assert "a share for each class, the largest" in estimate_sentences(found)[0]


def test_labelled_predictions_are_those_of_the_same_weighted_experts():
    """Weights that were learnt from the test images make another ensemble; validation is measured with it."""
    problem = Gaussians(CLASSES, separation=0.6, seed=3)

    def two(predictions):
        """The expert, and one that is fond of frequent classes."""
        fond = predictions.expert_logits + TRAIN.log()
        return replace(
            predictions, expert_logits=torch.cat([predictions.expert_logits, fond], 1), lambdas=torch.tensor([0.0, 1.0])
        )

    weights = torch.tensor([0.9, 0.1])
    ours, validation = (two(each) for each in (data(problem, TRAIN, 400), known(problem)))
    weighted = replace(ours, expert_weights=weights)
    found = estimate_target(weighted, validation)
    wanted = estimate_target(weighted, replace(validation, expert_weights=weights))
    torch.testing.assert_close(found.shift.estimate, wanted.shift.estimate)
    assert found.adjusted(weighted).num_experts == 1
    assert not torch.allclose(found.shift.source_prior, estimate_target(ours, validation).shift.source_prior)
