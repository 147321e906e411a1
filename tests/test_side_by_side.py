import time

import pytest
import torch

from balpoe import BalPoELoss, Dataset, expert_network, fit
from balpoe.interrupts import Interrupt
from balpoe.side_by_side import complete, side_by_side
from balpoe.training import fit_by_step


def counting(name, steps, log):
    for step in range(steps):
        log.append((name, step))
        yield None
    return name


def test_turns_are_taken():
    log = []
    works = [counting("a", 2, log), counting("b", 4, log), counting("c", 1, log)]
    assert list(side_by_side(works, at_once=2)) == ["a", "b", "c"]
    assert log == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2), ("b", 3), ("c", 0)]


def test_work_is_taken_when_there_is_room():
    taken = []

    def works():
        for number in range(3):
            taken.append(number)
            yield counting(number, 1, [])

    results = side_by_side(works(), at_once=1)
    assert next(results) == 0
    assert taken == [0]
    assert list(results) == [1, 2]


def test_what_takes_long_is_done_aside():
    log = []

    def slow():
        time.sleep(0.2)
        log.append("slow")

    def with_a_pause():
        yield slow
        log.append("after")
        return "paused"

    assert list(side_by_side([with_a_pause(), counting("b", 3, log)], at_once=2)) == ["b", "paused"]
    assert log == [("b", 0), ("b", 1), ("b", 2), "slow", "after"]
    assert complete(with_a_pause()) == "paused"


def test_an_error_closes_the_others():
    closed = []

    def patient():
        try:
            while True:
                yield None
        finally:
            closed.append(True)

    def wrong():
        yield None
        raise ValueError("no")

    def wrong_aside():
        yield wrong_function

    def wrong_function():
        raise ValueError("no")

    for broken in (wrong(), wrong_aside()):
        with pytest.raises(ValueError, match="no"):
            list(side_by_side([patient(), broken], at_once=2))
    assert closed == [True, True]


def test_trainings_side_by_side_are_those_alone():
    """Bit for bit: they share nothing but the device."""
    generator = torch.Generator().manual_seed(0)
    data = Dataset(torch.randn(50, 6, generator=generator), torch.arange(50) % 3)
    settings = {"epochs": 3, "batch_size": 16, "lr": 0.05, "device": "cpu", "progress": False}

    def parts(seed):
        torch.manual_seed(seed)
        return expert_network("mlp", num_classes=3, num_experts=3, num_features=6, width=8), BalPoELoss([17, 17, 16])

    alone, together = [], []
    for seed in range(3):
        network, loss = parts(seed)
        alone.append((fit(network, loss, data, seed=seed, **settings), network))
    networks = [parts(seed) for seed in range(3)]
    works = [fit_by_step(*networks[seed], data, Interrupt(), seed=seed, **settings) for seed in range(3)]
    together = list(side_by_side(works, at_once=3))
    for seed, (history, network) in enumerate(alone):
        assert together[seed] == history
        pairs = zip(network.state_dict().values(), networks[seed][0].state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
