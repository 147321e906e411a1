"""How the kernels of `kernels.py` are launched: the layers of a `resnet32`, their sizes, programs and constants."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from balpoe.networks.experts import ExpertNetwork
from balpoe.networks.resnet_cifar import Block

__all__ = ["WIDTHS", "LaunchPlan", "Layer", "Sizes", "layers_of", "power"]

WIDTHS = (16, 32, 64)
SUMMED, SUMMED_AT_ONCE = 256, 16  # numbers of a gradient that a program sums, and so many parts of each at a time


class Launch(NamedTuple):
    """Sizes of a launch that were found by measuring."""

    block: int
    """Rows that a program takes at a time."""
    programs: int
    """About how many there are in all."""
    warps: int = 4
    stages: int = 1
    """Blocks of rows on their way from memory."""


# By channels, what was fast on an H200, alone and beside others. Several stages with two warps only: four or more make
# products of 64 rows with tensor cores that read shared memory by themselves, and Triton 3.6 puts no fence between them
# and copies that run ahead.
FORWARD = {16: Launch(256, 528), 32: Launch(256, 528), 64: Launch(64, 528, 2, 3)}
BACKWARD = {16: Launch(128, 528, 2, 3), 32: Launch(128, 528, 2, 3), 64: Launch(64, 528, 2, 3)}
BACKWARD_STRIDED = {16: Launch(128, 264), 32: Launch(128, 528), 64: Launch(32, 528)}
WEIGHTS = {16: Launch(64, 132, 2, 3), 32: Launch(128, 264), 64: Launch(128, 132)}
ELEMENTWISE = {16: Launch(1024, 528), 32: Launch(256, 528), 64: Launch(256, 528)}


class Layer(NamedTuple):
    """A convolution with its normalisation; `shortcut` is the block whose input is added behind them."""

    conv: Any
    norm: Any
    experts: int
    stride: int = 1
    shared: bool = False
    shortcut: Block | None = None

    @property
    def channels(self) -> int:
        """Channels of one expert's output."""
        return len(self.conv.weight) // self.experts

    @property
    def in_channels(self) -> int:
        """Channels of one expert's input."""
        return int(self.conv.weight.shape[1])

    def parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, scales and shifts."""
        return self.conv.weight, self.norm.weight, self.norm.bias


def layers_of(network: ExpertNetwork) -> Iterator[Layer]:
    """Return the layers of a `resnet32`, from the stem on."""
    assert isinstance(network.trunk, nn.Sequential)
    stem: Any = network.trunk[0]
    yield Layer(stem.conv, stem.norm.norm, 1)
    for block in (*list(network.trunk)[1:], *network.branches):
        assert isinstance(block, Block)
        yield Layer(block.conv1, block.norm1.norm, block.num_experts, block.stride, block.shared_input)
        yield Layer(block.conv2, block.norm2.norm, block.num_experts, shortcut=block)


class LaunchPlan:
    """The launches for batches of one shape: the sizes of each layer, and where partial sums of gradients lie."""

    def __init__(self, layers: list[Layer], images: Tensor) -> None:
        number, _, height, width = images.shape
        self.sizes: list[Sizes] = []
        rows: list[tuple[int, ...]] = []
        source = place = 0
        for layer in layers:
            size = Sizes(layer, number, height, width)
            height, width = size.out_height, size.out_width
            self.sizes.append(size)
            numbers = layer.conv.weight.numel()
            rows += [
                (source + start, numbers, size.parts, place + start, min(SUMMED, numbers - start))
                for start in range(0, numbers, SUMMED)
            ]
            source, place = source + numbers * size.parts, place + numbers
        self.table = torch.tensor(rows, device=images.device)
        """For each program of `sum_partials`: its parts' start, distance and number, its sum's place and length."""
        turns = -(-max(size.parts for size in self.sizes) // SUMMED_AT_ONCE)
        self.sum_settings = {"BLOCK": SUMMED, "ROWS": SUMMED_AT_ONCE, "TURNS": turns}


class Sizes:
    """One layer, for images of one shape: the grid of each of its kernels, and their constants."""

    def __init__(self, layer: Layer, images: int, height: int, width: int) -> None:
        stride, channels, in_channels, experts = layer.stride, layer.channels, layer.in_channels, layer.experts
        self.images, self.out_height, self.out_width = images, (height - 1) // stride + 1, (width - 1) // stride + 1
        self.pixels, self.groups = images * self.out_height * self.out_width, 1 if layer.shared else experts
        if max(images * height * width * self.groups * in_channels, self.pixels * experts * channels) >= 2**31:
            raise ValueError("a layer makes more numbers of a batch than the kernels can count, 2 ** 31")
        conv = {
            "H": height, "W": width, "OUT_H": self.out_height, "OUT_W": self.out_width, "STRIDE": stride,
            "CI": in_channels, "CO": channels, "EXPERTS": experts, "SHARED": layer.shared,
        }  # fmt: skip
        k = max(in_channels, min(WIDTHS))
        self.forward = Grid.of(self.pixels, FORWARD[channels], experts, {**conv, "K": k})
        if in_channels in WIDTHS:  # not those of images, which have no gradient
            launch = (BACKWARD if stride == 1 else BACKWARD_STRIDED)[in_channels]
            self.backward = Grid.of(images * -(-height // stride) * -(-width // stride), launch, self.groups, conv)
        tile = 2 if stride == 1 and channels < 64 else 1
        rows, k = images * self.out_height * -(-self.out_width // tile), power((tile + 2) * in_channels)
        self.weights = Grid.of(rows, WEIGHTS[channels], 3 * experts, {**conv, "TILE": tile, "K": k})
        self.parts = tile * self.weights.programs
        channelwise = {"C": channels, "EXPERTS": experts}
        self.elementwise = Grid.of(self.pixels, ELEMENTWISE[channels], experts, channelwise)
        self.shortcut = {key: conv[key] for key in ("STRIDE", "H", "W", "CI", "SHARED")}


class Grid(NamedTuple):
    """How rows are split among a kernel's programs, a block to each in turn, and all of its constants."""

    programs: int
    settings: dict[str, int]

    @classmethod
    def of(cls, rows: int, launch: Launch, others: int, settings: dict[str, int]) -> "Grid":
        """About as many programs in all as wanted, with so many others for each, and equally many blocks for each.

        >>> Grid.of(8192, Launch(block=64, programs=132), others=9, settings={})
        Grid(programs=15, settings={'BLOCK': 64, 'TURNS': 9, 'num_warps': 4, 'num_stages': 1})
        """
        blocks = -(-rows // launch.block)
        turns = -(-blocks * others // launch.programs)
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        return cls(-(-blocks // turns), {**settings, "BLOCK": launch.block, "TURNS": turns, **options})


def power(number: int) -> int:
    """Return the power of two that is not below a number.

    >>> power(1), power(48), power(64)
    (1, 64, 64)
    """
    return 1 << (number - 1).bit_length()
