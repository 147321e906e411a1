import pytest
import torch

from balpoe import UserError
from balpoe.networks.memory_halving import in_halves


def machine(most):
    """A function for at most so many rows at once, and the numbers of rows that it was given."""
    given = []

    def outputs(rows):
        given.append(len(rows))
        if len(rows) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return 2 * rows

    return outputs, given


@pytest.mark.parametrize("most", [1, 2, 3, 5, 11])
def test_rows_stay_in_order(most):
    outputs, given = machine(most)
    rows = torch.arange(11.0)
    assert torch.equal(in_halves(outputs, rows), 2 * rows)
    assert sum(number for number in given if number <= most) == 11
    assert given[0] == 11


def test_a_single_row_that_does_not_fit():
    outputs, _ = machine(0)
    with pytest.raises(UserError, match=r"a single sample of shape \(3, 8, 8\) does not fit .*; give a smaller"):
        in_halves(outputs, torch.zeros(4, 3, 8, 8))


def test_other_errors_stay_what_they_are():
    def broken(rows):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        in_halves(broken, torch.zeros(4))
