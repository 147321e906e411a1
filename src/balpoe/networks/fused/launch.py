"""How the kernels are launched: the layers of a `resnet32`, their sizes, programs and constants."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from balpoe.networks.experts import ExpertNetwork
from balpoe.networks.fused.direct import DIRECT_KERNELS, SHARED_MEMORY, Direct
from balpoe.networks.resnet_cifar import Block

__all__ = ["FASTEST_WIDTHS", "MANY_IMAGES", "WIDTHS", "Launch", "LaunchPlan", "Layer", "Sizes", "launches_of",
           "layers_of", "power"]  # fmt: skip

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
    columns: int = 0
    """Channels of its output that a program takes; 0 for all."""
    depth: int = 0
    """Channels that it sums over at a time (those of inputs, in the gradient of weights); 0 for all."""
    rows: int = 0
    """Rows of images that it walks down, if it is one of `row_kernels.py`; a convolution wants 1, 4, 7, ..."""
    tile: int = 2
    """Pixels that it then takes side by side."""
    kept: bool = False
    """Whether its weights stay in shared memory, if it is a convolution."""
    ahead: bool = False
    """Whether it loads a turn's factors before the product of the turn before, if it is a gradient of weights."""

    def taken(self, columns: int, depth: int) -> tuple[int, int]:
        """Return N and K of a kernel, of so many channels and so many that are summed over.

        >>> Launch(64, 528).taken(64, 16), Launch(64, 528, columns=128, depth=64).taken(256, 256)
        ((64, 16), (128, 64))
        """
        return min(self.columns or columns, columns), min(self.depth or depth, depth)

    def weights_taken(self, stride: int, channels: int, in_channels: int) -> tuple[int, int, int, int]:
        """Return TILE, N and K of `weight_gradient`, and its programs for each expert and block of rows.

        One for each of three lines of the kernel; of many channels one for each tap, and for N by K of its weights.
        """
        if self.depth and in_channels in LAUNCHES:
            n, k = self.taken(channels, in_channels)
            return 1, n, k, 9 * (channels // n) * (in_channels // k)
        tile = 2 if stride == 1 and channels < 64 else 1
        return tile, channels, power((tile + 2) * in_channels), 3


class Launches(NamedTuple):
    """One for each kernel, for layers of so many channels: of the output, in gradients of inputs those of the input."""

    forward: Launch
    backward: Launch
    backward_strided: Launch
    weights: Launch
    elementwise: Launch
    forward_rows: Launch | None = None
    """In the place of `forward`, where the stride is 1 and the input is not the images."""
    weight_rows: Launch | None = None
    """The same, in the place of `weights`."""
    direct_forward: Direct | None = None
    """In the place of `forward`, where it fits; none is timed yet, and so none is launched."""
    direct_backward: Direct | None = None
    """The same, in the place of `backward`."""
    direct_weights: Direct | None = None
    """The same, in the place of `weights`."""


# By channels, what was fast on an H200, alone and beside others. Of 128 and 256 channels, and of gradients of strided
# inputs, what leaves room for two programs on a processor, with hardly a spill of registers; chosen without measuring.
# Several stages with two warps only: four or more make products of 64 rows with tensor cores that read shared memory by
# themselves, and Triton 3.6 puts no fence between them and copies that run ahead.
MANY_CHANNELS = Launches(
    forward=Launch(128, 264, warps=8, columns=64, depth=64),
    backward=Launch(128, 264, warps=8, columns=64, depth=64),
    backward_strided=Launch(64, 528, columns=16, depth=64),
    weights=Launch(64, 264, warps=8, columns=128, depth=128),
    elementwise=Launch(256, 264, warps=8, columns=64),
)
LAUNCHES = {
    16: Launches(
        forward=Launch(256, 528),
        backward=Launch(128, 528, warps=2, stages=3),
        backward_strided=Launch(128, 264),
        weights=Launch(64, 132, warps=2, stages=3),
        elementwise=Launch(1024, 528),
        forward_rows=Launch(64, 528, rows=4),
        weight_rows=Launch(64, 264, rows=4),
    ),
    32: Launches(
        forward=Launch(256, 528),
        backward=Launch(128, 528, warps=2, stages=3),
        backward_strided=Launch(128, 528, warps=8),
        weights=Launch(64, 264, warps=8),
        elementwise=Launch(256, 528),
    ),
    64: Launches(
        forward=Launch(64, 528, warps=2, stages=3),
        backward=Launch(64, 528, warps=2, stages=3),
        backward_strided=Launch(64, 528, columns=16, depth=64),
        weights=Launch(128, 132),
        elementwise=Launch(256, 528),
    ),
    128: MANY_CHANNELS,
    256: MANY_CHANNELS,
}
WIDTHS = tuple(LAUNCHES)

MANY_IMAGES = 256
"""From so many images a batch on, launches that were fast with 512 of them replace those that were with 128."""
LAUNCHES_OF_MANY_IMAGES: dict[int, dict[str, Any]] = {
    16: {"weight_rows": Launch(64, 264, rows=16), "forward_rows": Launch(64, 528, rows=16)},
    32: {"forward": Launch(64, 528, kept=True), "weights": Launch(64, 264, warps=8, ahead=True)},
    64: {"weights": Launch(64, 528, warps=2, stages=3, columns=64, depth=64)},
}

FASTEST_WIDTHS = tuple(width for width in WIDTHS if width <= 128)
"""Those whose steps were faster with these kernels than with torch's: of 64, 128 and 256 channels torch's are ahead."""


def launches_of(channels: int, images: int) -> Launches | None:
    """Return how the kernels of layers of so many channels are launched, if there are any.

    >>> [launches_of(16, images).weight_rows.rows for images in (128, 512)], launches_of(3, images=128)
    ([4, 16], None)
    """
    launches = LAUNCHES.get(channels)
    if launches is None or images < MANY_IMAGES:
        return launches
    return launches._replace(**LAUNCHES_OF_MANY_IMAGES.get(channels, {}))


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
    """The launches for batches of one shape: the sizes of each layer, and where partial sums of gradients lie.

    Args:
        layers: Layers of the network.
        images: Batch of that shape.
        direct: Whether kernels of `direct_kernels.cu` can be launched.
    """

    def __init__(self, layers: list[Layer], images: Tensor, direct: bool = False) -> None:
        number, _, height, width = images.shape
        self.sizes: list[Sizes] = []
        rows: dict[int, list[tuple[int, ...]]] = {}
        source = place = first = 0
        for index, layer in enumerate(layers):
            own = direct and index > 0  # images are of another type
            size = Sizes(layer, number, height, width, own, mergeable=_is_plain_in_front(layers, index))
            height, width = size.out_height, size.out_width
            self.sizes.append(size)
            numbers = layer.conv.weight.numel()
            first = index if layer.stride > 1 else first
            rows.setdefault(first, []).extend(
                (source + start, numbers, size.parts, place + start, min(SUMMED, numbers - start))
                for start in range(0, numbers, SUMMED)
            )
            source, place = source + numbers * size.parts, place + numbers
        self.tables = {first: torch.tensor(table, device=images.device) for first, table in rows.items()}
        """For each program of `sum_partials`: its parts' start, distance and number, its sum's place and length.

        By stages, each under the number of its first layer, which is the last whose parts are computed.
        """
        self.sum_settings = {
            first: {
                "BLOCK": SUMMED,
                "ROWS": SUMMED_AT_ONCE,
                "TURNS": -(-max(row[2] for row in table) // SUMMED_AT_ONCE),
            }
            for first, table in rows.items()
        }


def _is_plain_in_front(layers: list[Layer], index: int) -> bool:
    """Whether a layer reads a normalisation without a shortcut, or with one that leaves all where it is."""
    if index == 0:
        return False
    if layers[index - 1].shortcut is None:
        return True
    first = layers[index - 2]  # of the block
    return first.stride == 1 and not first.shared and first.in_channels == first.channels


class Sizes:
    """One layer, for images of one shape: the grid of each of its kernels, and their constants.

    Where it is `mergeable`, a kernel that is launched directly can compute the normalisation in front of it.
    """

    def __init__(
        self, layer: Layer, images: int, height: int, width: int, direct: bool = False, mergeable: bool = False
    ) -> None:
        stride, channels, in_channels, experts = layer.stride, layer.channels, layer.in_channels, layer.experts
        self.images, self.out_height, self.out_width = images, (height - 1) // stride + 1, (width - 1) // stride + 1
        self.pixels, self.groups = images * self.out_height * self.out_width, 1 if layer.shared else experts
        if max(images * height * width * self.groups * in_channels, self.pixels * experts * channels) >= 2**31:
            raise ValueError("a layer makes more numbers of a batch than the kernels can count, 2 ** 31")
        whole = {"H": height, "W": width, "CI": in_channels, "CO": channels, "EXPERTS": experts, "SHARED": layer.shared}
        conv = {**whole, "OUT_H": self.out_height, "OUT_W": self.out_width, "STRIDE": stride}
        own, below = launches_of(channels, images), launches_of(in_channels, images)
        assert own is not None  # the network `can_be_fused`
        by_rows = stride == 1 and below is not None
        directly = _launched_directly(layer, images, height, width, mergeable) if direct else {}
        self.conv_kernel = "conv_rows" if by_rows and own.forward_rows else "conv_forward"
        if "direct_forward" in directly:
            self.conv_kernel, self.forward = directly["direct_forward"]
        elif by_rows and own.forward_rows:
            self.forward = Grid.by_rows(images, own.forward_rows, (experts,), whole, in_channels)
        else:
            n, k = own.forward.taken(channels, max(in_channels, min(WIDTHS)))
            settings = {**conv, "N": n, "K": k, "KEPT": own.forward.kept}
            self.forward = Grid.of(self.pixels, own.forward, (experts, channels // n), settings)
        self.gradient_kernel = "input_gradient"
        if "direct_backward" in directly:
            self.gradient_kernel, self.backward = directly["direct_backward"]
        elif below is not None:  # not those of images, which have no gradient
            launch = below.backward if stride == 1 else below.backward_strided
            rows = images * -(-height // stride) * -(-width // stride)
            n, k = launch.taken(in_channels, stride * channels)
            settings = {**conv, "N": n, "K": k}
            self.backward = Grid.of(rows, launch, (self.groups, in_channels // n), settings)
        self.weights_kernel = "weight_rows" if by_rows and own.weight_rows else "weight_gradient"
        if "direct_weights" in directly:
            self.weights_kernel, self.weights = directly["direct_weights"]
        elif by_rows and own.weight_rows:
            self.weights = Grid.by_rows(images, own.weight_rows, (1, experts), whole, in_channels)
        else:
            tile, n, k, lines = own.weights.weights_taken(stride, channels, in_channels)
            rows = images * self.out_height * -(-self.out_width // tile)
            settings = {**conv, "TILE": tile, "N": n, "K": k, "AHEAD": int(own.weights.ahead)}
            self.weights = Grid.of(rows, own.weights, (lines, experts), settings)
        self.parts = self.weights.parts
        n, _ = own.elementwise.taken(channels, channels)
        settings = {"C": channels, "EXPERTS": experts, "N": n}
        self.elementwise = Grid.of(self.pixels, own.elementwise, (experts, channels // n), settings)
        self.shortcut = {key: conv[key] for key in ("STRIDE", "H", "W", "CI", "SHARED")}

    @property
    def norm_is_merged(self) -> bool:
        """Whether the kernel of the convolution computes the normalisation in front of it."""
        return self.conv_kernel == "direct_norm_forward"

    @property
    def gradient_is_merged(self) -> bool:
        """Whether the kernel of the gradient of inputs finds the way back through the normalisation, too."""
        return self.gradient_kernel == "direct_norm_gradient"


class Grid(NamedTuple):
    """How rows are split among a kernel's programs, a block to each in turn, and all of its constants."""

    shape: tuple[int, ...]
    settings: dict[str, int]

    @property
    def programs(self) -> int:
        """Among how many programs the rows are split."""
        return self.shape[0]

    @property
    def parts(self) -> int:
        """In how many parts a gradient of weights is."""
        return self.programs * self.settings["SHARES" if "SHARES" in self.settings else "TILE"]

    @classmethod
    def of(cls, rows: int, launch: Launch, others: tuple[int, ...], settings: dict[str, int]) -> "Grid":
        """About as many programs in all as wanted, with so many others for each, and equally many blocks for each.

        >>> Grid.of(8192, Launch(block=64, programs=132), others=(3, 3), settings={})
        Grid(shape=(15, 3, 3), settings={'BLOCK': 64, 'TURNS': 9, 'num_warps': 4, 'num_stages': 1})
        """
        blocks = -(-rows // launch.block)
        turns = min(blocks, -(-blocks * math.prod(others) // launch.programs))
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        return cls((-(-blocks // turns), *others), {**settings, "BLOCK": launch.block, "TURNS": turns, **options})

    @classmethod
    def by_rows(
        cls, images: int, launch: Launch, others: tuple[int, ...], settings: dict[str, int], seen: int
    ) -> "Grid":
        """The same for a kernel whose rows are tiles of several lines of pixels, of which it sees so many channels."""
        tile, lines = launch.tile, launch.rows
        tiles = images * -(-settings["H"] // lines) * -(-settings["W"] // tile)
        sizes = {"TILE": tile, "ROWS": lines, "K": power((tile + 2) * seen)}
        return cls.of(tiles, launch, others, {**settings, **sizes})


def _launched_directly(
    layer: Layer, images: int, height: int, width: int, mergeable: bool
) -> dict[str, tuple[str, Grid]]:
    """Those kernels of a layer that are launched directly, and their grids, by the fields of `Launches`."""
    channels, own, found = layer.channels, launches_of(layer.channels, images), dict[str, tuple[str, Grid]]()
    if layer.stride > 1 or layer.shared or channels != layer.in_channels:
        return {}
    for field, plain, merged in (
        ("direct_forward", "direct_forward", "direct_norm_forward" if mergeable else "direct_forward"),
        ("direct_backward", "direct_gradient", "direct_norm_gradient"),
        ("direct_weights", "direct_weights", "direct_weights"),
    ):
        way: Direct | None = getattr(own, field)
        if way is None or not way.fits(channels, height, width, of_weights=field == "direct_weights"):
            continue
        kernel, grid = merged if way.merged else plain, Grid(*way.grid(images, height, width, channels, layer.experts))
        if DIRECT_KERNELS[kernel].shared_memory(grid.settings) <= SHARED_MEMORY:
            found[field] = kernel, grid
    return found


def power(number: int) -> int:
    """Return the power of two that is not below a number.

    >>> power(1), power(48), power(64)
    (1, 64, 64)
    """
    return 1 << (number - 1).bit_length()
