import dataclasses
from types import SimpleNamespace

import pytest
import torch

from balpoe import UserError, estimate_prior, tempered_prior
from balpoe.method.calibration import Calibration
from balpoe.method.shift_evidence import _chi_square_tail
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
def test_without_a_shift_forty_classes_are_called_shifted_in_about_5_per_cent():
    problem = Gaussians(classes=40, dimensions=16, separation=0.6)
    calls = []
    for _ in range(100):
        x, _ = problem.sample(uniform(40), 1200)
        found = estimate_prior(problem.log_likelihood(x), num_resamples=1)
        calls.append(found.significant)
        if not found.significant:
            assert torch.equal(found.prior, uniform(40))
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
def test_p_values_with_validation_data_are_spread_evenly_without_a_shift(family):
    classes = 6
    problem = Gaussians(classes, separation=0.6)
    known = torch.arange(classes * 30) % classes
    settings = {"family": family, "train_prior": long_tail(classes), "num_resamples": 40}
    p_values = []
    for _ in range(16):
        validation = SimpleNamespace(logits=miscalibrated(problem, known), targets=known)
        labels = torch.multinomial(uniform(classes), 500, replacement=True, generator=problem.generator)
        p_values.append(estimate_prior(miscalibrated(problem, labels), validation=validation, **settings).p_value)
    assert sum(value < 0.05 for value in p_values) <= 4  # 0.8 expected; more than 4 once in 1,100
    assert 0.28 < sum(p_values) / 16 < 0.72  # three deviations of the mean of 16 even numbers


@pytest.mark.parametrize("family", ["free", "tempered"])
def test_with_validation_data_no_shift_means_the_source_prior(family):
    """Logits made for a long tail, validation samples balanced: it is balanced samples that have shifted."""
    problem, source = Gaussians(classes=5, separation=1.0), long_tail(5, 20)

    def predicted(labels):
        return problem.posterior(problem.sample_of(labels), source).log()

    known = torch.arange(200) % 5
    settings = {
        "source_prior": source, "family": family, "train_prior": source, "num_resamples": 40,
        "validation": SimpleNamespace(logits=predicted(known), targets=known),
    }  # fmt: skip
    shifted = estimate_prior(predicted(torch.arange(400) % 5), **settings)
    assert shifted.p_value == pytest.approx(1 / 41)  # no null draw comes near
    assert shifted.significant
    same = torch.multinomial(source, 400, replacement=True, generator=problem.generator)
    assert 0.05 < estimate_prior(predicted(same), **settings).p_value < 0.99


def test_a_class_without_a_sample_has_no_share_but_is_not_excluded():
    problem = Gaussians(classes=5, dimensions=4, separation=4.0)
    logits = problem.log_likelihood(problem.sample_of(torch.arange(200) % 4))  # never class 4
    found = estimate_prior(logits)
    assert found.significant
    assert float(found.estimate[4]) == 0
    assert float(found.prior[4]) == pytest.approx(0.5 / 200.5)
    assert float(found.prior.sum()) == pytest.approx(1)
    assert bool(found.adjust(logits).isfinite().all())
    low, high = found.interval[:, 4].tolist()
    assert low == 0
    assert 0.5 / 200 < high < 5 / 200  # Jeffreys: 2.5 samples, from a hundred draws


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("family", ["free", "tempered"])
def test_one_sample_alone_is_never_significant(family, validation):
    """Even a sure one, of a class that the source prior gives one in a thousand."""
    source = torch.tensor([0.95, 0.049, 0.001], dtype=torch.float64)
    targets = torch.tensor([0, 1, 2] * 20 + [1, 2, 0])
    known = SimpleNamespace(logits=6 * torch.nn.functional.one_hot(targets, 3).double(), targets=targets.clone())
    known.targets[-3:] = torch.tensor([0, 1, 2])
    settings = {"source_prior": source, "family": family, "train_prior": source}
    settings |= {"validation": known} if validation else {}
    one = torch.tensor([[-20.0, -20.0, 20.0]])
    assert not estimate_prior(one, **settings).significant
    assert estimate_prior(one.expand(30, 3), **settings).significant
    assert not estimate_prior(one.expand(2, 3), weights=[1.0, 1e-6], **settings).significant


