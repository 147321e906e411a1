"""Flags of a prior that follows the images of predict."""

import argparse
import math
from pathlib import Path
from typing import NamedTuple

from balpoe.errors import UserError

__all__ = ["TrackFlags", "add_track_prior", "track_flags"]


class TrackFlags(NamedTuple):
    """What the flags say of a prior that follows a stream."""

    path: str
    half_life: float | None = None

    @property
    def plot(self) -> Path:
        """Where the shares are drawn: beside the state."""
        return Path(self.path).with_suffix(".png")


def add_track_prior(command: argparse.ArgumentParser) -> None:
    """Add --track-prior and --half-life."""
    group = command.add_argument_group("a prior that follows the images, in the order in which they are given")
    group.add_argument(
        "--track-prior", metavar="STATE.npz",
        help="adjust each image to the class mix of those before it; the state is kept here for the next images, and "
        "drawn beside it as .png",
    )  # fmt: skip
    group.add_argument(
        "--half-life", type=float, metavar="N", help="how many images until one counts half; for a new state"
    )


def track_flags(arguments: argparse.Namespace) -> TrackFlags | None:
    """Return what the flags say; None without a prior to follow."""
    path, half_life = arguments.track_prior, arguments.half_life
    if path is None:
        if half_life is not None:
            raise UserError("--half-life is of a prior that follows the images; give --track-prior STATE.npz, too")
        return None
    if arguments.prior is not None or arguments.prior_table is not None:
        raise UserError("--track-prior finds the prior in the images; leave out --prior and --prior-table")
    if Path(path).suffix != ".npz":
        raise UserError(f"--track-prior {path} is not a .npz file; give one, which need not be there yet")
    if half_life is None and not Path(path).exists():
        raise UserError(f"there is no state {path} yet; give --half-life N, how many images until one counts half")
    if half_life is not None and not 0 < half_life < math.inf:
        raise UserError(f"--half-life must be a number of images above 0, but is {half_life}")
    return TrackFlags(path, half_life)
