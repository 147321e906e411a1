"""balpoe demo: cross-entropy against a balanced product of experts, on bundled data, in a minute."""

import argparse
from pathlib import Path

from balpoe.cli.flags import Commands, add_runs_root

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser("demo", help="a minute on a CPU: cross-entropy against BalPoE on bundled data")
    command.add_argument("--fresh", action="store_true", help="train anew; earlier runs are moved aside")
    add_runs_root(command)
    command.set_defaults(work=_demo)


def _demo(arguments: argparse.Namespace) -> None:
    from balpoe.cli.demo_runs import demo

    demo(Path(arguments.runs), fresh=arguments.fresh)
