"""Convolutions that are launched directly, on an emulated GPU, against torch."""

import itertools
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from balpoe.networks.fused import nvrtc
from balpoe.networks.fused.direct import DIRECT_KERNELS, Direct, room_of
from cuda_on_cpu import ROOM_OF_H200, OnCpu
from scripts import script

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
FORWARD, NORM_FORWARD, GRADIENT, NORM_GRADIENT, WEIGHTS = DIRECT_KERNELS.values()

# Height, width, channels, experts, images; launches of convolutions and of the gradient of weights. Several bands of
# rows and turns; one image too few for the last tile.
LAYERS = [
    (8, 16, 16, 1, 3, Direct(64, programs=2, warps=2), Direct(64, programs=2, warps=6, shares=2)),
    (4, 16, 32, 2, 2, Direct(64, programs=4, warps=2), Direct(32, programs=4, warps=6)),
    (4, 4, 64, 2, 7, Direct(64, programs=2, warps=2), Direct(32, programs=4, warps=12)),
]


def calls(layer):
    """The grids and constants of a layer: forward, gradient without and with a shortcut, gradient of weights."""
    height, width, channels, experts, images, convolution, weights = layer
    grid, size = convolution.grid(images, height, width, channels, experts)
    yield FORWARD, grid, size
    yield GRADIENT, grid, {**size, "RESIDUAL": False}
    yield GRADIENT, grid, {**size, "RESIDUAL": True}
    yield WEIGHTS, *weights.grid(images, height, width, channels, experts)


def merged_calls(layer):
    """The same of those that compute a normalisation besides."""
    height, width, channels, experts, images, convolution, _ = layer
    grid, size = convolution.grid(images, height, width, channels, experts)
    for kernel, other in ((NORM_FORWARD, "SHORTCUT"), (NORM_GRADIENT, "RESIDUAL")):
        for value in (False, True):
            yield kernel, grid, {**size, other: value}


@pytest.fixture(scope="module")
def any_gpu(tmp_path_factory):
    return OnCpu(
        tmp_path_factory.mktemp("cuda"),
        {kernel.expression(size) for layer in LAYERS for kernel, _, size in (*calls(layer), *merged_calls(layer))},
    )


@pytest.fixture(params=[0, 1], ids=["copies are late", "copies are early"])
def gpu(any_gpu, request):
    any_gpu.library.let_copies_arrive_early(request.param)
    return any_gpu


def maps(pixels):
    """(images, height, width, experts, channels) as maps of all experts."""
    return pixels.float().permute(0, 3, 4, 1, 2).flatten(1, 2)


def pixels(maps, like):
    """The way back."""
    images, height, width, experts, channels = like.shape
    return maps.view(images, experts, channels, height, width).permute(0, 3, 4, 1, 2)


@needs_compiler
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer[2]} channels")
def test_kernels_give_the_numbers_of_torch(gpu, monkeypatch, layer):
    monkeypatch.setattr(nvrtc, "launch", gpu)
    height, width, channels, experts, images, *_ = layer
    shape = (images, height, width, experts, channels)
    torch.manual_seed(0)
    x, beside, under = (torch.randn(shape).bfloat16() for _ in range(3))
    passed = torch.randn(shape).relu().bfloat16()
    weight = (torch.randn(experts, channels, 9, channels) / (3 * channels**0.5)).bfloat16()
    kernel = weight.float().view(-1, 3, 3, channels).permute(0, 3, 1, 2)
    stats = torch.rand(experts, 2, channels) + 0.5
    for kernel_of, grid, size in calls(layer):
        y = torch.full(shape, torch.nan).bfloat16()
        sums = torch.full((experts, grid[0], 2, channels), torch.nan)
        if kernel_of is WEIGHTS:
            parts = torch.full((grid[0] * size["SHARES"], experts, channels, 9, channels), torch.nan)
            kernel_of[grid](x, beside, parts, images, **size)
            theirs = torch.nn.grad.conv2d_weight(maps(beside), kernel.shape, maps(x), padding=1, groups=experts)
            theirs = theirs.permute(0, 2, 3, 1).reshape(experts, channels, 9, channels)
            torch.testing.assert_close(parts.sum(0), theirs, rtol=1e-5, atol=1e-4)
            continue
        if kernel_of is FORWARD:
            kernel_of[grid](x, weight, y, sums, images * height * width, **size)
            theirs, factor = pixels(F.conv2d(maps(x), kernel, padding=1, groups=experts), x), y.float()
        else:
            kernel_of[grid](x, weight, beside, passed, under, stats, y, sums, images, **size, BEFORE=0)
            theirs = pixels(F.conv_transpose2d(maps(x), kernel, padding=1, groups=experts), x)
            theirs = torch.where(passed > 0, theirs + size["RESIDUAL"] * beside.float(), 0)
            factor = (under.float() - stats[:, 0]) * stats[:, 1]
        torch.testing.assert_close(y.float(), theirs, rtol=2**-8, atol=1e-5)  # as they are rounded
        for found, numbers in zip(sums.sum(1).unbind(1), (y.float(), y.float() * factor), strict=True):
            torch.testing.assert_close(found, numbers.sum((0, 1, 2)), rtol=1e-5, atol=1e-4)


