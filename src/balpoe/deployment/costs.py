"""What answers cost: a matrix (classes, answers), or what it costs to miss each class; checked before they are used."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from balpoe.errors import UserError

__all__ = ["ABSTAIN", "answer_names", "checked_costs"]

ABSTAIN = "abstain"


def checked_costs(
    costs: Any, class_names: Sequence[str], answers: Sequence[str] | None = None, rows: Sequence[str] | None = None
) -> Tensor:
    """Return costs in float64, (classes,) or (classes, answers), or say in one sentence what is wrong with them.

    A cost may be negative: a gain. But a right answer must not cost more than a wrong one of the same row.

    Args:
        costs: Cost of missing each class, (classes,), or of each answer to a sample of each class, (classes, answers).
        class_names: Name of each class.
        answers: Name of each answer, if they are not the classes and then others.
        rows: What a sentence calls each row; by default its number and class.

    >>> checked_costs([[0, 1], [float("nan"), 0]], ("oak", "ash"))
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: row 1 of the costs ('ash'), column 0 is nan; give a finite number
    """
    try:
        table = torch.as_tensor(costs, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"costs must be a table of numbers, a row for each class: {error}") from error
    _check_shape(table, class_names, answers)
    named = rows or [f"row {row} of the costs ({name!r})" for row, name in enumerate(class_names)]
    _check_numbers(table, named, answers)
    if table.ndim == 2:
        _check_right_answers(table, class_names, answers, named)
    return table


def answer_names(
    class_names: Sequence[str], costs: Tensor, answers: Sequence[str] | None = None, abstains: bool = False
) -> tuple[str, ...]:
    """Return the name of each answer: those given, or the classes and then others.

    >>> answer_names(("oak", "ash"), torch.zeros(2, 3)), answer_names(("oak", "ash"), torch.ones(2), abstains=True)
    (('oak', 'ash', 'abstain'), ('oak', 'ash', 'abstain'))
    """
    extra = costs.shape[1] - len(class_names) if costs.ndim == 2 else 0
    if answers is not None:
        names = tuple(answers)
    else:
        names = (*class_names, *([ABSTAIN] if extra == 1 else [f"answer {number + 1}" for number in range(extra)]))
    return (*names, ABSTAIN) if abstains else names


def _check_shape(table: Tensor, class_names: Sequence[str], answers: Sequence[str] | None) -> None:
    classes, shape = len(class_names), tuple(table.shape)
    if table.ndim not in (1, 2) or len(table) != classes:
        raise UserError(
            f"costs have shape {shape}, but there are {classes} classes; give ({classes},), the cost of missing each "
            f"class, or ({classes}, answers), a row for each class"
        )
    if answers is not None and (table.ndim == 1 or shape[1] != len(answers)):
        columns = classes if table.ndim == 1 else shape[1]
        raise UserError(f"costs have {columns} columns, but answers has {len(answers)} names; give a column for each")
    if answers is None and table.ndim == 2 and shape[1] < classes:
        raise UserError(
            f"costs have {shape[1]} columns, but there are {classes} classes; give each a column, or name the answers "
            "with answers="
        )


def _check_numbers(table: Tensor, rows: Sequence[str], answers: Sequence[str] | None) -> None:
    wrong = ~table.isfinite()
    if bool(wrong.any()):
        row, *column = wrong.nonzero()[0].tolist()
        place = "".join(f", column {each}" if answers is None else f", answer {answers[each]!r}" for each in column)
        value = float(table[(row, *column)])
        raise UserError(f"{rows[row]}{place} is {value:g}; give a finite number")
    if table.ndim == 1 and bool((table < 0).any()):
        row = int((table < 0).nonzero()[0])
        raise UserError(
            f"{rows[row]}: missing it costs {table[row]:g}, so that a wrong answer would be worth more than the right "
            "one; give a number from 0"
        )
    if not bool(table.any()):
        raise UserError("all costs are zero, so that no answer is better than another; give a class its cost")


def _check_right_answers(
    table: Tensor, class_names: Sequence[str], answers: Sequence[str] | None, rows: Sequence[str]
) -> None:
    """Among the answers that are classes, the right one must cost least."""
    right_of = dict(enumerate(range(len(class_names))))  # the first columns are the classes; names may repeat
    if answers is not None:
        right_of = {row: answers.index(name) for row, name in enumerate(class_names) if name in answers}
    columns = list(right_of.values())
    for row, column in right_of.items():
        right, least = table[row, column], table[row, columns].min()
        if right > least:
            other = columns[int(table[row, columns].argmin())]
            name = class_names[other] if answers is None else answers[other]
            raise UserError(
                f"{rows[row]}: the right answer costs {right:g}, more than {least:g} for {name!r}; a right answer must "
                "cost least"
            )
