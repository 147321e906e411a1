"""First weights are those of their seed, whatever other threads do with torch's generator meanwhile."""

import contextlib
import threading

import pytest
import torch

from balpoe.training.random_state import first_weights, own_random_state, seed_layers

CPU = torch.device("cpu")


def weights(seed, between=lambda: None):
    with first_weights(seed):
        one = torch.rand(3)
        between()
        return torch.cat([one, torch.rand(3)])


@contextlib.contextmanager
def seeding():
    yield
    seed_layers(CPU, 3, 0, 0)


@pytest.mark.parametrize(
    "other", [seeding, lambda: own_random_state(CPU), lambda: first_weights(2)], ids=["seed", "training", "weights"]
)
def test_other_threads_do_not_change_first_weights(other):
    """What another thread has begun before ends in the middle of drawing, or waits."""
    begun, ended, drawn = threading.Event(), threading.Event(), []

    def between():
        begun.set()
        ended.wait(0.3)  # where it has to wait, it does not end

    thread = threading.Thread(target=lambda: drawn.append(weights(1, between)))
    with other():
        thread.start()
        begun.wait(0.3)  # where it has to wait, it does not begin
    ended.set()
    thread.join()
    assert torch.equal(drawn[0], weights(1))


def test_the_generator_is_left_as_it_was():
    before = torch.get_rng_state()
    weights(1)
    with own_random_state(CPU):
        seed_layers(CPU, 3, 0, 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(weights(1), weights(2))
