"""RIDE against its formula."""

import math

import pytest
import torch

from balpoe.baselines.ldam import LDAMLoss
from balpoe.baselines.ride import RIDELoss
from made_losses import COUNTS, SCALE, agrees, is_safe, made_batch


def softmax(values):
    scores = [math.exp(v - max(values)) for v in values]
    return [each / sum(scores) for each in scores]


def by_formula(weighted, factor=0.05, diversity=0.45):
    """Return the loss of a sample, written from the paper."""
    counts = COUNTS.tolist()
    largest = max(n**-0.25 for n in counts)
    margins = [0.5 * n**-0.25 / largest for n in counts]
    plain = [(1 - 0.9999) / (1 - 0.9999**n) for n in counts]
    mean_weight = sum(n * w for n, w in zip(counts, plain, strict=True)) / sum(counts)
    temperatures = [4 * n / sum(counts) * factor + 1 - factor for n in counts]
    temperatures = [t / max(temperatures) if weighted else 1.0 for t in temperatures]
    square = (sum(temperatures) / 4) ** 2

    def by_sample(rows, label):
        total = 0.0
        mean = [sum(row[c] for row in rows) / len(rows) for c in range(4)]
        together = softmax([v / t for v, t in zip(mean, temperatures, strict=True)])
        for logits in rows:
            moved = [v - (SCALE * margins[c] if c == label else 0) for c, v in enumerate(logits)]
            total += -math.log(softmax(moved)[label]) * (plain[label] / mean_weight if weighted else 1)
            alone = softmax([v / t for v, t in zip(logits, temperatures, strict=True)])
            total -= diversity * square * sum(p * math.log(p / q) for p, q in zip(together, alone, strict=True))
        return total

    return by_sample


@pytest.mark.parametrize("experts", [1, 3])
def test_values_before_and_after_the_weights_set_in(experts):
    for progress, weighted in ((None, False), (0.79, False), (0.8, True)):
        agrees(RIDELoss(COUNTS, SCALE), by_formula(weighted), experts, progress, gradients=experts == 1)


def test_no_gradient_goes_through_the_mean():
    logits, labels = made_batch(3)
    target = logits.mean(dim=1, keepdim=True).softmax(dim=2)

    def gradient(value):
        each = logits.clone().requires_grad_()
        return torch.autograd.grad(value(each), each)[0]

    apart = gradient(lambda each: RIDELoss(COUNTS, SCALE, diversity=1.0, max_margin=0.0)(each, labels))
    alike = gradient(lambda each: RIDELoss(COUNTS, SCALE, diversity=0.0, max_margin=0.0)(each, labels))
    cross = gradient(lambda each: -(target * each.log_softmax(dim=2)).sum(dim=(1, 2)).mean())
    torch.testing.assert_close(apart, alike - cross)


def test_without_diversity_it_is_the_sum_of_ldam():
    logits, labels = made_batch(3)
    alone = sum(LDAMLoss(COUNTS, SCALE)(logits[:, [expert]], labels, progress=0.9) for expert in range(3))
    torch.testing.assert_close(RIDELoss(COUNTS, SCALE, diversity=0.0)(logits, labels, progress=0.9), alone)


def test_extreme_logits():
    is_safe(RIDELoss(COUNTS.long(), SCALE), 3)
