"""Measured records as Markdown tables, with the paper's numbers below ours."""

from pathlib import Path
from statistics import fmean
from typing import Any

from balpoe.cells import Cell, Item
from balpoe.files import read_json
from balpoe.tables import mean_and_deviation

__all__ = ["item_table", "records", "shifted_records_table"]

COLUMNS = {"accuracy": "accuracy", "many": "many", "medium": "medium", "few": "few", "ece": "ECE", "mce": "MCE"}


def records(cell: Cell, results: Path) -> list[dict[str, Any]]:
    """Return the records of a cell, seed by seed."""
    paths = [results / cell.folder / f"seed-{seed}.json" for seed in range(1, cell.seeds + 1)]
    return [read_json(path) for path in paths if path.exists()]


def item_table(item: Item, results: Path) -> str:
    """Return an item as a table: a row per cell, the paper's numbers below it; without records, the cell's command."""
    headings = ["", "seeds", *(f"{name}" for name in COLUMNS.values()), "parameters", "multiply-adds"]
    lines = [_row(headings), _row(["---"] * len(headings))]
    for cell in item.cells:
        found = records(cell, results)
        if not found:
            lines.append(_row([f"{cell.title}: not measured yet, `{cell.command()}`", *[""] * (len(headings) - 1)]))
            continue
        evaluations = [record["evaluation"] for record in found]
        scores = [mean_and_deviation([e[name] for e in evaluations], per_cent=True) for name in COLUMNS]
        size = [f"{evaluations[0]['parameters']:,}", f"{evaluations[0]['multiply_adds'] / 1e6:.1f} M"]
        lines.append(_row([f"{cell.title} (`{cell.command()}`)", _seeds(cell, len(found)), *scores, *size]))
        if cell.paper:
            lines.append(_row(["*paper*", "", *(_printed(cell, name) for name in COLUMNS), "", ""]))
    return "\n".join(lines) + "\n"


def shifted_records_table(cell: Cell, results: Path) -> str:
    """Return accuracy under the shifted test sets: prior not told, told, and, where it is recorded, estimated."""
    found = records(cell, results)
    evaluations = [record["evaluation"]["shifted"] for record in found]
    estimates = [record["estimated"] for record in found if "estimated" in record]
    seeds = f"estimated ({len(estimates)} seeds)"
    lines = [_row(["test set", "samples", "not told", "told", seeds]), _row(["---"] * 5)]
    for number, first in enumerate(evaluations[0]):
        told = [mean_and_deviation([rows[number][key] for rows in evaluations], True) for key in ("not_told", "told")]
        estimated = mean_and_deviation([rows[number]["estimated"] for rows in estimates], per_cent=True)
        lines.append(_row([first["name"], f"{first['samples']:,}", *told, estimated]))
    columns = [[fmean(row[key] for row in rows) for rows in evaluations] for key in ("not_told", "told")]
    columns.append([fmean(row["estimated"] for row in rows) for rows in estimates])
    lines.append(_row(["*mean of the eleven*", "", *(mean_and_deviation(values, per_cent=True) for values in columns)]))
    return "\n".join(lines) + "\n"


def _seeds(cell: Cell, measured: int) -> str:
    return str(measured) if measured == cell.seeds else f"{measured} of {cell.seeds}"


def _printed(cell: Cell, name: str) -> str:
    if name not in cell.paper:
        return "-"
    value, deviation = cell.paper[name]
    return f"{value}" if deviation is None else f"{value} ± {deviation}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
