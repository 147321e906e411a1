import math
from dataclasses import asdict

import pytest
import torch

from balpoe.errors import UserError
from balpoe.method import expert_calibration
from balpoe.method.calibration import fit_temperature
from balpoe.method.ensemble import at_temperature, product_of_experts, source_prior
from balpoe.method.expert_calibration import (
    ExpertCalibration,
    at_known_temperature,
    fit_expert_calibration,
    fit_one_temperature,
    held_out_losses,
    read_calibration,
    training_offsets,
)
from balpoe.method.label_likelihood import DEVIATION
from balpoe.method.priors import logit_offsets

PRIOR = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
LAMBDAS = torch.tensor([1.0, 0.0, -1.0])
SOURCE = source_prior(PRIOR, LAMBDAS).double()


def world(samples, temperatures, bias=0.0, seed=0):
    """Three Gaussian classes of the training prior; experts that report its exact posteriors at wrong temperatures."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.multinomial(PRIOR, samples, replacement=True, generator=generator)
    means = 1.5 * torch.eye(3, dtype=torch.float64)
    x = means[targets] + torch.randn(samples, 3, generator=generator, dtype=torch.float64)
    learnt = -torch.cdist(x, means).square() / 2 + PRIOR.log()
    offsets = logit_offsets(PRIOR, LAMBDAS).double()
    experts = [learnt * t - row for t, row in zip(temperatures, offsets, strict=True)]
    return torch.stack(experts, dim=1) - bias * PRIOR.log(), targets, offsets


def test_one_temperature_is_that_of_at_temperature():
    logits, _, offsets = world(5, (2.0, 2.0, 2.0))
    ours = ExpertCalibration((2.0, 2.0, 2.0))(logits, PRIOR, offsets)
    torch.testing.assert_close(ours, at_temperature(logits, 2.0, PRIOR, LAMBDAS))


@pytest.mark.parametrize("lambdas", [(1.0, 0.0, -1.0), (1.0, -0.25, -1.5), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)])
def test_a_known_temperature_divides_what_experts_and_their_products_say(lambdas):
    logits, *_ = world(50, (1.0, 2.0, 0.5))
    known = at_known_temperature(0.7, experts=3)
    ours = known(logits, PRIOR, training_offsets(PRIOR, lambdas, None))
    torch.testing.assert_close(ours, logits / 0.7)
    torch.testing.assert_close(product_of_experts(ours), product_of_experts(logits) / 0.7)
    kept = asdict(known)
    assert read_calibration(kept) == known
    del kept["fitted"]  # as in files of before
    assert read_calibration(kept).fitted


def test_a_bias_adds_the_log_prior_and_takes_out_what_was_taken_from_it():
    logits, _, offsets = world(5, (1.0, 1.0, 1.0))
    biased, _, _ = world(5, (1.0, 1.0, 1.0), bias=0.8)
    torch.testing.assert_close(ExpertCalibration((1.0,) * 3, 0.8)(biased, PRIOR, offsets), logits)
    ours = ExpertCalibration((2.0,) * 3, 0.5)(logits, PRIOR, offsets)
    torch.testing.assert_close(ours, at_temperature(logits, 2.0, PRIOR, LAMBDAS) + 0.5 * PRIOR.log())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_finds_the_temperature_that_the_experts_were_given(temperature):
    logits, targets, offsets = world(3_000, (temperature,) * 3)
    found = fit_expert_calibration(logits, targets, PRIOR, offsets, SOURCE)
    assert len(set(found.temperatures)) == 1
    assert found.frequency_bias == 0
    assert found.temperatures[0] == pytest.approx(temperature, rel=0.1)
    assert found.temperatures[0] == pytest.approx(fit_temperature(logits, targets, PRIOR, LAMBDAS), rel=0.1)
    calibrated = product_of_experts(found(logits, PRIOR, offsets))
    best = held_out_losses(calibrated, targets, SOURCE).mean()
    for factor in (0.9, 1.1):
        other = ExpertCalibration((factor * found.temperatures[0],) * 3)
        assert held_out_losses(product_of_experts(other(logits, PRIOR, offsets)), targets, SOURCE).mean() > best


@pytest.mark.parametrize("source", [SOURCE, None])
def test_one_temperature_alone_is_the_one_of_a_slow_search(source):
    """Of posteriors and of other scores: the most likely scale, a normal prior around 1 counted."""
    logits, targets, offsets = world(90, (3.0, 2.0, 2.5))
    offsets = offsets if source is not None else torch.zeros(1, 3)

    def loss(scale):
        scaled = ExpertCalibration((1 / scale,) * 3)(logits, PRIOR, offsets)
        return float(held_out_losses(product_of_experts(scaled), targets, source).sum()) + (scale - 1) ** 2 / (
            2 * DEVIATION**2
        )

    near = min((0.1 + step / 50 for step in range(75)), key=loss)
    best = min((near + step / 1000 for step in range(-20, 21)), key=loss)
    found = fit_one_temperature(logits, targets, offsets, source)
    assert found.temperatures == pytest.approx((1 / best,) * 3, rel=0.01)


def test_scores_without_a_prior_are_judged_as_they_are():
    logits, targets = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]]).double(), torch.tensor([0, 1, 0])
    log_p = logits.log_softmax(dim=1)[torch.arange(3), targets]
    expected = -(log_p.mean() + (log_p[[0, 2]].mean() + log_p[1]) / 2) / 2
    assert float(held_out_losses(logits, targets, None).mean()) == pytest.approx(float(expected))


def test_a_bias_by_frequency_is_kept_where_it_predicts_better():
    logits, targets, offsets = world(3_000, (1.5, 1.5, 1.5), bias=0.8)
    found = fit_expert_calibration(logits, targets, PRIOR, offsets, SOURCE)
    # In the learnt posterior, which is 1.5 of the true one less 0.8 log prior, the temperature divides both.
    assert found.frequency_bias == pytest.approx(0.8 / 1.5, abs=0.12)
    assert found.temperatures[0] == pytest.approx(1.5, rel=0.1)


def test_experts_of_their_own_quality_get_their_own_temperatures():
    generator = torch.Generator().manual_seed(1)
    logits, targets, offsets = world(3_000, (1.0, 1.0, 1.0))
    logits[:, 2] += 4 * torch.randn(3_000, 3, generator=generator)  # says little, loudly
    found = fit_expert_calibration(logits, targets, PRIOR, offsets, SOURCE)
    assert found.temperatures[2] > 2 * found.temperatures[0]
    assert found.gain > 0.05


def test_few_labels_change_little():
    logits, targets, offsets = world(12, (1.0, 1.0, 1.0))
    logits = torch.full_like(logits, -20).scatter(2, targets[:, None, None].expand(-1, 3, 1), 20.0)  # all predicted
    found = fit_expert_calibration(logits, targets, PRIOR, offsets, SOURCE)
    assert all(0.4 < value <= 1.01 for value in found.temperatures)


def test_groups_are_judged_as_wholes():
    """A bias that one series of 2,000 samples asks for is no evidence."""
    logits, targets, offsets = world(2_000, (1.0, 1.0, 1.0), bias=0.3)
    alone = fit_expert_calibration(logits, targets, PRIOR, offsets, SOURCE)
    series = fit_expert_calibration(logits, targets, PRIOR, offsets, SOURCE, groups=torch.arange(2_000) // 700)
    assert alone.frequency_bias != 0
    assert series.frequency_bias == 0


def test_one_small_step_is_enough_for_a_fold(monkeypatch):
    """What the numbers without a fold gain is the same, to far less than a standard error, by a full search."""
    logits, targets, offsets = world(300, (1.3, 1.3, 1.3), bias=0.3)
    ours = fit_expert_calibration(logits, targets, PRIOR, offsets, SOURCE)
    monkeypatch.setattr(expert_calibration, "SMALL", 1e-9)
    slow = fit_expert_calibration(logits, targets, PRIOR, offsets, SOURCE)
    assert ours.temperatures == slow.temperatures
    assert ours.gain == pytest.approx(slow.gain, abs=1e-5)
    assert ours.gain != slow.gain


def test_the_likelihood_is_the_mean_of_labels_as_they_come_and_of_all_classes_alike():
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.0, 0.0]], dtype=torch.float64)
    targets = torch.tensor([0, 1, 0, 0])  # class 2 is not there
    source = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    plain = alike = 0.0
    for row, label in zip(logits, targets.tolist(), strict=True):
        ours = [math.exp(row[c]) * [0.75, 0.25][c] / source[c] for c in (0, 1)]
        even = [math.exp(row[c]) / source[c] for c in (0, 1)]
        plain -= math.log(ours[label] / sum(ours)) / 4
        alike -= math.log(even[label] / sum(even)) / (2 * [3, 1][label])
    assert float(held_out_losses(logits, targets, source).mean()) == pytest.approx((plain + alike) / 2)


def test_offsets_of_methods_without_lambdas():
    expected = PRIOR.log() - torch.tensor([1 / 3] * 3, dtype=torch.float64).log()
    torch.testing.assert_close(training_offsets(PRIOR, None, [1 / 3] * 3)[0], expected)
    assert not training_offsets(PRIOR, None, None).any()


def test_what_is_wrong_is_said():
    with pytest.raises(UserError, match="numbers above 0"):
        ExpertCalibration((1.0, 0.0))
    with pytest.raises(UserError, match="2 experts, but the logits have 3"):
        ExpertCalibration((1.0, 1.0))(torch.zeros(1, 3, 3), PRIOR, torch.zeros(1, 3))
    with pytest.raises(UserError, match="of one class alone"):
        held_out_losses(torch.zeros(2, 3), torch.tensor([1, 1]), PRIOR)
    assert read_calibration(None) is None
