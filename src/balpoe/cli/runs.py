"""balpoe runs: the runs that are there, and what tells them apart."""

import argparse
from pathlib import Path

from balpoe.cli.flags import Commands, add_runs_root

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser("runs", help="the runs that are there, the latest first, and what tells them apart")
    add_runs_root(command)
    command.set_defaults(work=_runs)


def _runs(arguments: argparse.Namespace) -> None:
    from balpoe.cli.runs_table import print_runs

    print_runs(Path(arguments.runs))
