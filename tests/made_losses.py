"""What the tests of the losses share: a long tail, logits of several experts, and checks that hold for every loss."""

import pytest
import torch

COUNTS = torch.tensor([500.0, 100.0, 20.0, 5.0], dtype=torch.float64)
SCALE = 32.0


def made_batch(experts, samples=11):
    """Return logits of a cosine classifier, (batch, experts, classes), in float64, and labels."""
    generator = torch.Generator().manual_seed(experts)
    cosines = 2 * torch.rand(samples, experts, len(COUNTS), generator=generator, dtype=torch.float64) - 1
    return SCALE * cosines, torch.randint(len(COUNTS), (samples,), generator=generator)


def agrees(loss, by_sample, experts, progress=None, rel=1e-9, gradients=True):
    """Check a loss against `by_sample(rows, label)`, a slow loop in plain Python: values and mean.

    Gradients are compared with differences of values, unless part of the loss is held fixed in them.
    """
    logits, labels = made_batch(experts)
    values = loss(logits, labels, progress=progress, reduction="none")
    expected = [by_sample(rows, label) for rows, label in zip(logits.tolist(), labels.tolist(), strict=True)]
    assert values.shape == (len(labels),)
    assert values.tolist() == pytest.approx(expected, rel=rel)
    mean = loss(logits, labels, progress=progress)
    assert float(mean) == pytest.approx(sum(expected) / len(expected), rel=rel)
    assert not gradients or torch.autograd.gradcheck(
        lambda each: loss(each, labels[:2], progress=progress), logits[:2].clone().requires_grad_()
    )


def is_safe(loss, experts, progress=1.0):
    """Check that values and gradients are finite at the ends of a cosine's range, in float32, bfloat16 and autocast."""
    logits = SCALE * torch.tensor([[1.0, -1, -1, -1], [-1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
    for dtype in (torch.float32, torch.bfloat16):
        for label in range(4):
            each = logits[:, None].expand(-1, experts, -1).to(dtype).requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                value = loss(each, torch.full((4,), label), progress=progress)
            value.backward()
            assert value.dtype == torch.float32
            assert bool(value.isfinite())
            assert bool(each.grad.isfinite().all())
