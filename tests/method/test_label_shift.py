import dataclasses
from types import SimpleNamespace

import pytest
import torch

from balpoe import UserError, estimate_prior, tempered_prior
from balpoe.method.calibration import Calibration
from balpoe.method.label_shift import _chi_square_tail
from gaussians import Gaussians, long_tail


def uniform(classes):
    return torch.full((classes,), 1 / classes, dtype=torch.float64)


def accuracy(logits, labels):
    return float((logits.argmax(dim=1) == labels).double().mean())


def slow_em(posteriors, source, iterations=3000):
    """Saerens, Latinne and Decaestecker (2002), as they write it: no acceleration, one class after the other."""
    prior = source.clone()
    for _ in range(iterations):
        weighted = posteriors * (prior / source)
        weighted = weighted / weighted.sum(dim=1, keepdim=True)
        prior = torch.stack([weighted[:, label].mean() for label in range(len(source))])
    return prior


@pytest.mark.slow
def test_free_estimate_against_plain_em():
    problem = Gaussians(classes=6, separation=0.6)
    source = long_tail(6, 5)
    x, _ = problem.sample(long_tail(6, 20).flip(0), 2000)
    posteriors = problem.posterior(x, source)
    found = estimate_prior(posteriors.log(), source_prior=source, num_resamples=2)
    torch.testing.assert_close(found.estimate, slow_em(posteriors, source), rtol=0, atol=1e-4)
    assert found.significant
    assert torch.equal(found.prior, found.estimate)


@pytest.mark.slow
def test_a_hundred_classes_under_a_reversed_long_tail():
    problem = Gaussians(classes=100, dimensions=32, separation=0.45)
    target = long_tail(100).flip(0)
    x, labels = problem.sample(target, 10_000)
    balanced = problem.log_likelihood(x)
    found = estimate_prior(balanced, num_resamples=2)
    plain, oracle = accuracy(balanced, labels), accuracy(balanced + target.log(), labels)
    ours = accuracy(found.adjust(balanced), labels)
    assert oracle - plain > 0.05
    assert (ours - plain) / (oracle - plain) >= 0.9
    assert found.significant


@pytest.mark.slow
def test_without_a_shift_a_hundred_classes_are_called_shifted_in_about_5_per_cent():
    problem = Gaussians(classes=100, dimensions=32, separation=0.6)
    calls = []
    for _ in range(100):
        x, _ = problem.sample(uniform(100), 3000)
        found = estimate_prior(problem.log_likelihood(x), num_resamples=1)
        calls.append(found.significant)
        if not found.significant:
            assert torch.equal(found.prior, uniform(100))
    # Binomial(100, 0.05): outside 1 to 13 once in 150 such tests.
    assert 1 <= sum(calls) <= 13


@pytest.mark.slow
@pytest.mark.parametrize("family", ["free", "tempered"])
def test_level_and_power_with_exact_posteriors_from_a_prior_that_is_not_uniform(family):
    problem = Gaussians(classes=8, separation=0.7)
    train = long_tail(8, 10)
    settings = {"source_prior": train, "family": family, "train_prior": train, "num_resamples": 1}
    calls = {"none": 0, "some": 0}
    for _ in range(100):
        for name, prior in (("none", train), ("some", tempered_prior(train, 0.7))):
            x, _ = problem.sample(prior, 1000)
            calls[name] += estimate_prior(problem.posterior(x, train).log(), **settings).significant
    assert 1 <= calls["none"] <= 14  # 5 expected; beyond these bounds once in 150
    assert calls["some"] > 30


@pytest.mark.slow
def test_tempered_recovers_lambda_and_its_interval_covers_it():
    problem = Gaussians(classes=10, separation=0.7)
    train = long_tail(10, 50)
    for lambda_ in (-1.0, 0.5, 1.2):
        x, _ = problem.sample(tempered_prior(train, lambda_), 4000)
        found = estimate_prior(problem.log_likelihood(x), family="tempered", train_prior=train)
        assert found.lambda_ == pytest.approx(lambda_, abs=0.15)
        low, high = found.interval.tolist()
        assert low - 0.1 < lambda_ < high + 0.1
        assert high - low < 0.5
        torch.testing.assert_close(found.estimate, tempered_prior(train, found.lambda_))


def miscalibrated(problem, labels):
    """A network that is too sure of itself and likes some classes better than others."""
    exact = problem.log_likelihood(problem.sample_of(labels))
    exact = exact - exact.mean(dim=1, keepdim=True)
    bias = torch.sin(torch.arange(exact.shape[1], dtype=torch.float64))
    return 2.2 * exact + bias