def test_weights_move_the_estimate_as_repeated_rows_do_and_thin_the_evidence():
    problem = Gaussians(classes=4, separation=0.8)
    x, _ = problem.sample(long_tail(4, 8), 300)
    logits, times = problem.log_likelihood(x), torch.arange(300) % 3
    weighted = estimate_prior(logits, weights=times)
    repeated = estimate_prior(logits.repeat_interleave(times, dim=0))
    torch.testing.assert_close(weighted.estimate, repeated.estimate)
    assert weighted.p_value > repeated.p_value  # 180 samples' worth, not 300
    assert float((weighted.interval[1] - weighted.interval[0]).mean()) > 1.1 * float(
        (repeated.interval[1] - repeated.interval[0]).mean()
    )
    same, tenfold = estimate_prior(logits), estimate_prior(logits, weights=[10.0] * 300)
    assert tenfold.p_value == pytest.approx(same.p_value)
    torch.testing.assert_close(tenfold.interval, same.interval)


def test_weights_of_a_biased_choice_undo_it():
    """Samples kept by their looks, weighted by one over the probability of being kept, have the prior of all."""
    problem = Gaussians(classes=4, dimensions=2, separation=1.5)
    target = long_tail(4, 8)
    x, _ = problem.sample(target, 8000)
    probability = torch.where(x[:, 0] > 0, 0.9, 0.2).double()
    kept = torch.rand(8000, generator=problem.generator) < probability
    logits = problem.log_likelihood(x[kept])
    found = estimate_prior(logits, weights=1 / probability[kept], num_resamples=1)
    assert float((found.estimate - target).abs().max()) < 0.03
    assert float((estimate_prior(logits, num_resamples=1).estimate - target).abs().max()) > 0.08


@pytest.mark.slow
@pytest.mark.parametrize("family", ["free", "tempered"])
def test_intervals_cover_the_truth(family):
    """In short; benchmarks/prior_estimate.py has the coverage over hundreds of draws."""
    train, covered = long_tail(5, 10), []
    for seed in range(60):
        problem = Gaussians(classes=5, separation=0.8, seed=seed)
        x, _ = problem.sample(train, 400)
        settings = {"family": family, "train_prior": train, "num_resamples": 60, "seed": seed}
        low, high = estimate_prior(problem.log_likelihood(x), **settings).interval
        truth = train if family == "free" else torch.tensor(1.0)
        covered.append(((low <= truth) & (truth <= high)).double().mean())
    assert 0.88 < float(torch.stack(covered).mean()) < 0.995  # of 60 lambdas 57 expected, below 53 once in 80


@pytest.mark.parametrize("family", ["free", "tempered"])
def test_fewer_validation_samples_make_wider_intervals(family):
    problem, train = Gaussians(classes=4, separation=0.8), long_tail(4, 10)
    labels = torch.multinomial(train, 1000, replacement=True, generator=problem.generator)
    logits, widths = miscalibrated(problem, labels), []
    for number in (60, 4000):
        known = torch.arange(number) % 4
        validation = SimpleNamespace(logits=miscalibrated(problem, known), targets=known)
        settings = {"family": family, "train_prior": train, "num_resamples": 40}
        low, high = estimate_prior(logits, validation=validation, **settings).interval
        widths.append(float((high - low).mean()))
    assert widths[0] > 1.3 * widths[1]


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
        (((logits,), {"weights": [1.0, 2.0]}), "weights must be one for each of the 50 samples"),
        (((logits,), {"weights": [-1.0] + [1.0] * 49}), "weights must be finite and not negative"),
        (((logits,), {"weights": [0.0] * 50}), "not all zero"),
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
