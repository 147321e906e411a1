from types import SimpleNamespace

import pytest
import torch

from balpoe import UserError, at_temperature, fit_temperature, logit_offsets, product_of_experts
from balpoe.method.calibration import fit_calibration, fit_scale, resampled_calibrations
from balpoe.method.intervals import stratified_resample
from gaussians import Gaussians, long_tail


def labelled(logits, targets):
    return SimpleNamespace(logits=logits, targets=targets)


def uniform(classes):
    return torch.full((classes,), 1 / classes, dtype=torch.float64)


def slow_fit(logits, targets, offsets, weights):
    """The same penalised likelihood, minimised by torch's LBFGS through autograd."""
    scale = torch.ones(1, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(logits.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([scale, bias], max_iter=120, tolerance_change=0, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        losses = torch.nn.functional.cross_entropy(logits * scale + bias + offsets, targets, reduction="none")
        value = (losses * weights).sum() + bias.square().sum() / 2
        value.backward()
        return value

    optimizer.step(closure)
    return float(scale.detach()), bias.detach()


@pytest.mark.parametrize("weighted", [False, True])
def test_fit_against_a_general_optimiser(weighted):
    problem = Gaussians(classes=7, separation=0.8)
    labels = torch.arange(280) % 7
    logits = 1.7 * problem.log_likelihood(problem.sample_of(labels)) + torch.linspace(-1, 1, 7)
    weights = (
        torch.rand(280, generator=problem.generator, dtype=torch.float64) if weighted else torch.ones(280).double()
    )
    found = fit_calibration(labelled(logits, labels), uniform(7), weights=weights)
    scale, bias = slow_fit(logits, labels, torch.zeros(7), weights)
    assert found.scale == pytest.approx(scale, abs=1e-6)
    torch.testing.assert_close(found.bias, bias, rtol=0, atol=1e-5)


@pytest.mark.parametrize("validation_prior", ["uniform", "long-tailed"])
def test_it_undoes_a_temperature_and_biases_whatever_the_validation_labels(validation_prior):
    problem = Gaussians(classes=5, separation=0.8)
    prior = uniform(5) if validation_prior == "uniform" else long_tail(5, 10)
    x, labels = problem.sample(prior, 20_000)
    exact = problem.log_likelihood(x)
    exact = exact - exact.mean(dim=1, keepdim=True)
    wrong_bias = torch.tensor([0.8, -0.4, 0.0, 0.3, -0.7], dtype=torch.float64)
    found = fit_calibration(labelled(2.5 * exact + wrong_bias, labels), uniform(5))
    assert found.scale == pytest.approx(0.4, abs=0.02)
    corrected = found(2.5 * exact + wrong_bias).softmax(dim=1)
    torch.testing.assert_close(corrected, exact.softmax(dim=1), rtol=0, atol=0.04)


def test_a_class_without_validation_samples_keeps_its_logit():
    problem = Gaussians(classes=4, separation=1.0)
    labels = torch.arange(300) % 3  # never class 3
    found = fit_calibration(labelled(problem.log_likelihood(problem.sample_of(labels)), labels), uniform(4))
    assert float(found.bias[3]) == pytest.approx(0.0, abs=1e-9)


def test_labels_that_have_nothing_to_do_with_the_logits():
    torch.manual_seed(0)
    logits = torch.randn(500, 3, dtype=torch.float64)
    with pytest.raises(UserError, match="nothing to do with the logits"):
        fit_calibration(labelled(logits, logits.argmin(dim=1)), uniform(3))
    with pytest.raises(UserError, match="for 2 labels"):
        fit_calibration(labelled(logits, torch.tensor([0, 1])), uniform(3))


def test_labels_predicted_without_a_doubt_leave_the_logits_as_they_are():
    targets = torch.arange(40) % 4
    logits = 100 * torch.nn.functional.one_hot(targets, 4).double()
    found = fit_calibration(labelled(logits, targets), uniform(4))
    assert found.scale == pytest.approx(1)
    assert bool(found.bias.isfinite().all())


def test_resampled_calibrations_against_fits_to_the_same_resamples():
    """One step each, which goes nearly all of the way."""
    problem = Gaussians(classes=5, separation=0.8)
    labels = torch.arange(1000) % 5
    validation = labelled(1.7 * problem.log_likelihood(problem.sample_of(labels)) + torch.linspace(-1, 1, 5), labels)
    found = fit_calibration(validation, uniform(5))
    seed = torch.Generator().manual_seed(7)
    steps = resampled_calibrations(validation, uniform(5), found, 12, seed)
    seed.manual_seed(7)
    rows = stratified_resample(labels, seed, 12)
    times = [torch.bincount(each, minlength=1000).double() for each in rows]
    fits = [fit_calibration(validation, uniform(5), weights=each, start=found) for each in times]

    def table(calibrations):
        return torch.stack([torch.cat([torch.tensor([each.scale]), each.bias]) for each in calibrations])

    moved = table(fits) - table([found])
    assert float((table(steps) - table(fits)).norm()) < 0.2 * float(moved.norm())


@pytest.mark.parametrize(("right", "end"), [(True, 50.0), (False, 0.02)])
def test_scales_end_at_the_limits(right, end):
    """A million labels that are all right though the logits are small; or all wrong."""
    logits, weights = 0.1 * torch.eye(2, dtype=torch.float64), torch.full((2,), 5e5, dtype=torch.float64)
    targets = torch.tensor([0, 1]) if right else torch.tensor([1, 0])
    assert fit_scale(logits, targets, weights, torch.zeros(2)) == end


@pytest.mark.parametrize("lambdas", [(1.0, 0.0, -1.0), (0.0,), (0.5, -0.5, -0.75)])
@pytest.mark.parametrize("validation_prior", ["uniform", "long-tailed"])
def test_one_temperature_mends_experts_that_are_too_sure_and_their_bias(lambdas, validation_prior):
    """Experts whose training posterior is too sharp lean to the frequent classes; at its temperature they are exact."""
    problem, prior = Gaussians(classes=5, separation=0.5), long_tail(5, 50)
    x, labels = problem.sample(uniform(5) if validation_prior == "uniform" else prior, 20_000)
    offsets = logit_offsets(prior, lambdas)
    exact = problem.posterior(x, prior).log()[:, None] - offsets
    sure = 1.6 * (exact + offsets) - offsets
    found = fit_temperature(sure, labels, prior, lambdas)
    assert found == pytest.approx(1.6, abs=0.05)
    torch.testing.assert_close(at_temperature(sure, 1.6, prior, lambdas), exact)
    balanced, answers = problem.sample(uniform(5), 20_000)
    exact = problem.posterior(balanced, prior).log()[:, None] - offsets
    sure = 1.6 * (exact + offsets) - offsets

    def accuracy(expert_logits):
        return float((product_of_experts(expert_logits).argmax(dim=1) == answers).double().mean())

    assert accuracy(at_temperature(sure, found, prior, lambdas)) == pytest.approx(accuracy(exact), abs=0.003)
    if sum(lambdas) == 0:
        assert accuracy(sure) < accuracy(exact) - 0.02  # of which dividing alone mends nothing


def test_temperatures_multiply_and_one_changes_no_bit():
    prior, lambdas = long_tail(4, 10), torch.tensor([[1.0] * 4, [-0.5, 0.0, 0.5, 1.0]])
    logits = torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(at_temperature(logits, 1.0, prior, lambdas), logits)
    twice = at_temperature(at_temperature(logits, 2.0, prior, lambdas), 0.7, prior, lambdas)
    torch.testing.assert_close(twice, at_temperature(logits, 1.4, prior, lambdas))
    assert at_temperature(logits.half(), 1.4, prior, lambdas).dtype == torch.float32
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="temperature must be a number above 0, but is"):
            at_temperature(logits, wrong, prior, lambdas)


def test_no_temperature_from_one_class():
    with pytest.raises(UserError, match="one class alone"):
        fit_temperature(torch.zeros(5, 1, 2), torch.zeros(5, dtype=torch.long), [9, 1], (0,))
