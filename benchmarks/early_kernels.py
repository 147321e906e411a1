"""Kernels that load early, to be timed by `step_launches.py`: no training launches them.

They do what those of `balpoe.networks.fused.kernels` and `row_kernels` do, in the same order. A normalisation loads
its first pixels before it reads the sums of all programs, and those of each further turn before the turn. A gradient
of inputs loads what its products are added to, and the rectifier's activations, before the products; a gradient of
weights loads the next turn's factors before the product of this one. So nothing waits for memory twice in a row. It
takes registers, for what was loaded has to be kept: blocks are smaller, or have more warps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton
import triton.language as tl

from balpoe.networks.fused import forward
from balpoe.networks.fused.kernels import _first_channel, _flown, _seeing, _split, _total, _write_sums
from balpoe.networks.fused.row_kernels import _flown as _row_flown
from balpoe.networks.fused.row_kernels import _seen, _store_taps, _tiles

__all__ = ["early"]


@triton.jit
def _block(turn, pixels, expert, c, EXPERTS: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """The pixels of a program's turn, where their numbers lie, and which of them there are."""
    m = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    return m, (m[:, None] * EXPERTS + expert) * C + c[None, :], (m < pixels)[:, None]


@triton.jit
def _with_shortcut(
    y, shortcut, turn, pixels, expert, c,
    C: tl.constexpr, EXPERTS: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    SHORTCUT: tl.constexpr, STRIDE: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr,
    BEFORE: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What a turn normalises, and what is added to it, if there is anything."""
    m, place, inside = _block(turn, pixels, expert, c, EXPERTS, C, BLOCK)
    value = tl.load(y + place, mask=inside, other=0.0)
    added = value
    if SHORTCUT:
        image, row, column = m // (OUT_H * OUT_W), m % (OUT_H * OUT_W) // OUT_W * STRIDE, m % OUT_W * STRIDE
        source = (image * H + row) * W + column
        if not SHARED:
            source = source * EXPERTS + expert
        own = inside & ((c >= BEFORE) & (c < BEFORE + CI))[None, :]
        added = tl.load(shortcut + source[:, None] * CI + (c - BEFORE)[None, :], mask=own, other=0.0)
    return value, added


@triton.jit(do_not_specialize=["pixels", "programs"])
def norm_forward(
    y, sums, gamma, beta, running_mean, running_variance, stats, shortcut, out, pixels, programs, momentum, eps,
    PROGRAMS: tl.constexpr, C: tl.constexpr, EXPERTS: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    SHORTCUT: tl.constexpr, STRIDE: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr,
    BEFORE: tl.constexpr, SHARED: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    expert, c = tl.program_id(1), _first_channel(C, N) + tl.arange(0, N)
    given, added = _with_shortcut(
        y, shortcut, 0, pixels, expert, c, C, EXPERTS, OUT_H, OUT_W, SHORTCUT, STRIDE, H, W, CI, BEFORE, SHARED, BLOCK
    )
    mean = _total(sums, expert, 0, programs, c, PROGRAMS, C) / pixels
    variance = _total(sums, expert, 1, programs, c, PROGRAMS, C) / pixels - mean * mean
    variance = tl.maximum(variance, 0.0, tl.PropagateNan.ALL)
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
        ahead, added_ahead = given, added
        if TURNS > 1:
            ahead, added_ahead = _with_shortcut(
                y, shortcut, turn + 1, pixels, expert, c, C, EXPERTS, OUT_H, OUT_W, SHORTCUT, STRIDE, H, W, CI,
                BEFORE, SHARED, BLOCK,
            )  # fmt: skip
        value = given.to(tl.float32) * scale[None, :] + shift[None, :]
        if SHORTCUT:
            value += added.to(tl.float32)
        value = tl.maximum(value, 0.0, tl.PropagateNan.ALL)
        _, place, inside = _block(turn, pixels, expert, c, EXPERTS, C, BLOCK)
        tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)
        given, added = ahead, added_ahead


@triton.jit
def _loaded(first, second, place, inside):
    """The same numbers of two tensors."""
    return tl.load(first + place, mask=inside, other=0.0), tl.load(second + place, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["pixels", "programs"])
def norm_backward(
    dz, y, sums, stats, gamma, dy, dgamma, dbeta, pixels, programs,
    PROGRAMS: tl.constexpr, C: tl.constexpr, EXPERTS: tl.constexpr,
    N: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    expert, c = tl.program_id(1), _first_channel(C, N) + tl.arange(0, N)
    _, place, inside = _block(0, pixels, expert, c, EXPERTS, C, BLOCK)
    behind, output = _loaded(dz, y, place, inside)
    mean, rstd = tl.load(stats + 2 * expert * C + c), tl.load(stats + (2 * expert + 1) * C + c)
    first = _total(sums, expert, 0, programs, c, PROGRAMS, C)
    second = _total(sums, expert, 1, programs, c, PROGRAMS, C)
    channel = expert * C + c
    if tl.program_id(0) == 0:
        tl.store(dgamma + channel, second)
        tl.store(dbeta + channel, first)
    scale = tl.load(gamma + channel) * rstd
    slope = scale * rstd * second / pixels
    shift = mean * slope - scale * first / pixels
    for turn in range(TURNS):
        ahead, output_ahead = behind, output
        if TURNS > 1:
            _, place, inside = _block(turn + 1, pixels, expert, c, EXPERTS, C, BLOCK)
            ahead, output_ahead = _loaded(dz, y, place, inside)
        value = behind.to(tl.float32) * scale[None, :] + shift[None, :]
        value -= output.to(tl.float32) * slope[None, :]
        _, place, inside = _block(turn, pixels, expert, c, EXPERTS, C, BLOCK)
        tl.store(dy + place, value.to(dy.dtype.element_ty), mask=inside)
        behind, output = ahead, output_ahead


@triton.jit(do_not_specialize=["images"])
def input_gradient(
    dy, weight, residual, activation, y, stats, dz, sums, images,
    H: tl.constexpr, W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, STRIDE: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, EXPERTS: tl.constexpr, SHARED: tl.constexpr,
    RESIDUAL: tl.constexpr, BEFORE: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Of stride 1, of one group for each expert."""
    tl.static_assert(STRIDE == 1 and not SHARED)
    expert, start = tl.program_id(1), _first_channel(CI, N)
    k, n = tl.arange(0, K), tl.arange(0, N)
    i = start + n
    mean, rstd = tl.load(stats + 2 * expert * CI + i), tl.load(stats + (2 * expert + 1) * CI + i)
    first = tl.zeros([N], tl.float32)
    second = tl.zeros([N], tl.float32)
    for turn in range(TURNS):
        m = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
        image, row, column = m // (H * W), m % (H * W) // W, m % W
        inside = (image < images)[:, None] & (i < CI)[None, :]
        pixel = m[:, None] * EXPERTS + expert
        active, output = _loaded(activation, y, pixel * CI + i[None, :], inside)
        own = active
        if RESIDUAL:
            own = tl.load(residual + pixel * CO + BEFORE + i[None, :], mask=inside, other=0.0)
        total = tl.zeros([BLOCK, N], tl.float32)
        for step in range(9 * (CO // K)):
            part, seen = _split(step, 9, K, CO)
            a = _flown(dy, part, expert, image, row, column, images, seen + k, OUT_H, OUT_W, STRIDE, CO, EXPERTS)
            b = _seeing(weight, part, expert, seen + k, n, n, i, STRIDE, CI, CO)
            total = tl.dot(a, b, total, input_precision="ieee")
        if RESIDUAL:
            total += own.to(tl.float32)
        value = tl.where(active > 0, total, 0.0).to(dz.dtype.element_ty)
        tl.store(dz + pixel * CI + i[None, :], value, mask=inside)
        rounded, normal = value.to(tl.float32), (output.to(tl.float32) - mean[None, :]) * rstd[None, :]
        first += tl.sum(rounded, 0)
        second += tl.sum(rounded * normal, 0)
    _write_sums(sums, expert, first, second, start, CI, N)


@triton.jit
def _meeting(
    dy, x, turn, images, line, expert, group, beside, right, i, o,
    H: tl.constexpr, W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, STRIDE: tl.constexpr,
    CO: tl.constexpr, EXPERTS: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The factors of a turn's product in `weight_gradient`."""
    wide: tl.constexpr = (OUT_W + TILE - 1) // TILE
    m = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    image, row, column = m // (OUT_H * wide), m % (OUT_H * wide) // wide, m % wide * TILE
    c = column[None, :] + right[:, None]
    inside = (image < images)[None, :] & (c < OUT_W)
    source = (((image * OUT_H + row)[None, :] * OUT_W + c) * EXPERTS + expert) * CO + o[:, None]
    a = tl.load(dy + source, mask=inside, other=0.0)
    r, c = row * STRIDE + line - 1, column[:, None] * STRIDE + beside[None, :] - 1
    met = (beside < TILE + 2)[None, :]
    inside = ((image < images) & (r >= 0) & (r < H))[:, None] & (c >= 0) & (c < W) & met
    source = ((image * H + r)[:, None] * W + c) * CHANNELS + group * (CHANNELS // EXPERTS) + i[None, :]
    return a, tl.load(x + source, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["images"])
def weight_gradient(
    dy, x, partial, images,
    H: tl.constexpr, W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, STRIDE: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, EXPERTS: tl.constexpr, SHARED: tl.constexpr,
    TILE: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Of all input and output channels at once."""
    tl.static_assert((TILE + 2) * CI <= K)
    line, expert = tl.program_id(1), tl.program_id(2)
    channels: tl.constexpr = CI if SHARED else CI * EXPERTS
    group = 0 if SHARED else expert
    k, n = tl.arange(0, K), tl.arange(0, TILE * N)
    beside, i, right, o = k // CI, k % CI, n // N, n % N
    total = tl.zeros([TILE * N, K], tl.float32)
    a, b = _meeting(
        dy, x, 0, images, line, expert, group, beside, right, i, o,
        H, W, OUT_H, OUT_W, STRIDE, CO, EXPERTS, channels, TILE, BLOCK,
    )  # fmt: skip
    for turn in range(TURNS):
        a_ahead, b_ahead = _meeting(
            dy, x, turn + 1, images, line, expert, group, beside, right, i, o,
            H, W, OUT_H, OUT_W, STRIDE, CO, EXPERTS, channels, TILE, BLOCK,
        )  # fmt: skip
        total = tl.dot(a, b.to(dy.dtype.element_ty), total, input_precision="ieee")
        a, b = a_ahead, b_ahead
    kx = beside[None, :] - right[:, None]
    place = (((tl.program_id(0) * TILE + right) * EXPERTS + expert) * CO + o)[:, None]
    place = ((place * 3 + line) * 3 + kx) * CI + i[None, :]
    tl.store(partial + place, total, mask=(kx >= 0) & (kx < 3) & (beside < TILE + 2)[None, :])


@triton.jit(do_not_specialize=["images"])
def weight_rows(
    dy, x, partial, images,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, EXPERTS: tl.constexpr, SHARED: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(2)
    channels: tl.constexpr = CI if SHARED else CI * EXPERTS
    group = 0 if SHARED else expert
    k, n = tl.arange(0, K), tl.arange(0, TILE * CO)
    right, o = n // CO, n % CO
    upper = tl.zeros([TILE * CO, K], tl.float32)
    middle = tl.zeros([TILE * CO, K], tl.float32)
    lower = tl.zeros([TILE * CO, K], tl.float32)
    for turn in range(TURNS):
        image, top, column = _tiles(turn, H, W, TILE, ROWS, BLOCK)
        above = tl.zeros([TILE * CO, BLOCK], dy.dtype.element_ty)
        here = tl.zeros([TILE * CO, BLOCK], dy.dtype.element_ty)
        seen = _seen(x, image, top - 1, column, images, group, k, H, W, CI, channels, TILE)
        below = _row_flown(dy, image, top, column, images, expert, right, o, H, W, CO, EXPERTS)
        for line in range(ROWS + 2):
            row = top + line
            limit = tl.where(line < ROWS + 1, images, 0)
            seen_ahead = _seen(x, image, row, column, limit, group, k, H, W, CI, channels, TILE)
            limit = tl.where(line < ROWS - 1, images, 0)
            below_ahead = _row_flown(dy, image, row + 1, column, limit, expert, right, o, H, W, CO, EXPERTS)
            seen = seen.to(dy.dtype.element_ty)
            upper = tl.dot(below, seen, upper, input_precision="ieee")
            middle = tl.dot(here, seen, middle, input_precision="ieee")
            lower = tl.dot(above, seen, lower, input_precision="ieee")
            above, here = here, below
            seen, below = seen_ahead, below_ahead
    _store_taps(upper, partial, 0, expert, right, o, k, CI, CO, EXPERTS, TILE)
    _store_taps(middle, partial, 1, expert, right, o, k, CI, CO, EXPERTS, TILE)
    _store_taps(lower, partial, 2, expert, right, o, k, CI, CO, EXPERTS, TILE)


class _Chosen:
    """A kernel of which some launches are another's."""

    def __init__(self, present: Any, other: Any, channels: set[int]) -> None:
        self.present, self.other, self.channels = present, other, channels

    def _of(self, settings: dict[str, Any]) -> Any:
        plain = settings["STRIDE"] == 1 and not settings["SHARED"] if self.other is input_gradient else True
        key = {input_gradient: "CI", norm_forward: "C", norm_backward: "C"}.get(self.other, "CO")
        return self.other if plain and settings[key] in self.channels else self.present

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return lambda *arguments, **settings: self._of(settings)[grid](*arguments, **settings)

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **settings: Any) -> Any:
        return self._of(settings).warmup(*arguments, grid=grid, **settings)


KERNELS = {
    "elementwise": (norm_forward, norm_backward),
    "backward": (input_gradient,),
    "weights": (weight_gradient, weight_rows),
}
"""By the field of `Launches` that says how they are launched."""


@contextmanager
def early(field: str, channels: set[int]) -> Iterator[None]:
    """Let the kernels of a field load early in layers of so many channels."""
    kernels: Any = forward._kernels()
    names = {each.__name__: each for each in KERNELS[field]}
    before = {name: getattr(kernels, name) for name in names}
    for name, each in names.items():
        setattr(kernels, name, _Chosen(before[name], each, channels))
    try:
        yield
    finally:
        for name, each in before.items():
            setattr(kernels, name, each)
