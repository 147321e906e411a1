"""balpoe doctor: what works on this machine, what does not, and what to do about it.

Neither the command nor its table needs a package: what it looks at may be missing or broken.
"""

import argparse
import itertools
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from balpoe.cli.flags import Commands

if TYPE_CHECKING:
    from balpoe.cli.doctor_checks import Finding

__all__ = ["add_parser", "print_findings"]

HEADINGS = ("part", "state", "what was found", "what to do")
PART, STATE = 10, 9  # characters of the first two columns
NARROWEST = 20  # characters of the others, however small the terminal is


def add_parser(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "doctor", help="what works on this machine: Python, torch, GPU, data, cache, weights, optional packages"
    )
    command.set_defaults(work=_doctor)


def _doctor(_: argparse.Namespace) -> int:
    from balpoe.cli.doctor_checks import all_findings

    return print_findings(all_findings())


def print_findings(findings: Iterable["Finding"]) -> int:
    """Print the table, each row once it is known; return 1 if something is broken, else 0."""
    width = max((shutil.get_terminal_size((140, 24)).columns - PART - STATE - 2) // 2, NARROWEST)
    print(*_lines(HEADINGS, width), sep="\n")
    broken = []
    for each in findings:
        print(*_lines((each.part, each.state, each.found, each.advice), width), sep="\n", flush=True)
        broken += [each.part] * (each.state == "broken")
    if broken:
        print(f"Broken: {', '.join(broken)}; the last column says what to do.")
        return 1
    print("All that is needed works; what is missing is optional. balpoe demo shows it at work, in a minute.")
    return 0


def _lines(row: tuple[str, str, str, str], width: int) -> Iterator[str]:
    """The lines of a row, whose last two cells are as many lines as they need.

    >>> list(_lines(("GPU", "missing", "none: the processor is used", ""), 20))
    ['GPU       missing  none: the processor', '                   is used']
    """
    part, state, *sentences = row
    found, advice = (textwrap.wrap(each, width, break_on_hyphens=False) for each in sentences)
    for one, two, three, four in itertools.zip_longest([part], [state], found, advice, fillvalue=""):
        yield f"{one:<{PART}}{two:<{STATE}}{three:<{width}}  {four}".rstrip()
