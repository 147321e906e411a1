"""LADE against its formula."""

import math

import pytest
import torch

from balpoe import class_prior
from balpoe.baselines.lade import LADELoss
from made_losses import COUNTS, is_safe, made_batch

PRIOR = class_prior(COUNTS)


def by_formula(logits, labels, strength, alpha):
    """Return the loss of each sample of one expert, written from the paper."""
    prior, samples = PRIOR.tolist(), len(labels)
    regulariser = 0.0
    for c in range(4):
        own = [v[c] for v, label in zip(logits, labels, strict=True) if label == c]
        first = sum(own) / len(own) if own else 0.0
        ratio = math.log(sum(math.exp(v[c]) for v in logits) / samples * (1 / 4) / prior[c])
        regulariser -= prior[c] * (first - ratio - strength * ratio**2)
    values = []
    for v, label in zip(logits, labels, strict=True):
        scores = [prior[c] * math.exp(v[c]) for c in range(4)]
        values.append(-math.log(scores[label] / sum(scores)) + alpha * regulariser)
    return values


@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("present", [4, 2])
def test_values(experts, present):
    """Also of a batch in which classes are absent."""
    logits, labels = made_batch(experts)
    labels = labels % present
    expected = torch.zeros(11).double()
    for expert in range(experts):
        expected += torch.tensor(by_formula(logits[:, expert].tolist(), labels.tolist(), 0.3, 0.7)).double() / experts
    loss = LADELoss(PRIOR, experts, strength=0.3, alpha=0.7)
    torch.testing.assert_close(loss(logits, labels, reduction="none"), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(loss(logits, labels), expected.mean(), rtol=1e-6, atol=0)
    assert torch.autograd.gradcheck(lambda each: loss(each, labels), logits.clone().requires_grad_())


def test_the_regulariser_is_least_at_the_logarithm_of_the_density_ratio():
    """With many samples and no square: moving the logits of a class away from log p(x | c) / p(x) makes it larger."""
    from balpoe.baselines.lade import density_ratio_bound

    uniform = torch.full((2,), 0.5, dtype=torch.float64)
    x = torch.tensor([0, 0, 0, 1, 0, 1, 1, 1])
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    ratios = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64) / 0.5  # p(x | c) / p(x), by x and c

    def at(table):
        return float(density_ratio_bound(table[x][:, None], labels, uniform.log(), 0.0))

    best = at(ratios.log())
    for move in torch.randn(20, 2, 2, generator=torch.Generator().manual_seed(0)).double():
        assert at(ratios.log() + 0.3 * move) >= best - 1e-12


def test_extreme_logits():
    is_safe(LADELoss(PRIOR.float(), 2), 2)
