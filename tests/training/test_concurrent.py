import time

import pytest
import torch

from balpoe import BalPoELoss, Dataset, expert_network, fit
from balpoe.training.concurrent import complete, side_by_side
from balpoe.training.fit import fit_and_predict_by_step
from balpoe.training.interrupts import Interrupt
from balpoe.training.settings import FitSettings


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


def test_an_error_lets_the_others_end_and_begins_no_more():
    def wrong():
        yield None
        raise ValueError("no")

    def wrong_aside():
        def raises():
            raise ValueError("no")

        yield raises

    for broken in (wrong(), wrong_aside()):
        log, results = [], []
        with pytest.raises(ValueError, match="no"):
            results.extend(side_by_side([counting("a", 50, log), broken, counting("never", 1, log)], at_once=2))
        assert len(log) == 50
        assert log[-1] == ("a", 49)


@pytest.mark.parametrize("do", [complete, lambda work: list(side_by_side([work], at_once=1))])
def test_work_that_fails_aside_puts_back_what_it_found_at_once(do):
    """Not when the garbage is collected, which would be in the middle of something else."""
    log = []

    def fails():
        raise ValueError("aside")

    def work():
        try:
            yield fails
        finally:
            log.append("put back")

    begun = work()
    with pytest.raises(ValueError, match="aside"):
        do(begun)
    assert log == ["put back"]


def test_work_whose_results_nobody_waits_for_puts_back_what_it_found_at_once():
    log = []

    def work():
        try:
            while True:
                yield lambda: log.append("aside")
        finally:
            log.append("put back")

    begun = work()
    results = side_by_side([begun, counting("b", 3, [])], at_once=2)
    assert next(results) == "b"
    results.close()
    assert log[-1] == "put back"
    assert log.count("put back") == 1


def test_a_real_error_tells_more_than_an_interrupt():
    def interrupted():
        yield None
        raise KeyboardInterrupt

    def wrong():
        yield None
        yield None
        raise ValueError("disk is full")

    with pytest.raises(ValueError, match="disk is full"):
        list(side_by_side([interrupted(), wrong()], at_once=2))


def test_an_interrupt_ends_all_of_them_in_order(tmp_path):
    """Each saves what it has done, and goes on from there."""
    generator = torch.Generator().manual_seed(0)
    data = Dataset(torch.randn(50, 6, generator=generator), torch.arange(50) % 3)
    settings = {"epochs": 4, "batch_size": 16, "lr": 0.05, "device": "cpu", "progress": False}

    steps = [0, 0]

    class CountedLoss(BalPoELoss):
        def forward(self, *args, **kwargs):
            steps[self.seed] += 1
            return super().forward(*args, **kwargs)

    def work(seed, interrupt):
        torch.manual_seed(seed)
        network = expert_network("mlp", num_classes=3, num_experts=3, num_features=6, width=8)
        loss = CountedLoss([17, 17, 16])
        loss.seed = seed
        folder = tmp_path / str(seed)
        return fit_and_predict_by_step(
            network, loss, data, data, FitSettings(seed=seed, run=folder, **settings), interrupt
        )

    def stopping(interrupt):
        while max(steps) < 6:
            yield None
        interrupt.request()

    interrupt = Interrupt()
    with pytest.raises(KeyboardInterrupt, match=r"epoch \d of 4"):
        list(side_by_side([work(0, interrupt), work(1, interrupt), stopping(interrupt)], at_once=3))
    assert max(steps) < 16
    whole = list(side_by_side([work(0, Interrupt()), work(1, Interrupt())], at_once=2))
    assert [len(history) for history, _ in whole] == [4, 4]
    assert [len((tmp_path / str(seed) / "history.jsonl").read_text().splitlines()) for seed in (0, 1)] == [4, 4]


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
    works = [
        fit_and_predict_by_step(*networks[seed], data, data, FitSettings(seed=seed, **settings), Interrupt())
        for seed in range(3)
    ]
    together = [history for history, _ in side_by_side(works, at_once=3)]
    assert sorted(history[-1]["loss"] for history in together) == sorted(history[-1]["loss"] for history, _ in alone)
    for seed, (history, network) in enumerate(alone):
        assert history in together
        pairs = zip(network.state_dict().values(), networks[seed][0].state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
