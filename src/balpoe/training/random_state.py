"""torch's own generator, which all threads of a process share: who draws from it, and who puts it back.

Order, augmentation and mixing have generators of their own. This one gives first weights, and what layers draw for
themselves, such as dropout.
"""

import contextlib
import threading
from collections.abc import Iterator

import torch

__all__ = ["first_weights", "own_random_state", "seed_layers"]

# While one thread draws first weights, none may seed the generator or put it back. (Layers that draw on a CPU in
# several threads do disturb each other: to make them wait would be to train one network at a time.)
DRAWING = threading.RLock()


@contextlib.contextmanager
def first_weights(seed: int) -> Iterator[None]:
    """Draw the weights that a network begins with by a seed, whatever other threads do; leave the generator as it was.

    Args:
        seed: Seed of the weights.

    >>> with first_weights(0):
    ...     one = torch.nn.Linear(2, 1)
    >>> with first_weights(0):
    ...     other = torch.nn.Linear(2, 1)
    >>> torch.equal(one.weight, other.weight)
    True
    """
    with DRAWING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def seed_layers(device: torch.device, *place: int) -> None:
    """Make what layers draw for themselves a function of where a training is, too.

    Args:
        device: Where the network is.
        place: Seed, epoch, step and the like.
    """
    seed = hash(place) & 0x7FFFFFFFFFFFFFFF
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
        return
    with DRAWING:  # not torch.manual_seed: without a GPU that stores a stack trace at every call, for a GPU to come
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def own_random_state(device: torch.device) -> Iterator[None]:
    """Leave the generator of a device as it was; on a GPU the CPU's is not touched."""
    cuda = device.type == "cuda"
    # First weights are drawn from the CPU's alone: whoever trains on a GPU must not wait for somebody's large network.
    undisturbed = contextlib.nullcontext() if cuda else DRAWING
    with undisturbed:
        state = torch.cuda.get_rng_state(device) if cuda else torch.get_rng_state()
    try:
        yield
    finally:
        with undisturbed:
            if cuda:
                torch.cuda.set_rng_state(state, device)
            else:
                torch.set_rng_state(state)
