"""LDAM-DRW against its formula."""

import math

import pytest
import torch

from balpoe import UserError
from balpoe.baselines.ldam import LDAMLoss, ldam_margins
from made_losses import COUNTS, SCALE, agrees, is_safe, made_batch


def by_formula(weighted):
    """Return the loss of a sample, written from the paper."""
    counts = COUNTS.tolist()
    largest = max(n**-0.25 for n in counts)
    margins = [0.5 * n**-0.25 / largest for n in counts]
    plain = [(1 - 0.9999) / (1 - 0.9999**n) for n in counts]
    mean = sum(n * w for n, w in zip(counts, plain, strict=True)) / sum(counts)

    def by_sample(rows, label):
        total = 0.0
        for logits in rows:
            cosines = [v / SCALE for v in logits]
            cosines[label] -= margins[label]
            scores = [math.exp(SCALE * c) for c in cosines]
            total += -math.log(scores[label] / sum(scores))
        return total / len(rows) * (plain[label] / mean if weighted else 1)

    return by_sample


@pytest.mark.parametrize("experts", [1, 3])
def test_values_before_and_after_the_weights_set_in(experts):
    for progress, weighted in ((None, False), (0.0, False), (0.799, False), (0.8, True), (1.0, True)):
        agrees(LDAMLoss(COUNTS, SCALE), by_formula(weighted), experts, progress)


def test_the_rarest_class_has_the_largest_margin():
    margins = ldam_margins(COUNTS, 0.5)
    assert margins.argsort().tolist() == [0, 1, 2, 3]
    assert float(margins[3]) == 0.5
    assert float(margins[0]) == pytest.approx(0.5 * (5 / 500) ** 0.25)


def test_weights_are_one_on_average_over_the_training_set():
    loss = LDAMLoss(COUNTS, SCALE)
    assert float((loss.weights * COUNTS).sum() / COUNTS.sum()) == pytest.approx(1)


def test_without_margins_it_is_cross_entropy():
    logits, labels = made_batch(1)
    torch.testing.assert_close(
        LDAMLoss(COUNTS, SCALE, max_margin=0.0)(logits, labels), torch.nn.functional.cross_entropy(logits[:, 0], labels)
    )


def test_extreme_logits():
    is_safe(LDAMLoss(COUNTS.long(), SCALE), 2)


def test_soft_labels_have_no_margin():
    with pytest.raises(UserError, match="the loss of LDAM wants labels"):
        LDAMLoss(COUNTS, SCALE)(made_batch(1)[0], torch.full((11, 4), 0.25))
