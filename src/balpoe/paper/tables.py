"""Measured records as Markdown tables, with the paper's numbers below ours."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from balpoe.files import read_json
from balpoe.paper.expected import Cell, Item, Number
from balpoe.paper.not_reproduced import Elsewhere
from balpoe.report.console import mean_and_deviation

__all__ = [
    "differences_table",
    "elsewhere_table",
    "item_table",
    "overview_table",
    "records",
    "shifted_records_table",
    "shifted_rows_table",
]

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
        if found:
            size = found[0]["evaluation"]
            sizes = [f"{size['parameters']:,}", f"{size['multiply_adds'] / 1e6:.1f} M"]
            values = [[record["evaluation"][name] for record in found] for name in COLUMNS]
            scores = [mean_and_deviation(each, per_cent=True) for each in values]
            lines.append(_row([f"{cell.title} (`{cell.command()}`)", _seeds(cell, len(found)), *scores, *sizes]))
        else:
            lines.append(_row([f"{cell.title}: not measured yet, `{cell.command()}`", *[""] * (len(headings) - 1)]))
        if calibrated := [record["calibrated"] for record in found if "calibrated" in record]:
            temperature = mean_and_deviation([each["temperature"] for each in calibrated], per_cent=False)
            after = [mean_and_deviation([each[name] for each in calibrated], per_cent=True) for name in ("ece", "mce")]
            title = f"*the same, with a temperature of {temperature}, fitted on validation pictures*"
            lines.append(_row([title, "", "", "", "", "", *after, "", ""]))
        if cell.paper:
            lines.append(_row(["*paper*", "", *(_printed(cell.paper.get(name)) for name in COLUMNS), "", ""]))
    return "\n".join(lines) + "\n"


def overview_table(methods: Mapping[str, Mapping[str, Cell | None]], results: Path) -> str:
    """Return accuracies of methods (rows) on data sets (columns), the paper's beside ours in brackets."""
    names = list(next(iter(methods.values())))
    lines = [_row(["", *names]), _row(["---"] * (len(names) + 1))]
    for method, cells in methods.items():
        texts = []
        for cell in cells.values():
            found = records(cell, results) if cell else []
            ours = [record["evaluation"]["accuracy"] for record in found]
            paper = f" ({_printed(cell.paper['accuracy'])})" if cell and "accuracy" in cell.paper else ""
            texts.append(mean_and_deviation(ours, per_cent=True) + paper if ours else "-")
        lines.append(_row([method, *texts]))
    return "\n".join(lines) + "\n"


def shifted_records_table(cell: Cell, results: Path) -> str:
    """Return accuracy under the shifted test sets beside the paper's: prior not told, told, or estimated."""
    found = records(cell, results)
    paper = {"not told": cell.shifted.not_told, "told": cell.shifted.told} if cell.shifted else {}
    headings, cells = ["test set", "samples"], []
    first = found[0]["evaluation"]["shifted"]
    cells.append([*(row["name"] for row in first), "*mean of the eleven*"])
    cells.append([*(f"{row['samples']:,}" for row in first), ""])
    for name, seeds in _accuracies(found).items():
        headings.append(f"{name} ({_seeds(cell, len(seeds))} seeds)")
        each = [*zip(*seeds, strict=True), [fmean(values) for values in seeds]]
        cells.append([mean_and_deviation(list(values), per_cent=True) for values in each])
        if name in paper:
            headings.append("paper")
            cells.append([f"{value:.1f}" for value in (*paper[name], fmean(paper[name]))])
    lines = [_row(headings), _row(["---"] * len(headings)), *(_row(list(row)) for row in zip(*cells, strict=True))]
    return "\n".join(lines) + "\n"


def shifted_rows_table(cells: Mapping[str, Cell], results: Path) -> str:
    """Return mean accuracies of several cells under the shifted test sets: a row for each use of the prior."""
    lines: list[str] = []
    for title, cell in cells.items():
        found = records(cell, results)
        if found and not lines:
            sets = [row["name"] for row in found[0]["evaluation"]["shifted"]]
            lines += [_row(["", "seeds", *sets, "mean"]), _row(["---"] * (len(sets) + 3))]
        for use, seeds in _accuracies(found).items():
            means = [fmean(values) for values in zip(*seeds, strict=True)]
            numbers = [f"{100 * value:.1f}" for value in (*means, fmean(means))]
            lines.append(_row([f"{title}, {use}", _seeds(cell, len(seeds)), *numbers]))
    return "\n".join(lines) + "\n"


def differences_table(cells: Iterable[Cell], results: Path) -> str:
    """Return what differs from the paper by more than twice the larger deviation, ours where it prints none."""
    lines, compared = [_row(["", "ours", "paper", "difference"]), _row(["---"] * 4)], 0
    for cell in cells:
        found = records(cell, results)
        for name, values, paper in _compared(cell, found) if len(found) > 1 else ():
            compared += 1
            difference = 100 * fmean(values) - paper[0]
            if abs(difference) > 2 * max(100 * stdev(values), paper[1] or 0):
                ours = mean_and_deviation(values, per_cent=True)
                lines.append(_row([f"{cell.folder}: {name}", ours, _printed(paper), f"{difference:+.1f}"]))
    lines.append(_row([f"*of {compared} numbers*", "", "", ""]))
    return "\n".join(lines) + "\n"


def _compared(cell: Cell, found: list[dict[str, Any]]) -> Iterator[tuple[str, list[float], Number]]:
    """What some records have, seed by seed, and the paper prints: scores, and accuracies on shifted test sets."""
    for name, printed in cell.paper.items():
        yield COLUMNS[name], [record["evaluation"][name] for record in found], printed
    if cell.shifted:
        sets = [row["name"] for row in found[0]["evaluation"]["shifted"]]
        for use, paper in (("not told", cell.shifted.not_told), ("told", cell.shifted.told)):
            for name, values, accuracy in zip(sets, zip(*_accuracies(found)[use], strict=True), paper, strict=True):
                if name != "uniform":  # the accuracy above
                    yield f"{name}, {use}", list(values), (accuracy, None)


def _accuracies(found: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """Of each use of the prior that some records have: their accuracies under the shifted test sets."""
    uses = {
        "not told": [[row["not_told"] for row in record["evaluation"]["shifted"]] for record in found],
        "told": [[row["told"] for row in record["evaluation"]["shifted"]] for record in found],
        "estimated": [[row["estimated"] for row in record["estimated"]] for record in found if "estimated" in record],
    }
    return {use: seeds for use, seeds in uses.items() if seeds}


def elsewhere_table(rows: tuple[Elsewhere, ...]) -> str:
    """Return what is not measured, with its command and what it would take."""
    lines = [_row(["", "seeds", "accuracy", "command", "GPU hours a training"]), _row(["---"] * 5)]
    for row in rows:
        lines.append(_row([row.title, "0", "not measured", f"`balpoe train {row.command}`", f"{row.hours:.1f}"]))
        lines.append(_row(["*paper*", "", f"{row.paper}", "", ""]))
    return "\n".join(lines) + "\n"


def _seeds(cell: Cell, measured: int) -> str:
    return str(measured) if measured == cell.seeds else f"{measured} of {cell.seeds}"


def _printed(number: Number | None) -> str:
    if number is None:
        return "-"
    value, deviation = number
    return f"{value}" if deviation is None else f"{value} ± {deviation}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
