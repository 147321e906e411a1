"""Convolutions that are launched directly, on an emulated GPU, against torch."""

import itertools
import shutil

import pytest
import torch
from torch.nn import functional as F

from balpoe.networks.fused import nvrtc
from balpoe.networks.fused.direct import DIRECT_KERNELS, Direct
from cuda_on_cpu import OnCpu
from scripts import script

needs_nvrtc = pytest.mark.skipif(not nvrtc.is_present(), reason="needs the NVRTC of a torch for GPUs")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
FORWARD, GRADIENT, WEIGHTS = DIRECT_KERNELS.values()

# Height, width, channels, experts, images; launches of convolutions and of the gradient of weights. Several bands of
# rows and turns; one image too few for the last tile; a program without a tile.
LAYERS = [
    (8, 16, 16, 1, 3, Direct(rows=4, programs=2, warps=2), Direct(rows=4, programs=3, warps=6, shares=2)),
    (4, 16, 32, 2, 2, Direct(rows=4, programs=4, warps=2), Direct(rows=2, programs=4, warps=6, shares=1)),
    (4, 4, 64, 2, 3, Direct(4, 2, warps=1, images=2), Direct(4, 4, warps=12, images=2, shares=1)),
]


def calls(layer):
    """The grids and constants of a layer: forward, gradient without and with a shortcut, gradient of weights."""
    height, width, channels, experts, images, convolution, weights = layer
    grid, size = convolution.grid(images, height, width, channels, experts)
    yield FORWARD, grid, size
    yield GRADIENT, grid, {**size, "RESIDUAL": False}
    yield GRADIENT, grid, {**size, "RESIDUAL": True}
    yield WEIGHTS, *weights.grid(images, height, width, channels, experts)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    return OnCpu(
        tmp_path_factory.mktemp("cuda"),
        {kernel.expression(size) for layer in LAYERS for kernel, _, size in calls(layer)},
    )


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


HOPPER, SHARED_MEMORY = (9, 0), 227 * 1024
SIDES = {16: 32, 32: 16, 64: 8}


@pytest.mark.parametrize("images", [128, 512])
@pytest.mark.parametrize("channels", SIDES)
def test_what_the_benchmark_launches_finds_room(channels, images):
    side = SIDES[channels]
    convolutions, gradients = script("benchmarks/step_launches.py").DIRECT[channels]
    for kernels, ways in (((FORWARD, GRADIENT), convolutions), ((WEIGHTS,), gradients)):
        for kernel, way in itertools.product(kernels, (Direct(*way) for way in ways)):
            (programs, _), size = way.grid(images, side, side, channels, 3)
            rows = way.images * way.rows  # of a tile
            assert way.fits(channels, side, side, way.shares if kernel is WEIGHTS else way.warps)
            assert kernel.shared_memory(size) <= SHARED_MEMORY
            assert 0 <= programs * size["TURNS"] * rows - images * side < size["TURNS"] * rows  # all, and each has some


@needs_nvrtc
def test_kernels_are_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path))
    nvrtc.compiled.cache_clear()
    try:
        name, code = nvrtc.compiled("conv_forward<16, 32, 32, 1, 8, 1, 4>", HOPPER)
        assert b"conv_forward" in name
        assert name in code
        assert code.startswith(b"\x7fELF")
        nvrtc.compiled.cache_clear()
        monkeypatch.setattr(nvrtc, "_compile", None)
        assert nvrtc.compiled("conv_forward<16, 32, 32, 1, 8, 1, 4>", HOPPER) == (name, code)
    finally:
        nvrtc.compiled.cache_clear()


@needs_nvrtc
def test_what_cannot_be_compiled_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path))
    with pytest.raises(RuntimeError, match="whole products"):
        nvrtc.compiled("conv_forward<16, 32, 32, 1, 8, 1, 5>", HOPPER)
    assert not list(tmp_path.rglob("*"))
