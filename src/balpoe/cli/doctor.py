"""balpoe doctor: what works on this machine, what does not, and what to do about it."""

import argparse

from balpoe.cli.flags import Commands

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "doctor", help="what works on this machine: Python, torch, GPU, data, cache, weights, optional packages"
    )
    command.set_defaults(work=_doctor)


def _doctor(_: argparse.Namespace) -> int:
    from balpoe.cli.doctor_checks import all_findings, print_findings

    return print_findings(all_findings())
