"""The layers of a `resnet32`, their sizes, and the grids of their kernels."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from balpoe.networks.experts import ExpertNetwork
from balpoe.networks.fused.direct import DIRECT_KERNELS, Direct, shared_out
from balpoe.networks.fused.launch_table import WIDTHS, Launch, Launches, launches_of
from balpoe.networks.resnet_cifar import Block

__all__ = ["LaunchPlan", "Layer", "Sizes", "layers_of"]

SUMMED, SUMMED_AT_ONCE = 256, 16  # numbers of a gradient that a program sums, and so many parts of each at a time


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
        room: Bytes of shared memory that a kernel of `direct_kernels.cu` may take; 0 where none can be launched.
    """

    def __init__(self, layers: list[Layer], images: Tensor, room: int = 0) -> None:
        number, _, height, width = images.shape
        self.sizes: list[Sizes] = []
        rows: dict[int, list[tuple[int, ...]]] = {}
        source = place = first = 0
        for index, layer in enumerate(layers):
            own = room if index > 0 else 0  # images are of another type
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
        self, layer: Layer, images: int, height: int, width: int, room: int = 0, mergeable: bool = False
    ) -> None:
        stride, channels, in_channels, experts = layer.stride, layer.channels, layer.in_channels, layer.experts
        self.images, self.out_height, self.out_width = images, (height - 1) // stride + 1, (width - 1) // stride + 1
        self.pixels, self.groups = images * self.out_height * self.out_width, 1 if layer.shared else experts
        if max(images * height * width * self.groups * in_channels, self.pixels * experts * channels) >= 2**31:
            raise ValueError("a layer makes more numbers of a batch than the kernels can count, 2 ** 31")
        conv = {
            "H": height, "W": width, "OUT_H": self.out_height, "OUT_W": self.out_width, "STRIDE": stride,
            "CI": in_channels, "CO": channels, "EXPERTS": experts, "SHARED": layer.shared,
        }  # fmt: skip
        own, below = (launches_of(each, images * experts) for each in (channels, in_channels))
        assert own is not None  # the network `can_be_fused`
        directly = _launched_directly(layer, own, images, height, width, room, mergeable)
        self.conv_kernel = "conv_forward"
        if "direct_forward" in directly:
            self.conv_kernel, self.forward = directly["direct_forward"]
        else:
            n, k = own.forward.taken(channels, max(in_channels, min(WIDTHS)))
            self.forward = Grid.of(self.pixels, own.forward, (experts, channels // n), {**conv, "N": n, "K": k})
        self.gradient_kernel = "input_gradient"
        if "direct_backward" in directly:
            self.gradient_kernel, self.backward = directly["direct_backward"]
        elif below is not None:  # not those of images, which have no gradient
            launch = below.backward if stride == 1 else below.backward_strided
            rows = images * -(-height // stride) * -(-width // stride)
            n, k = launch.taken(in_channels, stride * channels)
            self.backward = Grid.of(rows, launch, (self.groups, in_channels // n), {**conv, "N": n, "K": k})
        self.weights_kernel = "weight_gradient"
        if "direct_weights" in directly:
            self.weights_kernel, self.weights = directly["direct_weights"]
        else:
            tile, n, k, lines = own.weights.weights_taken(stride, channels, in_channels)
            rows = images * self.out_height * -(-self.out_width // tile)
            self.weights = Grid.of(rows, own.weights, (lines, experts), {**conv, "TILE": tile, "N": n, "K": k})
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
        programs, turns = shared_out(-(-rows // launch.block), math.prod(others), launch.programs)
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        return cls((programs, *others), {**settings, "BLOCK": launch.block, "TURNS": turns, **options})


def _launched_directly(
    layer: Layer, launches: Launches, images: int, height: int, width: int, room: int, mergeable: bool
) -> dict[str, tuple[str, Grid]]:
    """Those kernels of a layer that are launched directly, and their grids, by the fields of `Launches`."""
    channels, found = layer.channels, dict[str, tuple[str, Grid]]()
    if layer.stride > 1 or layer.shared or channels != layer.in_channels:
        return {}
    for field, plain, merged, can_merge in (
        ("direct_forward", "direct_forward", "direct_norm_forward", mergeable),
        ("direct_backward", "direct_gradient", "direct_norm_gradient", True),
        ("direct_weights", "direct_weights", "", False),
    ):
        way: Direct | None = getattr(launches, field)
        if way is None or not way.fits(channels, height, width, of_weights=field == "direct_weights"):
            continue
        grid = Grid(*way.grid(images, height, width, channels, layer.experts))
        names = (merged, plain) if way.merged and can_merge else (plain,)
        with_room = [name for name in names if DIRECT_KERNELS[name].shared_memory(grid.settings) <= room]
        if with_room:
            found[field] = with_room[0], grid
    return found