@pytest.mark.slow
@pytest.mark.parametrize("family", ["free", "tempered"])
def test_validation_data_protect_from_miscalibration(family):
    classes = 20
    problem = Gaussians(classes, dimensions=16, separation=0.5)
    train = long_tail(classes, 50)
    known = torch.arange(classes * 25) % classes
    validation = SimpleNamespace(logits=miscalibrated(problem, known), targets=known)
    settings = {"family": family, "train_prior": train, "num_resamples": 40}
    balanced = torch.arange(3000) % classes
    same = miscalibrated(problem, balanced)
    assert estimate_prior(same, **settings).significant  # plain: fooled
    guarded = estimate_prior(same, validation=validation, **settings)
    assert not guarded.significant
    assert torch.equal(guarded.prior, uniform(classes))
    shifted = torch.multinomial(train.flip(0), 3000, replacement=True, generator=problem.generator)
    logits = miscalibrated(problem, shifted)
    found = estimate_prior(logits, validation=validation, **settings)
    assert found.significant
    assert found.calibration is not None
    oracle = accuracy(found.calibration(logits) + train.flip(0).log(), shifted)
    before, after = accuracy(found.calibration(logits), shifted), accuracy(found.adjust(logits), shifted)
    assert after - before > 0.6 * (oracle - before) > 0.02


@pytest.mark.slow
@pytest.mark.parametrize("family", ["free", "tempered"])
def test_level_with_validation_data(family):
    classes = 10
    problem = Gaussians(classes, separation=0.6)
    known = torch.arange(classes * 30) % classes
    settings = {"family": family, "train_prior": long_tail(classes), "num_resamples": 40}
    calls = 0
    for _ in range(20):
        validation = SimpleNamespace(logits=miscalibrated(problem, known), targets=known)
        labels = torch.multinomial(uniform(classes), 1000, replacement=True, generator=problem.generator)
        calls += estimate_prior(miscalibrated(problem, labels), validation=validation, **settings).significant
    assert calls <= 5  # 1 expected; more than 5 once in 3,000


def test_chi_square_tail():
    assert _chi_square_tail(3.841459, 1) == pytest.approx(0.05, abs=1e-6)
    assert _chi_square_tail(123.2252, 99) == pytest.approx(0.05, abs=1e-5)


def test_the_same_seed_gives_the_same_interval():
    problem = Gaussians(classes=4, separation=0.8)
    x, _ = problem.sample(uniform(4), 300)
    logits = problem.log_likelihood(x)
    first, second, other = (estimate_prior(logits, num_resamples=20, seed=seed).interval for seed in (0, 0, 1))
    assert first.shape == (2, 4)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"family": "tempred"}, "did you mean 'tempered'"),
        ({"family": "tempered"}, "give train_prior"),
        ({"family": "tempered", "train_prior": [0.5, 0.5]}, "use family='free'"),
        ({"family": "tempered", "train_prior": [0.5, 0.5, 0.0]}, "3 entries"),
        ({"source_prior": [0.9, 0.2]}, "source_prior sums to 1.1"),
    ],
)
def test_wrong_arguments(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        estimate_prior(torch.zeros(4, 2), **settings)


def test_a_source_prior_off_the_curve_is_refused():
    with pytest.raises(UserError, match="not of the form"):
        estimate_prior(torch.zeros(4, 3), family="tempered", train_prior=[0.5, 0.3, 0.2], source_prior=[0.2, 0.5, 0.3])


def test_what_cannot_be_estimated_from():
    logits = torch.randn(50, 3)
    wrong = logits.clone()
    wrong[7, 1] = torch.nan

    def labels(logits, classes=3):
        return SimpleNamespace(logits=logits, targets=torch.arange(50) % classes)

    for arguments, text in (
        (((wrong,), {}), "logits must be finite, but are not in sample 7"),
        (((logits[0],), {}), "logits must have shape"),
        (((logits,), {"source_prior": [0.5, 0.5, 0.0]}), "source_prior is zero for class 2"),
        (((logits,), {"num_resamples": 0}), "num_resamples must be at least 1"),
        (((logits,), {"num_resamples": 19, "validation": labels(logits)}), "num_resamples must be at least 40"),
        (((logits,), {"validation": labels(logits[:, :2])}), "validation has 2 classes, but logits 3"),
        (((logits,), {"validation": labels(wrong)}), "validation must be finite"),
        (((logits,), {"validation": labels(logits, 1)}), "samples of one class alone"),
    ):
        with pytest.raises(UserError, match=text):
            estimate_prior(*arguments[0], **arguments[1])


def test_adjusting_is_calibration_then_the_move_from_source_to_prior():
    source, prior = torch.tensor([0.7, 0.2, 0.1]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    bias = torch.tensor([0.1, -0.2, 0.3]).double()
    found = estimate_prior(logits, source_prior=source, num_resamples=1)
    found = dataclasses.replace(found, prior=prior, calibration=Calibration(2.0, bias))
    torch.testing.assert_close(found.adjust(logits), 2 * logits.double() + bias + prior.log() - source.log())