def in_parts(*totals):
    """Sums of (experts, channels) as five programs might have written them: (experts, programs, sums, channels)."""
    totals = torch.stack(totals, 1)[:, None]
    others = torch.randn(len(totals), 4, *totals.shape[2:]) * totals.abs().mean()
    return torch.cat([others, totals - others.sum(1, keepdim=True)], 1)


@needs_compiler
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer[2]} channels")
def test_kernels_that_normalise_besides_give_the_numbers_of_torch(gpu, monkeypatch, layer):
    monkeypatch.setattr(nvrtc, "launch", gpu)
    height, width, channels, experts, images, *_ = layer
    shape, pixels_of_each = (images, height, width, experts, channels), images * height * width
    torch.manual_seed(0)
    x, beside, under, y, of_block = (torch.randn(shape).bfloat16() for _ in range(5))
    x = (2 * x + 1).bfloat16()
    passed = torch.randn(shape).relu().bfloat16()
    weight = (torch.randn(experts, channels, 9, channels) / (3 * channels**0.5)).bfloat16()
    kernel = weight.float().view(-1, 3, 3, channels).permute(0, 3, 1, 2)
    gamma, beta = torch.rand(experts, channels) + 0.5, torch.randn(experts, channels)
    stats, of_y = torch.rand(experts, 2, channels) + 0.5, torch.rand(experts, 2, channels) + 0.5
    normal = (y.float() - of_y[:, 0]) * of_y[:, 1]
    for kernel_of, grid, size in merged_calls(layer):
        made, out = (torch.full(shape, torch.nan).bfloat16() for _ in range(2))
        sums = torch.full((experts, grid[0], 2, channels), torch.nan)
        if kernel_of is NORM_FORWARD:
            found, mean, variance = torch.full((experts, 2, channels), torch.nan), *torch.rand(2, experts * channels)
            expected = mean.clone(), variance.clone()
            parts = in_parts(x.float().sum((0, 1, 2)), x.float().square().sum((0, 1, 2)))
            norm = (x, parts, gamma, beta, mean, variance, found, beside, made, pixels_of_each, 5, 0.1, 1e-5)
            kernel_of[grid](*norm, weight, out, sums, pixels_of_each, **size)
            theirs = F.batch_norm(maps(x), *expected, gamma.flatten(), beta.flatten(), training=True)
            theirs = (pixels(theirs, x) + size["SHORTCUT"] * beside.float()).relu()
            torch.testing.assert_close((mean, variance), expected, rtol=1e-4, atol=1e-5)
            deviation, average = torch.std_mean(x.float(), (0, 1, 2), correction=0)
            torch.testing.assert_close(found, torch.stack([average, 1 / deviation], 1), rtol=1e-4, atol=1e-4)
            behind, factor = pixels(F.conv2d(maps(made), kernel, padding=1, groups=experts), x), out.float()
        else:
            scales, shifts = torch.full((2, experts, channels), torch.nan)
            first, second = x.float().sum((0, 1, 2)), (x.float() * normal).sum((0, 1, 2))
            norm = (x, y, in_parts(first, second), of_y, gamma, made, scales, shifts, pixels_of_each, 5)
            flow = (weight, of_block, passed, under, stats, out, sums, images)
            kernel_of[grid](*norm, *flow, **size, BEFORE=0)
            theirs = gamma * of_y[:, 1] * (x.float() - first / pixels_of_each - normal * second / pixels_of_each)
            torch.testing.assert_close((scales, shifts), (second, first), rtol=1e-4, atol=1e-3)
            behind = pixels(F.conv_transpose2d(maps(made), kernel, padding=1, groups=experts), x)
            behind = torch.where(passed > 0, behind + size["RESIDUAL"] * of_block.float(), 0)
            factor = (under.float() - stats[:, 0]) * stats[:, 1]
        torch.testing.assert_close(made.float(), theirs, rtol=2**-7, atol=1e-4)
        torch.testing.assert_close(out.float(), behind, rtol=2**-8, atol=1e-5)
        for total, numbers in zip(sums.sum(1).unbind(1), (out.float(), out.float() * factor), strict=True):
            torch.testing.assert_close(total, numbers.sum((0, 1, 2)), rtol=1e-5, atol=1e-4)


