"""Costs of answers in a file, by the names of classes and answers, which may stand in any order."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from balpoe.data.user.class_names import some_of
from balpoe.deployment.costs import checked_costs
from balpoe.deployment.csv_lines import csv_lines
from balpoe.errors import UserError, unknown_name
from balpoe.files import csv_delimiter, read_text

__all__ = ["FileCosts", "read_costs"]


class FileCosts(NamedTuple):
    """What a file says of costs, in the order of the model's classes."""

    costs: Tensor
    """Cost of missing each class, (classes,), or of each answer to a sample of each class, (classes, answers)."""
    answers: tuple[str, ...] | None
    """Name of each column: the classes that are answers, in their order, then the others; None for a single column."""


def read_costs(path: str | Path, class_names: Sequence[str]) -> FileCosts:
    r"""Return the costs in a .csv, separated by commas, or by semicolons, with which commas may be decimal.

    Args:
        path: File with a line of headings, and a line for each class: its name, then what each answer costs to a sample
            of that class. The headings name the answers: classes, and others such as "abstain". With two columns alone,
            class and cost, it is what missing each class costs.
        class_names: Class names of the model.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "costs.csv").write_text("class,ash,oak,ask\noak,1,0,0.2\nash,0,9,0.2\n")
    ...     found = read_costs(f"{folder}/costs.csv", ("oak", "ash"))
    >>> found.answers, found.costs.tolist()
    (('oak', 'ash', 'ask'), [[0.0, 1.0, 0.2], [9.0, 0.0, 0.2]])
    """
    headings, rows = _lines(Path(path), class_names)
    table = torch.tensor([rows[name].costs for name in class_names], dtype=torch.float64)
    if len(headings) == 1:
        found = FileCosts(table.squeeze(1), None)
    else:
        ours = [name for name in class_names if name in headings]
        answers = (*ours, *(name for name in headings if name not in ours))
        found = FileCosts(table[:, [headings.index(name) for name in answers]], answers)
    try:
        checked_costs(
            found.costs, class_names, found.answers, [f"{rows[name].line} ({name!r})" for name in class_names]
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return found


class _Line(NamedTuple):
    """The costs of one class, and where they stand."""

    line: str
    costs: list[float]


def _lines(path: Path, class_names: Sequence[str]) -> tuple[list[str], dict[str, _Line]]:
    """Headings of the costs, and the line of each class."""
    lines = csv_lines(path)
    if not lines or len(lines[0][1]) < 2:
        raise UserError(f"{path} has no costs; write the headings class,cost and a line for each class")
    headings = lines[0][1][1:]
    if twice := [name for place, name in enumerate(headings) if name in headings[:place] or not name]:
        raise UserError(f"{lines[0][0]}: the heading {twice[0]!r} is empty or there twice; give each answer one name")
    commas = csv_delimiter(read_text(path)) == ";"  # spreadsheets that separate by semicolons write decimal commas
    rows: dict[str, _Line] = {}
    for where, (name, *cells) in lines[1:]:
        if name not in class_names:
            raise UserError(f"{where}: {unknown_name('class', name, class_names)}")
        if name in rows:
            raise UserError(f"{where}: class {name!r} has costs already; keep one line")
        if len(cells) != len(headings):
            raise UserError(
                f"{where}: class {name!r} has {len(cells)} costs, but there are {len(headings)} headings; fix the line"
            )
        numbers = [cell.replace(",", ".") if commas else cell for cell in cells]
        costs = [_number(cell, f"{where}, class {name!r}") for cell in numbers]
        rows[name] = _Line(where.rpartition(", ")[2], costs)
    if missing := [name for name in class_names if name not in rows]:
        raise UserError(f"{path}: there are no costs of {some_of(missing, 5)}; add a line for each class")
    return headings, rows


def _number(cell: str, where: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UserError(f"{where}: {cell!r} is not a number; write what the answer costs") from None
