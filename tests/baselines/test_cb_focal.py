"""CB-Focal against its formula."""

import math

import pytest
import torch

from balpoe.baselines.cb_focal import CBFocalLoss
from made_losses import COUNTS, agrees, is_safe, made_batch


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_values(experts, gamma):
    plain = [(1 - 0.999) / (1 - 0.999**n) for n in COUNTS.tolist()]

    def by_sample(rows, label):
        total = 0.0
        for logits in rows:
            for number, logit in enumerate(logits):
                v = logit - math.log(4 - 1)
                p = sigmoid(v if number == label else -v)
                total += -((1 - p) ** gamma) * math.log(p)
        return 4 * plain[label] / sum(plain) * total / len(rows)

    agrees(CBFocalLoss(COUNTS, gamma, 0.999), by_sample, experts, rel=1e-7)


def test_without_power_and_weights_it_is_the_binary_cross_entropy():
    logits, labels = made_batch(1)
    loss = CBFocalLoss(COUNTS, gamma=0.0, beta=0.0)
    by_torch = torch.nn.functional.binary_cross_entropy_with_logits(
        logits[:, 0] - math.log(3), torch.eye(4, dtype=torch.float64)[labels], reduction="none"
    )
    torch.testing.assert_close(loss(logits, labels, reduction="none"), by_torch.sum(dim=1))


def test_it_is_linear_in_the_targets():
    loss, (logits, labels) = CBFocalLoss(COUNTS), made_batch(2)
    one_hot = torch.eye(4, dtype=torch.float64)
    mixed = 0.3 * one_hot[labels] + 0.7 * one_hot[labels.flip(0)]
    expected = 0.3 * loss(logits, labels, reduction="none") + 0.7 * loss(logits, labels.flip(0), reduction="none")
    torch.testing.assert_close(loss(logits, mixed, reduction="none"), expected)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_extreme_logits(gamma):
    is_safe(CBFocalLoss(COUNTS.long(), gamma), 2)
