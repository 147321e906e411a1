"""balpoe reproduce: the paper's tables and figures, ours beside them."""

import argparse
from pathlib import Path

from balpoe.cli.flags import Commands, add_fields, add_runs_root, changed_fields
from balpoe.cli.heavy_imports import heavy_imports

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser(
        "reproduce", help="the paper's tables: trains what is missing, goes on where it stopped"
    )
    command.add_argument(
        "tables", nargs="*", metavar="ITEM", help="such as table1, figure7, cifar100-lt-long, or all (default: all)"
    )
    command.add_argument("--minutes", type=float, metavar="X", help="stop in time (default: when all is done)")
    command.add_argument(
        "--results", default="results", metavar="FOLDER", help="folder of the records (default: results)"
    )
    add_runs_root(command)
    add_fields(command, ("data_root",))
    command.set_defaults(work=_reproduce)


def _reproduce(arguments: argparse.Namespace) -> None:
    with heavy_imports():
        from balpoe.paper.reproduce import reproduce
    reproduce(
        arguments.tables,
        minutes=arguments.minutes,
        results=Path(arguments.results),
        runs=Path(arguments.runs) / "reproduce",
        data_root=changed_fields(arguments).get("data_root", ""),
    )
