"""Results as tables on a terminal: rows of scores, mean and deviation over seeds."""

import os
import shlex
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from balpoe.evaluation.catalogue import METRICS, OfClasses

__all__ = [
    "command_line",
    "console",
    "counts_table",
    "mean_and_deviation",
    "print_scores",
    "prior_uses",
    "score_table",
    "score_text",
    "shifted_table",
]


def console() -> Console:
    """Return standard output: as wide as the terminal, and wide enough for a table where there is none.

    Markup is off: what is in brackets may be somebody's class name.
    """
    terminal = Console().is_terminal
    return Console(width=None if terminal else 140, markup=False, emoji=False, highlight=False, soft_wrap=not terminal)


def command_line(*words: str | Path) -> str:
    """Return a command of this program to paste into a shell, in the folder where it is printed.

    >>> command_line("predict", "runs/Meine Bilder", "IMAGES").partition(" ")[2]
    "predict 'runs/Meine Bilder' IMAGES"
    """
    return shlex.join((*_program(), *map(str, words)))


def _program() -> tuple[str, ...]:
    """How to call this program again: by its name where that is on the path."""
    called = Path(sys.argv[0])
    if not shutil.which("balpoe") and called.name == "balpoe":
        return (os.path.relpath(called),)
    if shutil.which("balpoe") or called.parts[-2:] != ("balpoe", "__main__.py"):
        return ("balpoe",)
    python = shutil.which("python")
    return ("python" if python and os.path.samefile(python, sys.executable) else sys.executable, "-m", "balpoe")


def print_scores(
    out: Console,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    columns: Sequence[str] = (),
    title: str | None = None,
    extra: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Print a table of scores: a row per name, each the mean of one or several evaluations.

    Args:
        out: Console to print on.
        rows: Evaluations (as dictionaries) of each row, one per seed, by its name.
        columns: Names of the metrics; by default those that the catalogue has in tables.
        title: Title over the table.
        extra: Text of each row in further columns, by their headings.
    """
    headings, scores = score_table(rows, columns)
    table = Table(title=title, title_justify="left")
    for heading in (*headings, *(extra or {})):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    cells = {}
    for name, *texts in scores:
        cells[name] = [*texts, *(further[name] for further in (extra or {}).values())]
        table.add_row(name, *cells[name])
    headings = [*headings[1:], *(extra or {})]
    widths = [max(map(len, column)) for column in zip(headings, *cells.values(), strict=True)]
    if max(map(len, rows)) + sum(widths) + 3 * (len(widths) + 1) + 1 <= out.width:
        out.print(table)
        return
    gap = 2 if sum(widths) + 2 * len(widths) <= out.width else 1
    for line in _narrow(headings, cells, [width + gap for width in widths], out.width, title):
        out.print(line)


def score_table(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], columns: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of scores, from names to the evaluations of each seed; no group of classes is empty."""
    everything = [each for several in rows.values() for each in several]
    columns = [
        name
        for name in columns or (name for name, metric in METRICS.items() if metric.in_tables)
        if not isinstance(METRICS[name].of, OfClasses) or any(each.get(name) is not None for each in everything)
    ]
    headings = ["", *(METRICS[name].heading for name in columns)]
    return headings, [[label, *(score_text(several, name) for name in columns)] for label, several in rows.items()]


def score_text(evaluations: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return mean and deviation of a metric over the seeds; "-" where a file of an earlier version lacks it."""
    return mean_and_deviation([each.get(name) for each in evaluations], METRICS[name].per_cent)


def _narrow(
    headings: Sequence[str], cells: Mapping[str, Sequence[str]], widths: Sequence[int], width: int, title: str | None
) -> list[str]:
    """A table too wide for the terminal: each name on a line of its own above its numbers, in parts that fit."""
    parts: list[list[int]] = [[]]
    for number, needed in enumerate(widths):
        if parts[-1] and sum(widths[n] for n in parts[-1]) + needed > width:
            parts.append([])
        parts[-1].append(number)
    lines = [title] if title else []
    for part in parts:
        lines.append("".join(f"{headings[n]:>{widths[n]}}" for n in part))
        for name, texts in cells.items():
            lines += [name, "".join(f"{texts[n]:>{widths[n]}}" for n in part)]
    return lines


def mean_and_deviation(values: Sequence[float | None], per_cent: bool, sign: str = "") -> str:
    """Return text such as 52.0 ± 0.5; the deviation has n - 1 in it, and is left out for a single value.

    A `sign` of "+" is for differences.

    >>> mean_and_deviation([0.51, 0.53], per_cent=True)
    '52.0 ± 1.4'
    """
    present = [value for value in values if value is not None]
    if not present:
        return "-"
    scale, digits = (100, 1) if per_cent else (1, 3)
    mean = f"{scale * statistics.fmean(present):{sign}.{digits}f}"
    return mean if len(present) < 2 else f"{mean} ± {scale * statistics.stdev(present):.{digits}f}"


def shifted_table(evaluations: Sequence[Mapping[str, Any]]) -> Table:
    """Return accuracy under the shifted test sets, as trained and, if possible, adjusted to the prior of each."""
    uses = prior_uses(evaluations)
    table = Table(title="accuracy % under shifted label distributions", title_justify="left")
    for heading in ("test set", "samples", *uses.values()):
        table.add_column(heading, justify="left" if heading == "test set" else "right")
    for rows in zip(*(e["shifted"] for e in evaluations), strict=True):
        cells = (mean_and_deviation([row[key] for row in rows], per_cent=True) for key in uses)
        table.add_row(rows[0]["name"], f"{rows[0]['samples']:,}", *cells)
    return table


def prior_uses(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return keys and headings of the accuracies of shifted test sets; logits that are no posterior have one only."""
    first = evaluations[0]["shifted"][0]
    uses = {"as_trained": "as trained", "adjusted": "adjusted"}
    return {key: heading for key, heading in uses.items() if first[key] is not None}


def counts_table(
    names: Sequence[str],
    counts: Sequence[int],
    groups: Mapping[str, Sequence[bool]],
    further: Mapping[str, Sequence[int]] | None = None,
) -> Table:
    """Return training counts of all classes, the largest first, with their shot group.

    Args:
        names: Names of the classes.
        counts: Training samples of each class.
        groups: Members of each shot group.
        further: Other numbers of each class, by their headings.
    """
    further, table = further or {}, Table()
    for heading in ("class", "samples", *further, "group"):
        table.add_column(heading, justify="left" if heading in ("class", "group") else "right")
    for label in sorted(range(len(names)), key=lambda label: -counts[label]):
        group = next(name for name, members in groups.items() if members[label])
        numbers = (f"{values[label]:,}" for values in (counts, *further.values()))
        table.add_row(names[label], *numbers, group)
    return table
