"""Results as tables on a terminal: rows of scores, mean and deviation over seeds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["console", "counts_table", "scores_table", "shifted_table"]

COLUMNS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "many": "many",
    "medium": "medium",
    "few": "few",
    "ece": "ECE",
    "mce": "MCE",
    "nll": "NLL",
    "brier": "Brier",
}
IN_PER_CENT = frozenset({"accuracy", "balanced_accuracy", "many", "medium", "few", "ece", "mce"})


def console() -> Console:
    """Return standard output: as wide as the terminal, and wide enough for a table where there is none.

    Markup is off: what is in brackets may be somebody's class name.
    """
    width = None if Console().is_terminal else 140
    return Console(width=width, markup=False, highlight=False, soft_wrap=True)


def scores_table(
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    columns: Sequence[str] = tuple(COLUMNS),
    title: str | None = None,
    extra: Mapping[str, Mapping[str, str]] | None = None,
) -> Table:
    """Return a table of scores: a row per name, each the mean of one or several evaluations.

    Args:
        rows: From the row's name to its evaluations (as dictionaries), one per seed.
        columns: Names of scores.
        title: Over the table.
        extra: Further columns: from their heading to the text of each row.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in columns:
        table.add_column(COLUMNS[column] + (" %" if column in IN_PER_CENT else ""), justify="right", no_wrap=True)
    for heading in extra or {}:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, evaluations in rows.items():
        cells = [mean_and_deviation([e[column] for e in evaluations], column in IN_PER_CENT) for column in columns]
        table.add_row(name, *cells, *(texts[name] for texts in (extra or {}).values()))
    return table


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
    """Return accuracy under the shifted test sets, prior not told and told."""
    table = Table(title="accuracy % under shifted label distributions", title_justify="left")
    for heading in ("test set", "samples", "prior not told", "prior told"):
        table.add_column(heading, justify="left" if heading == "test set" else "right")
    for rows in zip(*(e["shifted"] for e in evaluations), strict=True):
        cells = (mean_and_deviation([row[key] for row in rows], per_cent=True) for key in ("not_told", "told"))
        table.add_row(rows[0]["name"], f"{rows[0]['samples']:,}", *cells)
    return table


def counts_table(names: Sequence[str], counts: Sequence[int], groups: Mapping[str, Sequence[bool]]) -> Table:
    """Return training counts of all classes, the largest first, with their shot group."""
    table = Table()
    for heading in ("class", "samples", "group"):
        table.add_column(heading, justify="right" if heading == "samples" else "left")
    for label in sorted(range(len(names)), key=lambda label: -counts[label]):
        group = next(name for name, members in groups.items() if members[label])
        table.add_row(names[label], f"{counts[label]:,}", group)
    return table
