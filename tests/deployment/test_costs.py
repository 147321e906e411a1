"""Costs are refused in a sentence that names the row."""

import pytest
import torch

from balpoe import UserError
from balpoe.deployment.costs import answer_names, checked_costs

NAMES = ("oak", "ash", "elm")
FINE = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("costs", "answers", "message"),
    [
        ([[0, 1], [1, 0]], None, r"costs have shape \(2, 2\), but there are 3 classes"),
        ([1, 1], None, r"costs have shape \(2,\), but there are 3 classes"),
        (torch.zeros(3, 3, 1), None, r"costs have shape \(3, 3, 1\)"),
        (torch.ones(3, 2), None, "costs have 2 columns, but there are 3 classes"),
        (FINE, ("a", "b"), "costs have 3 columns, but answers has 2 names"),
        ([1, 1, 1], ("a", "b"), "costs have 3 columns, but answers has 2 names"),
        ([[0, 1, 1], [1, 0, torch.nan], [1, 1, 0]], None, r"row 1 of the costs \('ash'\), column 2 is nan"),
        ([1, torch.inf, 1], None, r"row 1 of the costs \('ash'\) is inf"),
        ([1, 1, -2], None, r"row 2 of the costs \('elm'\): missing it costs -2"),
        ([0, 0, 0], None, "all costs are zero"),
        (torch.zeros(3, 4), None, "all costs are zero"),
        ([[0, 1, 1], [1, 3, 2], [1, 1, 0]], None, r"row 1 .*'ash'.*the right answer costs 3, more than 1 for 'oak'"),
        ([[0, "x", 1]], None, "costs must be a table of numbers"),
        (
            [[5, 0], [0, 5], [1, 1]],
            ("elm", "ash"),
            r"row 1 .*\('ash'\): the right answer costs 5, more than 0 for 'elm'",
        ),
    ],
)
def test_bad_costs(costs, answers, message):
    with pytest.raises(UserError, match=message):
        checked_costs(costs, NAMES, answers)


def test_gains_and_other_answers_are_costs_too():
    gains = torch.tensor(FINE).double() - 5
    assert torch.equal(checked_costs(gains, NAMES), gains)
    cheap_to_abstain = [[2, 3, 3, 0], [3, 2, 3, 0], [3, 3, 2, 0]]  # another answer may cost less than the right class
    assert checked_costs(cheap_to_abstain, NAMES).shape == (3, 4)
    assert checked_costs([[0, 1], [1, 0], [1, 0]], NAMES, ("treat", "wait")).shape == (3, 2)


def test_names_may_repeat():
    assert checked_costs([[0, 1], [1, 0]], ("oak", "oak")).shape == (2, 2)
    with pytest.raises(UserError, match=r"row 1 of the costs \('oak'\)"):
        checked_costs([[0, 1], [1, 2]], ("oak", "oak"))


def test_names_of_answers():
    assert answer_names(NAMES, torch.zeros(3, 5)) == (*NAMES, "answer 1", "answer 2")
    assert answer_names(NAMES, torch.zeros(3, 2), ("treat", "wait")) == ("treat", "wait")
