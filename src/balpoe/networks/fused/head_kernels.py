"""Triton kernels for the end of a pass: the cosine classifier of several experts, and their logit-adjusted loss.

Features lie as (sample, expert, feature), logits as (sample, expert, class), all of them float32. Sums have a fixed
order, so that two trainings give the same numbers, to the bit.
"""

import triton
import triton.language as tl

__all__ = ["cosine_features_gradient", "cosine_forward", "cosine_weights_gradient", "loss_forward"]

SHORTEST = tl.constexpr(1e-12)  # as in `CosineClassifier`: what is shorter is divided by this


@triton.jit
def _unit(rows, N: tl.constexpr):
    """Rows (N, features) of unit length, what they were divided by, and whether their own length was that."""
    length = tl.sqrt(tl.sum(rows * rows, 1))
    divisor = tl.maximum(length, SHORTEST, tl.PropagateNan.ALL)
    return rows / tl.reshape(divisor, [N, 1]), divisor, length >= SHORTEST


@triton.jit
def _across(gradient, unit, divisor, free, N: tl.constexpr):
    """From the gradient of unit rows to that of the rows: without its part along them, which changes no direction."""
    along = tl.where(free, tl.sum(gradient * unit, 1), 0.0)
    return (gradient - tl.reshape(along, [N, 1]) * unit) / tl.reshape(divisor, [N, 1])


@triton.jit
def _rows(start, number, first, count, EXPERTS: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr):
    """N rows of WIDTH numbers, EXPERTS rows apart; zeros behind the last."""
    row, column = first + tl.arange(0, N), tl.arange(0, WIDTH)
    place = start + (row[:, None] * EXPERTS + number) * WIDTH + column[None, :]
    return tl.load(place, mask=(row < count)[:, None], other=0.0)


@triton.jit(do_not_specialize=["samples", "classes"])
def cosine_forward(
    features, weight, logits, samples, classes, scale,
    EXPERTS: tl.constexpr, WIDTH: tl.constexpr, SAMPLES: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """Logits scale * cosine, of a block of samples and a block of classes of one expert."""
    first, expert = tl.program_id(0) * SAMPLES, tl.program_id(2)
    first_class = tl.program_id(1) * CLASSES
    unit, _, _ = _unit(_rows(features, expert, first, samples, EXPERTS, WIDTH, SAMPLES), SAMPLES)
    own = weight + expert * classes * WIDTH
    direction, _, _ = _unit(_rows(own, 0, first_class, classes, 1, WIDTH, CLASSES), CLASSES)
    value = scale * tl.dot(unit, tl.trans(direction), input_precision="ieee")
    b, c = first + tl.arange(0, SAMPLES), first_class + tl.arange(0, CLASSES)
    place = logits + (b[:, None] * EXPERTS + expert) * classes + c[None, :]
    tl.store(place, value, mask=(b < samples)[:, None] & (c < classes)[None, :])


@triton.jit
def _gradients(gradient, expert, first, first_class, samples, classes,
               EXPERTS: tl.constexpr, SAMPLES: tl.constexpr, CLASSES: tl.constexpr):  # fmt: skip
    """A block of the gradient of the logits (samples, classes) of one expert."""
    b, c = first + tl.arange(0, SAMPLES), first_class + tl.arange(0, CLASSES)
    place = gradient + (b[:, None] * EXPERTS + expert) * classes + c[None, :]
    return tl.load(place, mask=(b < samples)[:, None] & (c < classes)[None, :], other=0.0)


@triton.jit(do_not_specialize=["samples", "classes"])
def cosine_features_gradient(
    gradient, features, weight, out, samples, classes, scale,
    EXPERTS: tl.constexpr, WIDTH: tl.constexpr, SAMPLES: tl.constexpr, CLASSES: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of one expert's features, from that of their logits."""
    first, expert = tl.program_id(0) * SAMPLES, tl.program_id(1)
    total = tl.zeros([SAMPLES, WIDTH], tl.float32)
    for turn in range(TURNS):
        first_class = turn * CLASSES
        own = weight + expert * classes * WIDTH
        direction, _, _ = _unit(_rows(own, 0, first_class, classes, 1, WIDTH, CLASSES), CLASSES)
        block = _gradients(gradient, expert, first, first_class, samples, classes, EXPERTS, SAMPLES, CLASSES)
        total = tl.dot(block, direction, total, input_precision="ieee")
    unit, divisor, free = _unit(_rows(features, expert, first, samples, EXPERTS, WIDTH, SAMPLES), SAMPLES)
    value = scale * _across(total, unit, divisor, free, SAMPLES)
    b = first + tl.arange(0, SAMPLES)
    place = out + (b[:, None] * EXPERTS + expert) * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(place, value, mask=(b < samples)[:, None])


@triton.jit(do_not_specialize=["samples", "classes"])
def cosine_weights_gradient(
    gradient, features, weight, out, samples, classes, scale,
    EXPERTS: tl.constexpr, WIDTH: tl.constexpr, SAMPLES: tl.constexpr, CLASSES: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """The gradient of the weights of a block of one expert's classes, from that of all logits."""
    first_class, expert = tl.program_id(0) * CLASSES, tl.program_id(1)
    total = tl.zeros([CLASSES, WIDTH], tl.float32)
    for turn in range(TURNS):
        first = turn * SAMPLES
        unit, _, _ = _unit(_rows(features, expert, first, samples, EXPERTS, WIDTH, SAMPLES), SAMPLES)
        block = _gradients(gradient, expert, first, first_class, samples, classes, EXPERTS, SAMPLES, CLASSES)
        total = tl.dot(tl.trans(block), unit, total, input_precision="ieee")
    own = expert * classes * WIDTH
    direction, divisor, free = _unit(_rows(weight + own, 0, first_class, classes, 1, WIDTH, CLASSES), CLASSES)
    value = scale * _across(total, direction, divisor, free, CLASSES)
    c = first_class + tl.arange(0, CLASSES)
    place = out + own + c[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(place, value, mask=(c < classes)[:, None])


@triton.jit(do_not_specialize=["rows", "classes"])
def loss_forward(
    logits, offsets, targets, partners, weight, values, gradient, rows, classes,
    EXPERTS: tl.constexpr, PER_SAMPLE: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """Each row's blended cross-entropy of logits plus offsets, and the gradient of the mean over all rows."""
    row, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, CLASSES)
    inside = (row < rows)[:, None] & (c < classes)[None, :]
    sample, expert = row // EXPERTS, row % EXPERTS
    place = row[:, None] * classes + c[None, :]
    z = tl.load(logits + place, mask=inside, other=-1e30)
    z += tl.load(offsets + expert[:, None] * classes + c[None, :], mask=inside, other=0.0)
    z = tl.where((row < rows)[:, None], z, 0.0)
    z -= tl.max(z, 1)[:, None]
    exponential = tl.exp(z)
    total = tl.sum(exponential, 1)
    target = tl.load(targets + sample, mask=row < rows, other=0)
    partner = tl.load(partners + sample, mask=row < rows, other=0)
    kept = tl.load(weight + sample * PER_SAMPLE, mask=row < rows, other=1.0)[:, None]
    wanted = tl.where(c[None, :] == target[:, None], kept, 0.0) + tl.where(
        c[None, :] == partner[:, None], 1 - kept, 0.0
    )
    said = tl.sum(wanted * z, 1)
    tl.store(values + row, tl.log(total) - said, mask=row < rows)
    tl.store(gradient + place, (exponential / total[:, None] - wanted) / rows, mask=inside)
