"""balpoe predict: labels and probabilities for any number of images."""

import argparse
import sys
from pathlib import Path
from typing import Any

from balpoe.cli.decision_flags import add_decisions, decision_flags
from balpoe.cli.flags import Commands, add_backbone, add_fields, add_prior, add_views, changed_fields
from balpoe.cli.prior_table import add_prior_table, table_flags
from balpoe.cli.track_prior import add_track_prior, track_flags
from balpoe.errors import UserError
from balpoe.experiments.recipe import Recipe, updated
from balpoe.training.launchers import launcher

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser("predict", help="labels and probabilities of images, as CSV or JSON lines")
    command.add_argument(
        "run",
        metavar="RUN",
        help="NAME of a run in runs (NAME/seed-N where it has several seeds), latest for the last that was finished, a "
        "path of a run, or a model's file",
    )
    command.add_argument(
        "images", nargs="+", metavar="IMAGES", help="images, folders, patterns, or a .csv with a column of paths"
    )
    command.add_argument("--out", metavar="FILE", help="file to write (default: standard output)")
    command.add_argument(
        "--format", choices=("csv", "jsonl"), help="a table, or a JSON object a line (default: as --out ends, or csv)"
    )
    command.add_argument(
        "--top", type=int, default=1, metavar="N", help="so many labels, the likeliest first (default: 1)"
    )
    command.add_argument("--experts", action="store_true", help="each expert's label, too")
    add_prior(command)
    add_prior_table(command)
    add_track_prior(command)
    add_decisions(command)
    add_views(command)
    add_backbone(command)
    add_fields(command, ("device",))
    command.add_argument(
        "--devices", type=int, metavar="N",
        help="so many processes, a GPU for each, share the images: they write parts beside --out, which the same "
        "command goes on from and merges; under torchrun or SLURM without this flag",
    )  # fmt: skip
    command.set_defaults(work=_predict)


def _predict(arguments: argparse.Namespace) -> int:
    ending = Path(arguments.out or "").suffix.removeprefix(".")
    kind = arguments.format or ("jsonl" if ending in ("jsonl", "json", "ndjson") else "csv")
    device = updated(Recipe(), changed_fields(arguments)).device
    table, track, decisions = table_flags(arguments), track_flags(arguments), decision_flags(arguments)
    if track is not None and decisions is not None:
        raise UserError("--track-prior moves labels and probabilities alone; leave out the flags of decisions")
    if track is not None and arguments.views:
        raise UserError("--track-prior is checked by single views of held-out samples; leave out one of it and --views")
    settings: dict[str, Any] = {
        "run": arguments.run,
        "inputs": arguments.images,
        "out": arguments.out,
        "kind": kind,
        "top": arguments.top,
        "experts": arguments.experts,
        "prior": arguments.prior,
        "table": table,
        "track": track,
        "decisions": decisions,
        "views": arguments.views or "",
        "weights": arguments.weights,
        "device": device,
    }
    found = launcher()
    if arguments.devices is None and (found is None or found.devices * found.num_nodes == 1):
        from balpoe.cli.predict_rows import predict_files

        written = predict_files(**settings)
    else:
        from balpoe.cli.predict_processes import predict_shared

        written = predict_shared(settings, 1 if arguments.devices is None else arguments.devices)
    return _told(arguments.out, written)


def _told(out: str | None, written: tuple[int, int] | None) -> int:
    """Say what was written; return the exit code."""
    if written is None:  # no failure: it would make a launcher end the processes that are still at work
        print(
            f"balpoe: note: this process has done its parts of {out}; the last one to end merges all, and if one has "
            "died, the same command goes on",
            file=sys.stderr,
        )
        return 0
    images, unreadable = written
    if unreadable:
        print(f"balpoe: {unreadable:,} of {images:,} images could not be read; see their rows", file=sys.stderr)
    elif out is not None:
        print(f"{out}: images: {images:,}")
    return 1 if unreadable else 0
