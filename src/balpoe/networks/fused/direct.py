"""How the kernels of `direct_kernels.cu` are launched.

They do what `conv_forward`, `input_gradient` and `weight_gradient` of `kernels.py` do, with the same arguments, in
layers of stride 1 that leave the number of channels as it is. Those load each pixel once for each of nine taps, and
pass it through shared memory; here it is loaded once, and tensor cores find it nine times. Triton cannot say that.
Two more do the work of `norm_forward` and `norm_backward` besides: the arguments of these, then their own.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.networks.fused import nvrtc

__all__ = ["DIRECT_KERNELS", "Direct", "DirectKernel", "room_of", "shared_out"]

CHANNELS = (16, 32, 64)
SIZES = ("C", "H", "W", "EXPERTS", "ROWS", "IMAGES", "AT_ONCE")


@functools.cache
def room_of(device: torch.device, dtype: torch.dtype) -> int:
    """Return the bytes of shared memory that a kernel may take there; 0 where these cannot run: they take bfloat16."""
    if dtype is not torch.bfloat16 or device.type != "cuda":
        return 0
    room: int = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)  # not of AMD's
    return room if room and nvrtc.can_launch(device, room) else 0


def shared_out(blocks: int, others: int, programs: int) -> tuple[int, int]:
    """Return among how many programs blocks are shared out, and how many each then takes in turn.

    Args:
        blocks: Number of blocks.
        others: Programs that each of these programs has beside it, such as one for every expert.
        programs: About how many there are to be in all.

    >>> shared_out(128, others=9, programs=132)
    (15, 9)
    """
    turns = min(blocks, -(-blocks * others // programs))
    return -(-blocks // turns), turns


class Direct(NamedTuple):
    """Sizes of a launch."""

    pixels: int
    """Those of a tile, which a program takes at a time: rows of one image, or several whole images."""
    programs: int
    """About how many there are in all."""
    warps: int
    shares: int = 1
    """Parts of a gradient of weights that a program writes."""
    at_once: int = 0
    """Programs that are to find registers on a processor at the same time; 0 leaves that to the compiler."""
    merged: bool = False
    """Whether a normalisation is computed besides: in front of a convolution, or behind the one of a gradient."""

    def tile(self, height: int, width: int) -> tuple[int, int]:
        """Return how many rows a tile has, and of how many images; 0 rows where images are too wide for it.

        >>> [Direct(256, programs=264, warps=8).tile(side, side) for side in (8, 16, 32, 512)]
        [(8, 4), (16, 1), (8, 1), (0, 1)]
        """
        rows = min(height, self.pixels // width)
        return rows, max(1, self.pixels // (height * width))

    def fits(self, channels: int, height: int, width: int, of_weights: bool = False) -> bool:
        """Whether a layer of stride 1 with so many channels in front and behind can be launched so.

        Args:
            channels: Channels of one expert.
            height: Rows of an image.
            width: Columns.
            of_weights: Whether it is the gradient of weights.

        >>> way = Direct(pixels=256, programs=528, warps=4)
        >>> way.fits(16, 32, 32), way.fits(16, 9, 6), way.fits(128, 32, 32), way.fits(16, 32, 32, of_weights=True)
        (True, False, False, False)
        """
        rows, images = self.tile(height, width)
        whole = rows * images * width == self.pixels and height % rows == 0
        if of_weights:  # three taps in a row of the kernel for each warp, and some of its channels
            groups, among = self.warps // (3 * self.shares), self.shares
            split = self.warps == 3 * self.shares * groups > 0 and channels // 16 % groups == 0
        else:
            among, split = self.warps, 32 * self.warps >= channels * self.merged
        return channels in CHANNELS and whole and split and self.pixels % (16 * among) == 0

    def grid(
        self, images: int, height: int, width: int, channels: int, experts: int
    ) -> tuple[tuple[int, int], dict[str, int]]:
        """Programs for each expert, and the constants of the kernels; as many turns for each program.

        >>> Direct(pixels=128, programs=264, warps=4).grid(512, 8, 8, 64, experts=3)[0]
        (86, 3)
        """
        rows, together = self.tile(height, width)
        programs, turns = shared_out(-(-images * height // (rows * together)), experts, self.programs)
        sizes = {"C": channels, "H": height, "W": width, "EXPERTS": experts, "ROWS": rows, "IMAGES": together}
        sizes |= {"AT_ONCE": self.at_once, "WARPS": self.warps, "SHARES": self.shares, "TURNS": turns}
        return (programs, experts), sizes


class DirectKernel:
    """A kernel by its name, called as Triton's are: `kernel[grid](*arguments, **settings)`."""

    def __init__(self, name: str, constants: tuple[str, ...]) -> None:
        self.name, self.constants = name, (*SIZES, *constants)

    def __getitem__(self, grid: tuple[int, int]) -> Callable[..., None]:
        """Return what launches so many programs."""
        return functools.partial(self._launch, grid)

    def expression(self, settings: dict[str, int]) -> str:
        """Return its name with its constants, in C++.

        >>> size = Direct(pixels=128, programs=264, warps=4).grid(512, 8, 8, 64, experts=3)[1]
        >>> DIRECT_KERNELS["direct_forward"].expression(size)
        'conv_forward<64, 8, 8, 3, 8, 2, 0, 4>'
        """
        groups = settings["WARPS"] // (3 * settings["SHARES"])
        known = {**settings, "GROUPS": groups}
        return f"{self.name}<{', '.join(str(int(known[name])) for name in self.constants)}>"

    def shared_memory(self, settings: dict[str, int]) -> int:
        """Return the bytes of shared memory that a program takes.

        >>> size = Direct(pixels=256, programs=264, warps=4).grid(128, 32, 32, 16, experts=1)[1]
        >>> [kernel.shared_memory(size) for kernel in DIRECT_KERNELS.values()]
        [39552, 58112, 39552, 58112, 57216]
        """
        channels, rows, width, images = (settings[name] for name in ("C", "ROWS", "W", "IMAGES"))
        pixel = 2 * (channels + 8)  # bytes, also of the weights of one tap and one channel
        tile, tiles = images * (rows + 2) * (width + 2), min(2, settings["TURNS"])  # the next one is on its way
        if self.name == "weight_gradient":
            return pixel * tiles * (tile + images * rows * width)
        taken = pixel * (9 * channels + tile * tiles)
        if self.name.startswith("norm_"):  # a tile of the other tensor; three factors, and four sums of each thread
            taken += pixel * tile * int(settings.get("SHORTCUT", True)) + 12 * channels + 512 * settings["WARPS"]
        return taken

    def _launch(self, grid: tuple[int, int], *arguments: Tensor | float, **settings: int) -> None:
        threads, shared_memory = 32 * settings["WARPS"], self.shared_memory(settings)
        nvrtc.launch(self.expression(settings), grid, threads, shared_memory, arguments)


DIRECT_KERNELS = {
    "direct_forward": DirectKernel("conv_forward", ("WARPS",)),
    "direct_norm_forward": DirectKernel("norm_conv_forward", ("WARPS", "SHORTCUT")),
    "direct_gradient": DirectKernel("input_gradient", ("WARPS", "RESIDUAL")),
    "direct_norm_gradient": DirectKernel("norm_input_gradient", ("WARPS", "RESIDUAL")),
    "direct_weights": DirectKernel("weight_gradient", ("GROUPS", "SHARES")),
}
"""By the names that a launch plan has for them."""
