"""Triton kernels for convolution, batch normalisation and rectifier of several small experts, forward and backward.

Activations lie as (image, row, column, expert, channel), weights as (expert, output channel, tap, input channel).
What is summed over a batch (statistics of a normalisation, gradients of weights) is summed by each program over its
own pixels, in a fixed order, and by the next kernel over the programs: two trainings give the same numbers, to the bit.
A program takes N channels of its output, which are all of them unless they are many, and K of the channels that it sums
over at a time.
"""

import triton
import triton.language as tl

__all__ = [
    "conv_forward",
    "input_gradient",
    "norm_backward",
    "norm_forward",
    "pool_backward",
    "sum_partials",
    "weight_gradient",
]


@triton.jit
def _first_channel(C: tl.constexpr, N: tl.constexpr):
    """The first of the N channels that a program takes, of C."""
    return 0 if N == C else tl.program_id(2) * N


@triton.jit
def _total(sums, expert, part: tl.constexpr, programs, c, PROGRAMS: tl.constexpr, C: tl.constexpr):
    """One of the two sums of channels `c` of an expert, over all programs that have written theirs."""
    rows: tl.constexpr = PROGRAMS if PROGRAMS * c.shape[0] <= 16384 else 16384 // c.shape[0]
    total = tl.zeros([c.shape[0]], tl.float32)
    for turn in tl.static_range(PROGRAMS // rows):
        p = turn * rows + tl.arange(0, rows)[:, None]
        place = sums + ((expert * programs + p) * 2 + part) * C + c[None, :]
        total += tl.sum(tl.load(place, mask=p < programs, other=0.0), 0)
    return total


@triton.jit
def _write_sums(sums, expert, first, second, start, C: tl.constexpr, N: tl.constexpr):
    """Write a program's two sums of each of its N channels; columns are channels of one or several pixels."""
    place = sums + (expert * tl.num_programs(0) + tl.program_id(0)) * 2 * C + start + tl.arange(0, N)
    tl.store(place, tl.sum(tl.reshape(first, [first.shape[0] // N, N]), 0))
    tl.store(place + C, tl.sum(tl.reshape(second, [second.shape[0] // N, N]), 0))


@triton.jit
def _rectified(value, place, inside, activation, y, mean, rstd, dz):
    """Write a gradient through the rectifier; return it, as rounded, and the normalised numbers in front of it."""
    value = tl.where(tl.load(activation + place, mask=inside, other=0.0) > 0, value, 0.0).to(dz.dtype.element_ty)
    tl.store(dz + place, value, mask=inside)
    normal = (tl.load(y + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    return value.to(tl.float32), normal


@triton.jit
def _split(part, parts: tl.constexpr, K: tl.constexpr, C: tl.constexpr):
    """Which of the parts, and the first of its K channels of C: all parts of some channels, then of the next."""
    return part if K >= C else part % parts, 0 if K >= C else part // parts * K


@triton.jit
def _seen_by(
    x, tap, seen, image, row, column, inside, group, i,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """What one tap sees of the input: pixels by channels from `seen` on, zeros outside of the image."""
    r, c = row + tap // 3 - 1, column + tap % 3 - 1
    inside = inside & (r >= 0) & (r < H) & (c >= 0) & (c < W)
    source = ((image * H + r) * W + c) * CHANNELS + group * CI + seen
    return tl.load(x + source[:, None] + i[None, :], mask=inside[:, None] & (i < CI)[None, :], other=0.0)


@triton.jit
def _weights_of(weight, tap, seen, expert, o, i, CI: tl.constexpr, CO: tl.constexpr):
    """The weights of a tap: input channels from `seen` on, by output channels."""
    source = ((expert * CO + o) * 9 + tap) * CI + seen
    return tl.load(weight + source[None, :] + i[:, None], mask=(i < CI)[:, None], other=0.0)


@triton.jit(do_not_specialize=["pixels"])
def conv_forward(
    x, weight, y, sums, pixels,
    H: tl.constexpr, W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, STRIDE: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, EXPERTS: tl.constexpr, SHARED: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """A 3 x 3 convolution, and the sums of its outputs and of their squares; K is 16 if CI is less."""
    expert, start = tl.program_id(1), _first_channel(CO, N)
    channels: tl.constexpr = CI if SHARED else CI * EXPERTS
    group = 0 if SHARED else expert
    i, o = tl.arange(0, K), start + tl.arange(0, N)
    first = tl.zeros([N], tl.float32)
    second = tl.zeros([N], tl.float32)
    for turn in range(TURNS):
        m = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
        image, row, column = m // (OUT_H * OUT_W), m % (OUT_H * OUT_W) // OUT_W * STRIDE, m % OUT_W * STRIDE
        inside = m < pixels
        total = tl.zeros([BLOCK, N], tl.float32)
        for step in range(9 * ((CI + K - 1) // K)):
            tap, seen = _split(step, 9, K, CI)
            a = _seen_by(x, tap, seen, image, row, column, inside, group, i, H, W, CI, channels)
            b = _weights_of(weight, tap, seen, expert, o, i, CI, CO)
            total = tl.dot(a.to(y.dtype.element_ty), b, total, input_precision="ieee")
        value = total.to(y.dtype.element_ty)
        tl.store(y + ((m * EXPERTS + expert) * CO)[:, None] + o[None, :], value, mask=(m < pixels)[:, None])
        rounded = value.to(tl.float32)
        first += tl.sum(rounded, 0)
        second += tl.sum(rounded * rounded, 0)
    _write_sums(sums, expert, first, second, start, CO, N)


@triton.jit(do_not_specialize=["pixels", "programs"])
def norm_forward(
    y, sums, gamma, beta, running_mean, running_variance, stats, shortcut, out, pixels, programs, momentum, eps,
    PROGRAMS: tl.constexpr, C: tl.constexpr, EXPERTS: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    SHORTCUT: tl.constexpr, STRIDE: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr,
    BEFORE: tl.constexpr, SHARED: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Normalise, add the shortcut (every STRIDE-th pixel, BEFORE empty channels in front), rectify; keep statistics."""
    expert, c = tl.program_id(1), _first_channel(C, N) + tl.arange(0, N)
    mean = _total(sums, expert, 0, programs, c, PROGRAMS, C) / pixels
    variance = _total(sums, expert, 1, programs, c, PROGRAMS, C) / pixels - mean * mean
    variance = tl.maximum(variance, 0.0, tl.PropagateNan.ALL)  # by default a GPU makes 0 of max(NaN, 0)
    rstd = 1 / tl.sqrt(variance + eps)
    channel = expert * C + c
    if tl.program_id(0) == 0:
        tl.store(stats + 2 * expert * C + c, mean)
        tl.store(stats + (2 * expert + 1) * C + c, rstd)
        old = tl.load(running_mean + channel)
        tl.store(running_mean + channel, old + momentum * (mean - old))
        old = tl.load(running_variance + channel)
        tl.store(running_variance + channel, old + momentum * (variance * (pixels / (pixels - 1.0)) - old))
    scale = tl.load(gamma + channel) * rstd
    shift = tl.load(beta + channel) - mean * scale
    for turn in range(TURNS):
        m = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
        place = (m[:, None] * EXPERTS + expert) * C + c[None, :]
        inside = (m < pixels)[:, None]
        value = tl.load(y + place, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        if SHORTCUT:
            image, row, column = m // (OUT_H * OUT_W), m % (OUT_H * OUT_W) // OUT_W * STRIDE, m % OUT_W * STRIDE
            source = (image * H + row) * W + column
            if not SHARED:
                source = source * EXPERTS + expert
            own = inside & ((c >= BEFORE) & (c < BEFORE + CI))[None, :]
            source = shortcut + source[:, None] * CI + (c - BEFORE)[None, :]
            value += tl.load(source, mask=own, other=0.0).to(tl.float32)
        value = tl.maximum(value, 0.0, tl.PropagateNan.ALL)
        tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["pixels"])
def pool_backward(
    gradient, activation, y, stats, dz, sums, pixels,
    C: tl.constexpr, EXPERTS: tl.constexpr, AREA: tl.constexpr,
    N: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """From the gradient of a mean over pixels to that in front of the rectifier, with the sums for `norm_backward`."""
    expert, c = tl.program_id(1), _first_channel(C, N) + tl.arange(0, N)
    mean, rstd = tl.load(stats + 2 * expert * C + c), tl.load(stats + (2 * expert + 1) * C + c)
    first = tl.zeros([N], tl.float32)
    second = tl.zeros([N], tl.float32)
    for turn in range(TURNS):
        m = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
        place = (m[:, None] * EXPERTS + expert) * C + c[None, :]
        inside = (m < pixels)[:, None]
        pooled = ((m // AREA)[:, None] * EXPERTS + expert) * C + c[None, :]
        value = tl.load(gradient + pooled, mask=inside, other=0.0).to(tl.float32) / AREA
        rounded, normal = _rectified(value, place, inside, activation, y, mean, rstd, dz)
        first += tl.sum(rounded, 0)
        second += tl.sum(rounded * normal, 0)
    _write_sums(sums, expert, first, second, _first_channel(C, N), C, N)


@triton.jit(do_not_specialize=["pixels", "programs"])
def norm_backward(
    dz, y, sums, stats, gamma, dy, dgamma, dbeta, pixels, programs,
    PROGRAMS: tl.constexpr, C: tl.constexpr, EXPERTS: tl.constexpr,
    N: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """From the gradient behind a normalisation to that in front of it, and to those of its two parameters."""
    expert, c = tl.program_id(1), _first_channel(C, N) + tl.arange(0, N)
    mean, rstd = tl.load(stats + 2 * expert * C + c), tl.load(stats + (2 * expert + 1) * C + c)
    first = _total(sums, expert, 0, programs, c, PROGRAMS, C)
    second = _total(sums, expert, 1, programs, c, PROGRAMS, C)
    channel = expert * C + c
    if tl.program_id(0) == 0:
        tl.store(dgamma + channel, second)
        tl.store(dbeta + channel, first)
    scale = tl.load(gamma + channel) * rstd
    # dy = scale * (dz - first / n - xhat * second / n), as one straight line in dz and y
    slope = scale * rstd * second / pixels
    shift = mean * slope - scale * first / pixels
    for turn in range(TURNS):
        m = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
        place = (m[:, None] * EXPERTS + expert) * C + c[None, :]
        inside = (m < pixels)[:, None]
        value = tl.load(dz + place, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        value -= tl.load(y + place, mask=inside, other=0.0).to(tl.float32) * slope[None, :]
        tl.store(dy + place, value.to(dy.dtype.element_ty), mask=inside)


@triton.jit
def _flown(
    dy, part, expert, image, row, column, images, k,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, STRIDE: tl.constexpr, CO: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """The first factor of a part of `input_gradient`: gradients of the outputs that see an input pixel by one tap.

    `k` are output channels, with stride 2 those of an output pixel, then of the one beside it.
    """
    if STRIDE == 1:  # output row r sees input row r + ky - 1
        r, c = row + 1 - part % 9 // 3, column + 1 - part % 3
        inside = ((image < images) & (r >= 0) & (r < OUT_H) & (c >= 0) & (c < OUT_W))[:, None]
        source = ((((image * OUT_H + r) * OUT_W + c) * EXPERTS + expert) * CO)[:, None] + k[None, :]
    else:  # output row row + u sees input rows 2 * (row + u) + ky - 1
        r, c = row + part % 2, column[:, None] + (k // CO)[None, :]
        inside = ((image < images) & (r < OUT_H))[:, None] & (c < OUT_W)
        source = (((image * OUT_H + r)[:, None] * OUT_W + c) * EXPERTS + expert) * CO + (k % CO)[None, :]
    return tl.load(dy + source, mask=inside, other=0.0)


@triton.jit
def _seeing(
    weight, part, expert, k, down, right, i,
    STRIDE: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
):  # fmt: skip
    """The other factor: the weights by which those saw their inputs; `i` are input channels."""
    if STRIDE == 1:
        b = tl.load(weight + ((expert * CO + k) * 9 + part % 9)[:, None] * CI + i[None, :])
    else:
        u, v, o = part % 2, k // CO, k % CO
        ky, kx = down[None, :] + 1 - 2 * u, right[None, :] + 1 - 2 * v[:, None]
        tap = weight + (((expert * CO + o)[:, None] * 3 + ky) * 3 + kx) * CI + i[None, :]
        b = tl.load(tap, mask=(ky >= 0) & (kx >= 0), other=0.0)
    return b


@triton.jit(do_not_specialize=["images"])
def input_gradient(
    dy, weight, residual, activation, y, stats, dz, sums, images,
    H: tl.constexpr, W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, STRIDE: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, EXPERTS: tl.constexpr, SHARED: tl.constexpr,
    RESIDUAL: tl.constexpr, BEFORE: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """The convolution's gradient of its input, plus the shortcut's, through the rectifier in front of both.

    With the sums that `norm_backward` of the layer below wants, whose outputs are `y` and `stats`. With stride 2, a row
    of the product is a square of four input pixels, which four output pixels see, two of them in a column of it.
    """
    group, start = tl.program_id(1), _first_channel(CI, N)
    groups: tl.constexpr = 1 if SHARED else EXPERTS
    experts: tl.constexpr = EXPERTS if SHARED else 1
    parts: tl.constexpr = 9 if STRIDE == 1 else 2
    high: tl.constexpr = (H + STRIDE - 1) // STRIDE
    wide: tl.constexpr = (W + STRIDE - 1) // STRIDE
    k, n = tl.arange(0, K), tl.arange(0, STRIDE * STRIDE * N)
    down, right, i = n // (STRIDE * N), n // N % STRIDE, start + n % N
    mean, rstd = tl.load(stats + 2 * group * CI + i), tl.load(stats + (2 * group + 1) * CI + i)
    first = tl.zeros([STRIDE * STRIDE * N], tl.float32)
    second = tl.zeros([STRIDE * STRIDE * N], tl.float32)
    for turn in range(TURNS):
        m = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
        image, row, column = m // (high * wide), m % (high * wide) // wide, m % wide
        total = tl.zeros([BLOCK, STRIDE * STRIDE * N], tl.float32)
        for step in range(experts * parts * (STRIDE * CO // K)):
            part, seen = _split(step, experts * parts, K, STRIDE * CO)
            expert = part // parts if SHARED else group
            a = _flown(dy, part, expert, image, row, column, images, seen + k, OUT_H, OUT_W, STRIDE, CO, EXPERTS)
            b = _seeing(weight, part, expert, seen + k, down, right, i, STRIDE, CI, CO)
            total = tl.dot(a, b, total, input_precision="ieee")
        r, c = row[:, None] * STRIDE + down[None, :], column[:, None] * STRIDE + right[None, :]
        inside = (image < images)[:, None] & (r < H) & (c < W)
        if RESIDUAL:
            own = inside & (r % STRIDE == 0) & (c % STRIDE == 0)
            source = ((image[:, None] * OUT_H + r // STRIDE) * OUT_W + c // STRIDE) * EXPERTS
            for each in tl.static_range(experts):
                expert = each if SHARED else group
                place = residual + (source + expert) * CO + BEFORE + i[None, :]
                total += tl.load(place, mask=own, other=0.0).to(tl.float32)
        place = (((image[:, None] * H + r) * W + c) * groups + group) * CI + i[None, :]
        rounded, normal = _rectified(total, place, inside, activation, y, mean, rstd, dz)
        first += tl.sum(rounded, 0)
        second += tl.sum(rounded * normal, 0)
    _write_sums(sums, group, first, second, start, CI, N)


@triton.jit(do_not_specialize=["images"])
def weight_gradient(
    dy, x, partial, images,
    H: tl.constexpr, W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, STRIDE: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, EXPERTS: tl.constexpr, SHARED: tl.constexpr,
    TILE: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Each program's part of the gradient of one expert's three taps in a row of the kernel.

    TILE output pixels beside each other meet all the input pixels that they see; K holds these with their channels.
    Of many channels a program takes N of the outputs, and K of those of one input pixel.
    """
    line, expert = tl.program_id(1), tl.program_id(2)
    in_channels: tl.constexpr = CI if SHARED else CI * EXPERTS
    window: tl.constexpr = TILE + 2  # a larger tile is for stride 1
    wide: tl.constexpr = (OUT_W + TILE - 1) // TILE
    group = 0 if SHARED else expert
    k, n = tl.arange(0, K), tl.arange(0, TILE * N)
    beside, i = k // CI, k % CI
    right, o = n // N, n % N
    if window * CI > K:
        parts: tl.constexpr = CI // K
        beside, i, o = beside + line // 3 % 3, i + line // 9 % parts * K, o + line // (9 * parts) * N
        line = line % 3
    total = tl.zeros([TILE * N, K], tl.float32)
    for turn in range(TURNS):
        m = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
        image, row, column = m // (OUT_H * wide), m % (OUT_H * wide) // wide, m % wide * TILE
        c = column[None, :] + right[:, None]
        inside = (image < images)[None, :] & (c < OUT_W)
        source = (((image * OUT_H + row)[None, :] * OUT_W + c) * EXPERTS + expert) * CO + o[:, None]
        a = tl.load(dy + source, mask=inside, other=0.0)
        r, c = row * STRIDE + line - 1, column[:, None] * STRIDE + beside[None, :] - 1
        inside = ((image < images) & (r >= 0) & (r < H))[:, None] & (c >= 0) & (c < W) & (beside < window)[None, :]
        source = ((image * H + r)[:, None] * W + c) * in_channels + group * CI + i[None, :]
        b = tl.load(x + source, mask=inside, other=0.0)
        total = tl.dot(a, b.to(dy.dtype.element_ty), total, input_precision="ieee")
    # Output pixel `right` and input pixel `beside` meet in tap beside - right; each output pixel has a part of its own.
    kx = beside[None, :] - right[:, None]
    place = (((tl.program_id(0) * TILE + right) * EXPERTS + expert) * CO + o)[:, None]
    place = ((place * 3 + line) * 3 + kx) * CI + i[None, :]
    tl.store(partial + place, total, mask=(kx >= 0) & (kx < 3) & (beside < window)[None, :])


@triton.jit
def sum_partials(partials, table, gradient, BLOCK: tl.constexpr, ROWS: tl.constexpr, TURNS: tl.constexpr):
    """Sum the programs' parts of all layers' gradients; a program per block, a row of `table` says which."""
    row = table + tl.program_id(0) * 5
    source, size, count = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    place, left = tl.load(row + 3), tl.load(row + 4)
    n = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for turn in range(TURNS):
        p = turn * ROWS + tl.arange(0, ROWS)
        inside = (p < count)[:, None] & (n < left)[None, :]
        total += tl.sum(tl.load(partials + source + p[:, None] * size + n[None, :], mask=inside, other=0.0), 0)
    tl.store(gradient + place + n, total, mask=n < left)
