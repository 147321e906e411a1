import math

import pytest

from balpoe import UserError
from balpoe.training.schedules import Constant, Cosine, Linear, Multistep


def test_the_papers_standard_schedule_epoch_by_epoch():
    schedule = Multistep(warmup_epochs=5)
    rates = [0.1 * schedule(epoch, 200) for epoch in range(200)]
    expected = [0.02, 0.04, 0.06, 0.08] + [0.1] * 156 + [0.01] * 20 + [0.001] * 20
    assert rates == pytest.approx(expected)


def test_the_papers_long_schedule():
    schedule = Multistep(warmup_epochs=10)
    rates = [schedule(epoch, 400) for epoch in range(400)]
    assert rates[:10] == pytest.approx([(epoch + 1) / 10 for epoch in range(10)])
    assert [rates[epoch] for epoch in (10, 319, 320, 359, 360, 399)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_cosine_of_the_large_data_sets():
    for epochs, lr, last in ((180, 0.025, 1.9e-6), (100, 0.2, 4.9e-5)):
        rates = [lr * Cosine()(epoch, epochs) for epoch in range(epochs)]
        assert rates == pytest.approx([0.5 * lr * (1 + math.cos(math.pi * e / epochs)) for e in range(epochs)])
        assert rates[-1] == pytest.approx(last, rel=0.02)


def test_constant_and_warmup():
    assert [Constant(warmup_epochs=4)(epoch, 10) for epoch in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert Constant()(0, 1) == 1.0


def test_linear():
    assert [Linear()(epoch, 8) for epoch in range(8)] == [1 - epoch / 8 for epoch in range(8)]
    assert [Linear(warmup_epochs=2)(epoch, 4) for epoch in range(4)] == [0.5, 0.75, 0.5, 0.25]


def test_milestones_are_fractions():
    with pytest.raises(UserError, match="fractions"):
        Multistep(milestones=(160, 180))
