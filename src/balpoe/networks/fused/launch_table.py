"""How the kernels are launched, by channels: sizes that were found by measuring, and those that leave room."""

from typing import Any, NamedTuple

from balpoe.networks.fused.direct import Direct

__all__ = ["FASTEST_WIDTHS", "LAUNCHES", "LAUNCHES_OF_MANY_IMAGES", "MANY_IMAGES", "WIDTHS", "Launch", "Launches",
           "launches_of", "power"]  # fmt: skip


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
    direct_forward: Direct | None = None
    """In the place of `forward`, where it fits."""
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
        direct_forward=Direct(512, 528, warps=8, merged=True),
        direct_backward=Direct(512, 528, warps=8, at_once=2),
        direct_weights=Direct(256, 132, warps=12, shares=4),
    ),
    32: Launches(
        forward=Launch(256, 528),
        backward=Launch(128, 528, warps=2, stages=3),
        backward_strided=Launch(128, 528, warps=8),
        weights=Launch(64, 264, warps=8),
        elementwise=Launch(256, 528),
        direct_forward=Direct(256, 264, warps=8, merged=True),
        direct_backward=Direct(256, 528, warps=8, at_once=2),
    ),
    64: Launches(
        forward=Launch(64, 528, warps=2, stages=3),
        backward=Launch(64, 528, warps=2, stages=3),
        backward_strided=Launch(64, 528, columns=16, depth=64),
        weights=Launch(128, 132, warps=8),
        elementwise=Launch(256, 528),
        direct_forward=Direct(256, 4096, warps=8, merged=True),
        direct_backward=Direct(128, 264, warps=4, at_once=1),
    ),
    128: MANY_CHANNELS,
    256: MANY_CHANNELS,
}
WIDTHS = tuple(LAUNCHES)

MANY_IMAGES = 512
"""From so many images on, each counted once for every expert, other launches were faster: with 512 of three experts."""
LAUNCHES_OF_MANY_IMAGES: dict[int, dict[str, Any]] = {
    16: {"direct_backward": Direct(256, 528, warps=4, merged=True, at_once=2)},
    32: {
        "direct_backward": Direct(256, 264, warps=8, at_once=2),
        "direct_weights": Direct(256, 264, warps=12, shares=2),
    },
    64: {
        "weights": Launch(64, 528, warps=2, stages=3, columns=64, depth=64),
        "direct_forward": Direct(256, 4096, warps=8),
    },
}

FASTEST_WIDTHS = tuple(width for width in WIDTHS if width <= 128)
"""Those whose steps were faster with these kernels than with torch's: of 64, 128 and 256 channels torch's are ahead."""


def launches_of(channels: int, images: int) -> Launches | None:
    """Return how the kernels of layers of so many channels are launched, if there are any.

    Args:
        channels: Channels of one expert.
        images: Size of a batch, times the layer's experts.

    >>> [launches_of(16, images).direct_backward.pixels for images in (128, 512)], launches_of(3, images=128)
    ([512, 256], None)
    """
    launches = LAUNCHES.get(channels)
    if launches is None or images < MANY_IMAGES:
        return launches
    return launches._replace(**LAUNCHES_OF_MANY_IMAGES.get(channels, {}))


def power(number: int) -> int:
    """Return the power of two that is not below a number.

    >>> power(1), power(48), power(64)
    (1, 64, 64)
    """
    return 1 << (number - 1).bit_length()
