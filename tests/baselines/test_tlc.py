"""TLC against its formula."""

import math

import pytest
import torch
from torch.distributions import Dirichlet, kl_divergence

from balpoe.baselines.tlc import TLCLoss, divergence_from_ignorance, left_uncertain
from made_losses import COUNTS, SCALE, is_safe, made_batch


def softmax(values):
    scores = [math.exp(v - max(values)) for v in values]
    return [each / sum(scores) for each in scores]


def uncertain_by_formula(rows):
    """Return what each expert finds uncertain in a sample, by Dempster's rule."""
    left, before = [1.0], None
    for logits in rows:
        evidence = [math.exp(v) for v in logits]
        total = sum(evidence) + len(evidence)
        belief = [e / total for e in evidence]
        conflict = 0.0
        if before is not None:
            conflict = sum(a * b for j, a in enumerate(before) for k, b in enumerate(belief) if j != k)
        left.append(left[-1] * len(evidence) / total / (1 - conflict))
        before = belief
    return left[: len(rows)]


def by_formula(batch, labels, progress, threshold):
    """Return the loss of a batch, written from the paper."""
    counts, weighted = COUNTS.tolist(), progress >= 0.8
    margins = [0.5 * (n / min(counts)) ** -0.25 for n in counts]
    plain = [(1 - 0.9999) / (1 - 0.9999**n) for n in counts]
    weights = [4 * w / sum(plain) if weighted else 1.0 for w in plain]
    temperatures = [4 * n / sum(counts) * 0.05 + 0.95 for n in counts]
    temperatures = [t / max(temperatures) if weighted else 1.0 for t in temperatures]
    left = [uncertain_by_formula(rows) for rows in batch]
    total = 0.0
    for expert in range(len(batch[0])):
        largest, engaged = max(each[expert] for each in left), []
        for rows, label, each in zip(batch, labels, left, strict=True):
            if each[expert] / largest <= threshold:
                continue
            logits = rows[expert]
            moved = [v - (SCALE * margins[c] if c == label else 0) for c, v in enumerate(logits)]
            value = -weights[label] * math.log(softmax(moved)[label])
            alpha = [1.0 if c == label else 1 + math.exp(v) for c, v in enumerate(logits)]
            ones = Dirichlet(torch.ones(4, dtype=torch.float64))
            value += progress * 0.015 * float(kl_divergence(Dirichlet(torch.tensor(alpha, dtype=torch.float64)), ones))
            mean = [sum(row[c] for row in rows) / len(rows) / temperatures[c] for c in range(4)]
            alone = [v / t for v, t in zip(logits, temperatures, strict=True)]
            divergence = sum(p * math.log(p / q) for p, q in zip(softmax(mean), softmax(alone), strict=True))
            value -= 0.01 * (sum(temperatures) / 4) ** 2 * divergence
            engaged.append(value)
        total += sum(engaged) / len(engaged)
    return total


@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("progress", [0.0, 0.5, 0.9])
def test_values(experts, progress):
    logits, labels = made_batch(experts)
    logits = logits / 8  # so that several samples are uncertain enough
    for threshold in (0.0, 0.1, 0.54):
        loss = TLCLoss(COUNTS, SCALE, threshold=threshold)
        expected = by_formula(logits.tolist(), labels.tolist(), progress, threshold)
        assert float(loss(logits, labels, progress=progress)) == pytest.approx(expected, rel=1e-7)
        assert float(loss(logits, labels, progress=progress, reduction="none").mean()) == pytest.approx(
            expected, rel=1e-7
        )


def test_the_first_expert_sees_all_and_the_last_few_samples():
    logits, labels = made_batch(3)
    loss = TLCLoss(COUNTS, SCALE)
    each = logits.clone().requires_grad_()
    loss(each, labels, progress=0.5).backward()
    seen = (each.grad.abs().sum(dim=2) > 0).sum(dim=0)
    assert int(seen[0]) == len(labels)
    assert 1 <= int(seen[1]) < len(labels)


def test_what_experts_leave_uncertain():
    logits, _ = made_batch(3)
    expected = [uncertain_by_formula(rows) for rows in (logits / 8).tolist()]
    torch.testing.assert_close(left_uncertain(logits / 8).exp(), torch.tensor(expected, dtype=torch.float64))
    sure = left_uncertain(torch.tensor([[[32.0, -32, -32], [-32.0, 32, -32], [-32.0, -32, 32]]]))
    assert bool(sure.isfinite().all())  # experts that contradict each other and are sure


def test_the_divergence_of_evidence_is_that_of_dirichlet_distributions():
    logs = torch.linspace(-8, 8, 50, dtype=torch.float64).reshape(10, 5)[:, [4, 2, 0, 1, 3]]
    expected = kl_divergence(Dirichlet(1 + logs.exp()), Dirichlet(torch.ones_like(logs)))
    torch.testing.assert_close(divergence_from_ignorance(logs), expected, rtol=1e-7, atol=1e-7)
    assert torch.autograd.gradcheck(divergence_from_ignorance, logs.clone().requires_grad_())


def test_it_is_the_same_in_float32_where_the_usual_formula_is_not():
    logs = torch.tensor([[32.0, 20.0, -3.0], [15.0, 15.0, 31.0], [0.0, -32.0, 12.0]])
    each = logs.clone().requires_grad_()
    exact = logs.double().requires_grad_()
    values, truth = divergence_from_ignorance(each), divergence_from_ignorance(exact)
    torch.testing.assert_close(values.double(), truth, rtol=1e-5, atol=1e-5)
    values.sum().backward()
    truth.sum().backward()
    torch.testing.assert_close(each.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)


def test_extreme_logits():
    is_safe(TLCLoss(COUNTS.long(), SCALE), 3)
