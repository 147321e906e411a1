"""Convolutions of stride 1 whose programs walk down the rows of images: each row is read once, for three rows of taps.

They do what `conv_forward` and `weight_gradient` of `kernels.py` do, with the same arguments, for few channels and
large images, where these wait for memory. (Gradients of inputs were slower so: docs/performance.md.) A row of a product
is a tile: TILE output pixels beside each other. They meet all input pixels of a row that they see, TILE + 2, which K
holds with their channels. A program takes BLOCK tiles at a time, of ROWS rows each.

Weights are loaded once, and lie in shared memory. Of a convolution three rows of the output are summed at the same
time. Their sums change places with each line, and are back after three: so the lines are written out by threes, for the
compiler makes tensor cores wait for each product when it has to move sums between registers.
"""

import triton
import triton.language as tl

from balpoe.networks.fused.kernels import _write_sums

__all__ = ["conv_rows", "weight_rows"]


@triton.jit
def _tiles(turn, H: tl.constexpr, W: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The image, first row and first column of each tile of a turn."""
    wide: tl.constexpr = (W + TILE - 1) // TILE
    bands: tl.constexpr = (H + ROWS - 1) // ROWS
    m = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    return m // (bands * wide), m % (bands * wide) // wide * ROWS, m % wide * TILE


@triton.jit
def _seen(
    x, image, row, column, images, group, k,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """What tiles see of one row of the input: BLOCK by K, zeros outside of the image."""
    beside = k // CI
    c = column[:, None] + beside[None, :] - 1
    inside = ((image < images) & (row >= 0) & (row < H))[:, None] & (c >= 0) & (c < W) & (beside < TILE + 2)[None, :]
    place = ((image * H + row)[:, None] * W + c) * CHANNELS + group * CI + (k % CI)[None, :]
    return tl.load(x + place, mask=inside, other=0.0)


@triton.jit
def _taps_of_row(weight, expert, row: tl.constexpr, k, n, CI: tl.constexpr, CO: tl.constexpr):
    """The weights by which the pixels of a row, in K, are seen by tiles that lie `row` - 1 rows above them.

    Of input pixel j and output pixel `right` it is tap j - right; where they do not meet, it is zero.
    """
    i, o = (k % CI)[:, None], (n % CO)[None, :]
    kx = (k // CI)[:, None] - (n // CO)[None, :]
    met = (kx >= 0) & (kx < 3)
    return tl.load(weight + ((expert * CO + o) * 9 + row * 3 + kx) * CI + i, mask=met, other=0.0)


@triton.jit(do_not_specialize=["pixels"])
def conv_rows(
    x, weight, y, sums, pixels,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, EXPERTS: tl.constexpr, SHARED: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """A 3 x 3 convolution of stride 1, and the sums of its outputs and of their squares."""
    tl.static_assert((ROWS + 2) % 3 == 0)
    expert = tl.program_id(1)
    channels: tl.constexpr = CI if SHARED else CI * EXPERTS
    group = 0 if SHARED else expert
    images = pixels // (H * W)
    k, n = tl.arange(0, K), tl.arange(0, TILE * CO)
    right, o = n // CO, n % CO
    upper = _taps_of_row(weight, expert, 0, k, n, CI, CO)
    middle = _taps_of_row(weight, expert, 1, k, n, CI, CO)
    lower = _taps_of_row(weight, expert, 2, k, n, CI, CO)
    first = tl.zeros([BLOCK, TILE * CO], tl.float32)
    second = tl.zeros([BLOCK, TILE * CO], tl.float32)
    for turn in range(TURNS):
        image, top, column = _tiles(turn, H, W, TILE, ROWS, BLOCK)
        c = column[:, None] + right[None, :]
        above = tl.zeros([BLOCK, TILE * CO], tl.float32)  # the output's row above the one that is read, so far
        here = tl.zeros([BLOCK, TILE * CO], tl.float32)
        a = _seen(x, image, top - 1, column, images, group, k, H, W, CI, channels, TILE)
        for three in range((ROWS + 2) // 3):
            for one in tl.static_range(3):
                line = 3 * three + one
                row = top + line - 1
                # The next row is on its way while this one is multiplied.
                limit = tl.where(line < ROWS + 1, images, 0)
                ahead = _seen(x, image, row + 1, column, limit, group, k, H, W, CI, channels, TILE)
                total = tl.dot(a, lower, above, input_precision="ieee")
                above = tl.dot(a, middle, here, input_precision="ieee")
                here = tl.dot(a, upper, input_precision="ieee")
                value = total.to(y.dtype.element_ty)
                inside = ((image < images) & (line >= 2) & (row <= H))[:, None] & (c < W)
                place = (((image * H + row - 1)[:, None] * W + c) * EXPERTS + expert) * CO + o[None, :]
                tl.store(y + place, value, mask=inside)
                rounded = tl.where(inside, value.to(tl.float32), 0.0)
                first += rounded
                second += rounded * rounded
                a = ahead
    _write_sums(sums, expert, tl.sum(first, 0), tl.sum(second, 0), 0, CO, CO)


@triton.jit
def _flown(
    dy, image, row, column, images, expert, right, o,
    H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """The gradients of one row of tiles: TILE * CO by BLOCK."""
    c = column[None, :] + right[:, None]
    inside = ((image < images) & (row < H))[None, :] & (c < W)
    place = (((image * H + row)[None, :] * W + c) * EXPERTS + expert) * CO + o[:, None]
    return tl.load(dy + place, mask=inside, other=0.0)


@triton.jit
def _store_taps(
    total, partial, line: tl.constexpr, expert, right, o, k,
    CI: tl.constexpr, CO: tl.constexpr, EXPERTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write a program's part of the gradient of three taps in a row; each output pixel has a part of its own."""
    kx = (k // CI)[None, :] - right[:, None]
    place = (((tl.program_id(0) * TILE + right) * EXPERTS + expert) * CO + o)[:, None]
    place = ((place * 3 + line) * 3 + kx) * CI + (k % CI)[None, :]
    tl.store(partial + place, total, mask=(kx >= 0) & (kx < 3))


@triton.jit(do_not_specialize=["images"])
def weight_rows(
    dy, x, partial, images,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, EXPERTS: tl.constexpr, SHARED: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Each program's part of the gradient of one expert's nine taps, of stride 1."""
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
        for line in range(ROWS + 2):
            row = top + line - 1
            seen = _seen(x, image, row, column, images, group, k, H, W, CI, channels, TILE).to(dy.dtype.element_ty)
            # The row of the output below; that of the next band is another tile's.
            limit = tl.where(line < ROWS, images, 0)
            below = _flown(dy, image, row + 1, column, limit, expert, right, o, H, W, CO, EXPERTS)
            upper = tl.dot(below, seen, upper, input_precision="ieee")
            middle = tl.dot(here, seen, middle, input_precision="ieee")
            lower = tl.dot(above, seen, lower, input_precision="ieee")
            above, here = here, below
    _store_taps(upper, partial, 0, expert, right, o, k, CI, CO, EXPERTS, TILE)
    _store_taps(middle, partial, 1, expert, right, o, k, CI, CO, EXPERTS, TILE)
    _store_taps(lower, partial, 2, expert, right, o, k, CI, CO, EXPERTS, TILE)
