import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from balpoe.method import label_likelihood
from balpoe.method.calibration import SCALES
from balpoe.method.ensemble import product_of_experts
from balpoe.method.expert_calibration import ExpertCalibration, held_out_losses
from balpoe.method.label_likelihood import BIASES, DEVIATION, Expansion, Form, LabelLikelihood, most_likely


def world(seed, samples=40, classes=5, strength=2.0, spread=1.0):
    """Two experts of different quality, labels of all classes but the last, and what each number stands for."""
    generator = torch.Generator().manual_seed(seed)
    prior = torch.rand(classes, generator=generator, dtype=torch.float64) + 0.1
    prior, offsets = prior / prior.sum(), torch.randn(2, classes, generator=generator, dtype=torch.float64)
    targets = torch.cat([torch.arange(2), torch.randint(classes - 1, (samples - 2,), generator=generator)])
    logits = spread * torch.randn(samples, 2, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(samples), 0, targets] += strength
    return logits, targets, prior, offsets


def form_of(offsets, prior, columns):
    """A scale of each expert's learnt posterior, and a bias by frequency."""
    offsets, bias = offsets[:, columns], prior.log()[None, columns]
    mix = torch.tensor([[0.5, 0], [0, 0.5], [0, 0]], dtype=torch.float64)
    usual = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    return Form(mix, torch.cat([offsets / 2, bias]), -offsets.mean(dim=0), usual)


def slow(logits, targets, prior, offsets, source):
    """The same function, as the calibration and the held-out NLL define it."""

    def function(numbers):
        scaled = numbers[:2, None] * (logits + offsets) - offsets
        ensemble = product_of_experts(scaled) + numbers[2] * prior.log()
        away = numbers - torch.tensor([1.0, 1.0, 0.0])
        return held_out_losses_by_hand(ensemble, targets, source) + away @ away / (2 * DEVIATION**2)

    return function


def held_out_losses_by_hand(logits, targets, source):
    counts = torch.bincount(targets, minlength=logits.shape[1]).double()
    seen = counts > 0
    total = torch.zeros((), dtype=torch.float64)
    for prior, weight in ((counts, torch.ones_like(counts)), (seen.double(), len(targets) / (seen.sum() * counts))):
        moved = logits if source is None else logits[:, seen] + (prior[seen] / source[seen]).log()
        place = targets if source is None else torch.searchsorted(seen.nonzero()[:, 0], targets)
        total = total - (weight[targets] * moved.log_softmax(dim=1)[torch.arange(len(targets)), place]).sum() / 2
    return total


@pytest.mark.parametrize("has_prior", [True, False])
def test_value_slope_and_curvature_are_those_of_the_slow_function(has_prior, monkeypatch):
    logits, targets, prior, offsets = world(0)
    source = prior if has_prior else None
    monkeypatch.setattr(label_likelihood, "BLOCK", 35)  # seven rows at a time, the last ones fewer
    problem = LabelLikelihood(logits, targets, source)
    form, numbers = form_of(offsets, prior, problem.classes), torch.tensor([0.7, 1.3, -0.4], dtype=torch.float64)
    ours = problem.expansion(form, numbers, problem.rows).with_prior(numbers - form.usual)
    function = slow(logits, targets, prior, offsets, source)
    torch.testing.assert_close(ours.value, function(numbers))
    torch.testing.assert_close(ours.slope, torch.autograd.functional.jacobian(function, numbers))
    torch.testing.assert_close(ours.curvature, torch.autograd.functional.hessian(function, numbers))
    values = problem.log_likelihoods(form, numbers, problem.rows)
    calibration = ExpertCalibration((1 / 0.7, 1 / 1.3), -0.4)(logits, prior, offsets)
    torch.testing.assert_close(values, -held_out_losses(product_of_experts(calibration), targets, source))


@given(st.integers(0, 10_000), st.sampled_from([-2.0, 0.0, 1.0, 30.0]), st.sampled_from([0.01, 1.0, 20.0]))
@settings(max_examples=40, deadline=None)
def test_the_numbers_are_the_lowest_point_within_the_bounds(seed, strength, spread):
    """Of a convex function that is where its slope is zero, or leads out of the bounds."""
    logits, targets, prior, offsets = world(seed, strength=strength, spread=spread)
    problem = LabelLikelihood(logits, targets, prior)
    form = form_of(offsets, prior, problem.classes)
    found = most_likely(form, problem, problem.rows, form.usual)
    slope = torch.autograd.functional.jacobian(slow(logits, targets, prior, offsets, prior), found)
    for number, each, (low, high) in zip(found.tolist(), slope.tolist(), (SCALES, SCALES, BIASES), strict=True):
        assert low <= number <= high
        inside = abs(each) < 1e-4
        assert inside or (number == low and each > 0) or (number == high and each < 0)


def test_a_number_common_to_all_classes_changes_nothing():
    logits, targets, prior, offsets = world(1)
    found = []
    for more in (0.0, 1e4):
        problem = LabelLikelihood(logits + more, targets, prior)
        form = form_of(offsets, prior, problem.classes)
        found.append(most_likely(form, problem, problem.rows, form.usual))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=0)


def test_parts_add_up_and_a_known_expansion_saves_the_first_look(monkeypatch):
    logits, targets, prior, offsets = world(2)
    problem = LabelLikelihood(logits, targets, prior)
    form = form_of(offsets, prior, problem.classes)
    parts = [problem.expansion(form, form.usual, rows) for rows in problem.rows.split(15)]
    known = Expansion.sum(parts)
    for ours, whole in zip(known, problem.expansion(form, form.usual, problem.rows), strict=True):
        torch.testing.assert_close(ours, whole)
    looks, expansion = [], LabelLikelihood.expansion
    monkeypatch.setattr(LabelLikelihood, "expansion", lambda *each: looks.append(1) or expansion(*each))
    alone = most_likely(form, problem, problem.rows, form.usual)
    without = len(looks)
    torch.testing.assert_close(most_likely(form, problem, problem.rows, form.usual, known=known), alone)
    assert len(looks) == 2 * without - 1
