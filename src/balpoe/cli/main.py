"""The command line: finds the verb, and answers every mistake with one sentence."""

import argparse
import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import balpoe
from balpoe.cli import (
    card,
    compare,
    data,
    demo,
    doctor,
    evaluate,
    export,
    predict,
    recipes,
    report,
    reproduce,
    runs,
    serve,
    train,
    weights,
)
from balpoe.cli.flags import join_negative_values
from balpoe.errors import UserError, show_warning, unknown_name
from balpoe.training.interrupts import sigterm_as_interrupt

__all__ = ["COMMANDS", "command_parser", "main"]

VERBS = (
    demo, recipes, data, train, compare, runs, evaluate, report, predict, export, serve, card, weights, reproduce,
    doctor,
)  # fmt: skip
GO_ON = ("demo", "data", "train", "compare", "reproduce")
"""Verbs whose work is kept, so that the same command goes on."""
COMMANDS = tuple(verb.__name__.rpartition(".")[2] for verb in VERBS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 1 if some images or parts of the machine do not work, or 2 after one sentence."""
    arguments = join_negative_values(list(sys.argv[1:] if argv is None else argv))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a ± on a terminal that has none
    try:
        with warnings.catch_warnings(), sigterm_as_interrupt():
            warnings.showwarning = show_warning
            code = _run(arguments)
            sys.stdout.flush()
            return code
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    except BrokenPipeError:  # whoever read has seen enough: `balpoe recipes | head -1`
        with contextlib.suppress(OSError, AttributeError):  # nothing is to complain at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UserError as error:
        return _say(str(error))
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        return _say(f"cannot use{where}: {error.strerror or error}; choose another place")
    except KeyboardInterrupt as stop:
        return _say(_stopped(arguments[0], str(stop)))


def _stopped(verb: str, where: str) -> str:
    """What an interrupt leaves: of work that goes on later, all where it says how far it is, else what it has written.

    >>> _stopped("train", "epoch 3 of 200")
    'stopped in epoch 3 of 200; nothing is lost, the same command goes on from here'
    """
    place = f"stopped in {where}" if where else "stopped"
    if verb not in GO_ON:
        return f"{place}; the same command begins anew"
    if where:
        return f"{place}; nothing is lost, the same command goes on from here"
    return f"{place}; the same command goes on from what was written last, if anything was"


def _say(sentence: str) -> int:
    print(f"balpoe: {sentence}", file=sys.stderr)
    return 2


def _run(arguments: list[str]) -> int:
    if not arguments:
        command_parser().print_help()
        return 0
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise unknown_name("command", arguments[0], COMMANDS)
    parser = command_parser(arguments[0] if arguments[0] in COMMANDS else None)  # the other verbs take milliseconds
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise _unknown_option(unknown[0], known.usage())
    return int(known.work(known) or 0)


class _Parser(argparse.ArgumentParser):
    """argparse without abbreviations and without usage text in errors."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.set_defaults(usage=self.format_usage)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def command_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line, of all verbs or of one; `work` of what it parses does what it asks for."""
    parser = _Parser(
        prog="balpoe", description="Balanced product of calibrated experts: classifiers that work on rare classes."
    )
    parser.add_argument("--version", action="version", version=f"balpoe {balpoe.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, verb in zip(COMMANDS, VERBS, strict=True):
        if only in (None, name):
            verb.add_parser(commands)
    return parser


def _unknown_option(option: str, usage: str) -> UserError:
    if not option.startswith("-"):
        return UserError(f"{option!r} is one word too many; see --help")
    return unknown_name("option", option.partition("=")[0], ["--help", *re.findall(r"--[a-z-]+", usage)])
