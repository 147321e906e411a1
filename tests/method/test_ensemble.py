"""Theorem 1 and its corollary, and the move from one prior to another, against Bayes' rule written out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import (
    UserError,
    logit_adjusted_cross_entropy,
    logit_offsets,
    product_of_experts,
    shift_prior,
    source_prior,
    tempered_prior,
)
from gaussians import Gaussians, long_tail, random_prior


def exact_experts(problem, x, prior, lambdas, generator):
    """Experts that the theorem speaks of: exact training posteriors, adjusted, each up to a constant of its own."""
    training = problem.posterior(x, prior).log()
    constants = torch.randn(len(x), len(lambdas), 1, generator=generator, dtype=torch.float64)
    return training[:, None] - logit_offsets(prior, lambdas) + constants


@pytest.mark.parametrize("seed", range(20))
def test_theorem_1_for_random_priors_and_per_class_lambdas(seed):
    problem = Gaussians(classes=6, separation=0.7, seed=seed)
    generator = problem.generator
    prior = random_prior(6, generator)
    lambdas = torch.rand(4, 6, generator=generator, dtype=torch.float64) * 4 - 2
    x, _ = problem.sample(prior, 500)
    ensemble = product_of_experts(exact_experts(problem, x, prior, lambdas, generator)).softmax(dim=1)
    mean = lambdas.mean(dim=0)
    target = prior**mean / (prior**mean).sum()
    torch.testing.assert_close(ensemble, problem.posterior(x, target), rtol=0, atol=1e-5)
    torch.testing.assert_close(source_prior(prior, lambdas), target)


@pytest.mark.parametrize("seed", range(5))
def test_theorem_1_holds_for_weighted_experts(seed):
    problem = Gaussians(classes=6, separation=0.7, seed=200 + seed)
    generator = problem.generator
    prior = random_prior(6, generator)
    lambdas = torch.rand(3, 6, generator=generator, dtype=torch.float64) * 4 - 2
    weights = torch.rand(3, generator=generator, dtype=torch.float64).softmax(dim=0)
    x, _ = problem.sample(prior, 100)
    ensemble = product_of_experts(exact_experts(problem, x, prior, lambdas, generator), weights).softmax(dim=1)
    mean = sum(weight * each for weight, each in zip(weights, lambdas, strict=True))
    target = prior**mean / (prior**mean).sum()
    torch.testing.assert_close(ensemble, problem.posterior(x, target), rtol=0, atol=1e-5)
    torch.testing.assert_close(source_prior(prior, lambdas, weights), target)
    equal = torch.full((3,), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(source_prior(prior, lambdas, equal), source_prior(prior, lambdas))


@pytest.mark.parametrize("seed", range(20))
def test_corollary_lambdas_that_average_to_zero_give_the_balanced_rule(seed):
    problem = Gaussians(classes=6, separation=0.7, seed=100 + seed)
    generator = problem.generator
    prior = random_prior(6, generator)
    lambdas = torch.rand(3, 6, generator=generator, dtype=torch.float64) * 4 - 2
    lambdas = lambdas - lambdas.mean(dim=0)
    x, _ = problem.sample(prior, 500)
    ensemble = product_of_experts(exact_experts(problem, x, prior, lambdas, generator))
    uniform = torch.full((6,), 1 / 6, dtype=torch.float64)
    torch.testing.assert_close(ensemble.softmax(dim=1), problem.posterior(x, uniform), rtol=0, atol=1e-5)
    # Bayes-optimal for the balanced error: the class under which x is most likely.
    assert torch.equal(ensemble.argmax(dim=1), problem.log_likelihood(x).argmax(dim=1))


def test_the_loss_itself_leads_to_the_experts_of_the_theorem():
    """Over all functions of a discrete x the loss is convex, and least at the experts P(x | y) P^lambda(y)."""
    generator = torch.Generator().manual_seed(0)
    prior = random_prior(4, generator, temperature=1.0)
    likelihood = torch.softmax(torch.randn(4, 7, generator=generator, dtype=torch.float64), dim=1)  # P(x | y)
    lambdas = torch.tensor([1.0, 0.3, -1.3], dtype=torch.float64)
    joint = (prior[:, None] * likelihood).T  # P(x, y)

    def expected_loss(table):
        soft = joint / joint.sum(dim=1, keepdim=True)
        each = logit_adjusted_cross_entropy(table, soft, logit_offsets(prior, lambdas), reduction="none")
        return (each.mean(dim=1) * joint.sum(dim=1)).sum()

    experts = (tempered_prior(prior, lambdas)[:, :, None] * likelihood).log().permute(2, 0, 1)  # (x, experts, classes)
    table = experts.clone().requires_grad_()
    least = expected_loss(table)
    least.backward()
    least = least.detach()
    assert float(table.grad.abs().max()) < 1e-12
    for _ in range(20):
        elsewhere = experts + torch.randn(experts.shape, generator=generator, dtype=torch.float64)
        assert float(expected_loss(elsewhere)) > float(least)


def test_resampling_as_well_biases_the_ensemble():
    """Trained on resampled data the experts know the balanced posterior, and the offsets then overshoot."""
    problem, prior, lambdas = Gaussians(classes=4, separation=0.7), long_tail(4), torch.tensor([1.0, 0.0, -1.0])
    x, _ = problem.sample(prior, 200)
    uniform = torch.full((4,), 0.25, dtype=torch.float64)
    resampled = problem.posterior(x, uniform).log()[:, None] - logit_offsets(prior, lambdas)
    ensemble = product_of_experts(resampled).softmax(dim=1)
    inverse = tempered_prior(prior, -1)
    torch.testing.assert_close(ensemble, problem.posterior(x, inverse), rtol=0, atol=1e-6)
    assert float(inverse.max() / inverse.min()) == pytest.approx(100)


def test_sade_s_experts_do_not_average_to_a_balanced_ensemble():
    """Forward, uniform and twice-backward: the tail is preferred by the cube root of the imbalance ratio."""
    prior = long_tail(100)
    backward = prior.flip(0)
    lambdas = torch.stack([torch.ones(100), torch.zeros(100), 2 * backward.log() / prior.log()])
    ensemble = source_prior(prior, lambdas)
    assert float(ensemble[-1] / ensemble[0]) == pytest.approx(100 ** (1 / 3), rel=1e-6)


@given(st.integers(0, 10_000))
def test_shift_prior_is_exact_and_can_be_undone(seed):
    problem = Gaussians(classes=5, separation=0.8, seed=seed)
    source, target = random_prior(5, problem.generator), random_prior(5, problem.generator)
    x, _ = problem.sample(source, 50)
    logits = problem.posterior(x, source).log() + 3.0
    moved = shift_prior(logits, target, source)
    torch.testing.assert_close(moved.softmax(dim=1), problem.posterior(x, target), rtol=0, atol=1e-9)
    torch.testing.assert_close(shift_prior(moved, source, target), logits)


def test_balanced_logits_need_no_source_prior():
    problem = Gaussians(classes=5, separation=0.8)
    uniform, target = torch.full((5,), 0.2, dtype=torch.float64), long_tail(5)
    x, _ = problem.sample(uniform, 50)
    balanced = problem.posterior(x, uniform).log()
    expected = problem.posterior(x, target)
    torch.testing.assert_close(shift_prior(balanced, target).softmax(dim=1), expected)
    torch.testing.assert_close(shift_prior(balanced, target, uniform).softmax(dim=1), expected)
    # The paper's shortcut: "ensuring mean lambda = log(P_test / P_train)" is not P^lambda for that prior.
    train = long_tail(5).flip(0)
    shortcut = tempered_prior(train, (target / train).log()[None])[0]
    assert float((shortcut - target).abs().max()) > 0.05
    exact = tempered_prior(train, (target.log() / train.log())[None])[0]
    torch.testing.assert_close(exact, target)


def test_a_zero_in_the_target_excludes_the_class():
    moved = shift_prior(torch.zeros(2, 3), [0.5, 0.5, 0.0])
    assert moved[:, 2].eq(float("-inf")).all()
    assert moved.softmax(dim=1).tolist() == [[0.5, 0.5, 0.0]] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precision_is_at_least_float32(dtype):
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    expert_logits = torch.tensor([[[1e4, -1e4], [-1e4, 1e4]]], dtype=dtype)
    ensemble = product_of_experts(expert_logits)
    assert ensemble.dtype == expected
    assert ensemble.tolist() == [[0.0, 0.0]]
    moved = shift_prior(expert_logits[:, 0], [1 - 1e-8, 1e-8], [0.5, 0.5])
    assert moved.dtype == expected
    assert torch.isfinite(moved).all()


@pytest.mark.parametrize(
    ("target", "source", "sentence"),
    [
        ([0.5, 0.6], None, "target_prior sums to 1.1, not to 1"),
        ([0.5, 0.3, 0.2], None, "target_prior has 3 entries, but there are 2 classes"),
        ([1.5, -0.5], None, "target_prior is negative for class 1"),
        ([float("nan"), 1.0], None, "finite"),
        ([0.5, 0.5], [1.0, 0.0], "source_prior is zero for class 1"),
        ([0.5, 0.5], [0.2, 0.2], "source_prior sums to 0.4"),
    ],
)
def test_wrong_priors(target, source, sentence):
    with pytest.raises(UserError, match=sentence):
        shift_prior(torch.zeros(1, 2), target, source)


@pytest.mark.slow
def test_under_torch_compile():
    target = torch.tensor([0.7, 0.2, 0.1])

    def predict(expert_logits):
        return shift_prior(product_of_experts(expert_logits), target).softmax(dim=1)

    torch.manual_seed(0)
    expert_logits = torch.randn(4, 3, 3)
    compiled = torch.compile(predict, backend="aot_eager")
    torch.testing.assert_close(compiled(expert_logits), predict(expert_logits))


def test_logits_of_one_classifier_are_not_taken_for_experts():
    with pytest.raises(UserError, match=r"must have shape \(batch, experts, classes\), but have \(4, 3\)"):
        product_of_experts(torch.zeros(4, 3))
