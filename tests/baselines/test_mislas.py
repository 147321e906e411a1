import math

import pytest
import torch

from balpoe.baselines.mislas import LabelAwareSmoothing, smoothing_by_class

COUNTS = torch.tensor([300, 70, 20, 4])


def test_the_loss_is_the_formula_of_the_paper():
    """A loop over samples, experts and classes."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 2, 4, dtype=torch.float64, generator=generator)
    targets = torch.tensor([0, 1, 2, 3, 3, 0])
    values = []
    for sample, label in zip(logits, targets.tolist(), strict=True):
        share = 0.05 + (0.3 - 0.05) * math.sin(math.pi * (int(COUNTS[label]) - 4) / (2 * (300 - 4)))
        value = 0.0
        for expert in sample:
            log_p = [float(v) - math.log(sum(math.exp(float(u)) for u in expert)) for v in expert]
            value += (1 - share) * -log_p[label] + share * sum(-each for each in log_p) / 4
        values.append(value / 2)
    loss = LabelAwareSmoothing(COUNTS, 0.3, 0.05)
    assert loss(logits, targets, reduction="none").tolist() == pytest.approx(values, rel=1e-6)
    assert float(loss(logits, targets)) == pytest.approx(sum(values) / 6, rel=1e-6)


def test_classes_that_are_alike_are_smoothed_alike():
    assert smoothing_by_class(torch.tensor([5, 5, 5]), 0.4, 0.1).tolist() == pytest.approx([0.1] * 3)
