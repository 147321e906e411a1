"""Losses as they come, for programs that draw them: a CSV file, TensorBoard, Weights & Biases.

TensorBoard's is Fabric's logger. Its CSV logger deletes the rows of an earlier call, which a resumed run needs, and it
has none for Weights & Biases.
"""

import csv
import io
import uuid
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from balpoe.errors import UserError, unknown_name
from balpoe.files import read_text, write_text

__all__ = ["Tracking", "check_tracking"]

KINDS = ("csv", "tensorboard", "wandb")
Rows = Sequence[dict[str, float]]


def check_tracking(track: Sequence[str], folder: Path | None) -> None:
    """Say in one sentence, before training begins, what would keep losses from being logged.

    Args:
        track: Kinds of logs, of csv, tensorboard and wandb.
        folder: Folder of the run.

    >>> check_tracking(["csv"], None)
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: track csv writes into the folder of a run, but there is none; give run a folder
    """
    for kind in track:
        if kind not in KINDS:
            raise unknown_name("track", kind, KINDS)
        if folder is None:
            raise UserError(f"track {kind} writes into the folder of a run, but there is none; give run a folder")
        # A package has a file; a folder that happens to have its name (wandb leaves one behind) has none.
        if kind != "csv" and getattr(find_spec(kind), "origin", None) is None:
            raise UserError(f"track {kind} needs a package that is not installed here; type: pip install {kind}")


class Tracking:
    """The logs of a training, from the epoch at which it begins or goes on; for a `with` block.

    Args:
        track: Kinds of logs, of csv, tensorboard and wandb.
        folder: Folder of the run; without kinds it may be None.
        done: Number of epochs that are logged already.
    """

    def __init__(self, track: Sequence[str], folder: Path | None, done: int = 0) -> None:
        openers = {"csv": _Csv, "tensorboard": _TensorBoard, "wandb": _WeightsAndBiases}
        self.logs: list[Any] = []
        for kind in track:
            assert folder is not None  # `check_tracking` has said so
            self.logs.append(openers[kind](folder, done))

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for log in self.logs:
            log.close()

    def log(self, rows: Rows) -> None:
        """Take note of all epochs so far, the last of which has just ended."""
        for log in self.logs:
            log.log(rows)


class _Csv:
    """history.csv: written whole, like history.jsonl."""

    def __init__(self, folder: Path, done: int) -> None:
        self.path = folder / "history.csv"

    def log(self, rows: Rows) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path, text.getvalue())

    def close(self) -> None:
        """Nothing is open between two epochs."""


class _TensorBoard:
    """Event files in tensorboard/; what an earlier call logged beyond its last checkpoint is not shown."""

    def __init__(self, folder: Path, done: int) -> None:
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        self.logger = TensorBoardLogger(folder, name="tensorboard", version="", purge_step=done)

    def log(self, rows: Rows) -> None:
        epoch, *values = rows[-1].items()
        self.logger.log_metrics(dict(values), int(epoch[1]))
        self.logger.save()

    def close(self) -> None:
        self.logger.finalize("success")


class _WeightsAndBiases:
    """A run of the project balpoe, which goes on under the id that wandb.txt keeps."""

    def __init__(self, folder: Path, done: int) -> None:
        import wandb

        path = folder / "wandb.txt"
        if not path.exists():
            write_text(path, uuid.uuid4().hex)
        try:
            self.run = wandb.init(
                project="balpoe", name=f"{folder.parent.name}/{folder.name}", id=read_text(path), resume="allow",
                dir=str(folder),
            )  # fmt: skip
        except wandb.Error as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise UserError(
                f"Weights & Biases cannot be used: {reason}; type `wandb login`, or set WANDB_MODE to offline"
            ) from error
        self.close: Callable[[], None] = self.run.finish

    def log(self, rows: Rows) -> None:
        epoch, *values = rows[-1].items()
        # A step below the last one is refused by wandb: an epoch that is trained again is not logged again.
        self.run.log(dict(values), step=int(epoch[1]))