SIDES = {16: 32, 32: 16, 64: 8}


@pytest.mark.parametrize("images", [128, 512])
@pytest.mark.parametrize("channels", SIDES)
def test_what_the_benchmark_launches_finds_room(channels, images):
    side = SIDES[channels]
    wanted = script("benchmarks/step_launches.py").DIRECT[channels]
    for kernels, ways in zip(((FORWARD, NORM_FORWARD), (GRADIENT, NORM_GRADIENT), (WEIGHTS,)), wanted, strict=True):
        for kernel, way in itertools.product(kernels, ways):
            (programs, _), size = way.grid(images, side, side, channels, 3)
            rows = way.pixels // side  # of a tile
            assert way._replace(merged=kernel is not WEIGHTS).fits(channels, side, side, of_weights=kernel is WEIGHTS)
            assert kernel.shared_memory(size) <= ROOM_OF_H200
            assert 0 <= programs * size["TURNS"] * rows - images * side < size["TURNS"] * rows  # all, and each has some


@pytest.mark.parametrize(
    ("device", "dtype", "room", "can_launch", "found"),
    [
        ("cuda:0", torch.bfloat16, ROOM_OF_H200, True, ROOM_OF_H200),
        ("cuda:0", torch.float16, ROOM_OF_H200, True, 0),
        ("cuda:0", torch.bfloat16, ROOM_OF_H200, False, 0),
        ("cuda:0", torch.bfloat16, None, True, 0),  # AMD's
        ("cpu", torch.bfloat16, ROOM_OF_H200, True, 0),
    ],
)
def test_where_kernels_are_launched_directly(monkeypatch, device, dtype, room, can_launch, found):
    properties = SimpleNamespace() if room is None else SimpleNamespace(shared_memory_per_block_optin=room)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(nvrtc, "can_launch", lambda device, shared_memory: can_launch and shared_memory == room)
    assert room_of.__wrapped__(torch.device(device), dtype) == found


@needs_compiler
def test_what_is_not_a_number_stays_none(gpu, monkeypatch):
    """Through a rectifier, and as a variance; a variance that rounding has made negative is none."""
    monkeypatch.setattr(nvrtc, "launch", gpu)
    height, width, channels, experts, images, way, _ = LAYERS[0]
    grid, size = way.grid(images, height, width, channels, experts)
    shape, pixels_of_all = (images, height, width, experts, channels), images * height * width
    x, none = torch.zeros(shape).bfloat16(), torch.full(shape, torch.nan).bfloat16()
    x[1, 2, 3] = torch.nan
    sums = torch.zeros(experts, 1, 2, channels)
    sums[:, :, 1, 1], sums[:, :, :, 2] = -1.0, torch.nan
    made, out, weight = none.clone(), none.clone(), torch.zeros(experts, channels, 9, channels).bfloat16()
    found, behind = (
        torch.full((experts, 2, channels), torch.nan),
        torch.full((experts, grid[0], 2, channels), torch.nan),
    )
    moving, gamma = torch.zeros(2, experts * channels), torch.ones(experts, channels)
    norm = (x, sums, gamma, gamma - 1, *moving, found, x, made, pixels_of_all, 1, 0.1, 1e-4)
    NORM_FORWARD[grid](*norm, weight, out, behind, pixels_of_all, **size, SHORTCUT=False)
    assert torch.isnan(found[:, :, 2]).all()
    torch.testing.assert_close(found[:, 1, :2], torch.full((experts, 2), 100.0))
    expected = torch.zeros(shape, dtype=torch.bool)
    expected[1, 2, 3], expected[..., 2] = True, True
    assert torch.equal(made.isnan(), expected)
