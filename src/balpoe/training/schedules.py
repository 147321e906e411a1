"""The learning rate as a pure function of the epoch: nothing to store, nothing to restore.

A schedule maps the 0-based epoch and the number of epochs to a factor of the base learning rate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from balpoe.errors import UserError

__all__ = ["Constant", "Cosine", "Linear", "Multistep", "Schedule"]

Schedule = Callable[[float, int], float]


@dataclass(frozen=True)
class Multistep:
    """Multiplied by `factor` at each milestone, a fraction of the epochs.

    The paper's 160 and 180 of 200 epochs, and 320 and 360 of 400, are both (0.8, 0.9).

    >>> [round(0.1 * Multistep(warmup_epochs=5)(epoch, 200), 4) for epoch in (0, 4, 159, 160, 180)]
    [0.02, 0.1, 0.1, 0.01, 0.001]
    """

    milestones: tuple[float, ...] = (0.8, 0.9)
    factor: float = 0.1
    warmup_epochs: int = 0

    def __post_init__(self) -> None:
        if any(not 0 < milestone <= 1 for milestone in self.milestones):
            raise UserError(f"milestones are fractions of the training, above 0 and up to 1, but are {self.milestones}")

    def __call__(self, epoch: float, epochs: int) -> float:
        """Return the factor of the base learning rate in a 0-based epoch."""
        # With a little room: 0.9 * 400 is 360 only up to rounding.
        passed = sum(epoch >= milestone * epochs - 1e-9 for milestone in self.milestones)
        return _warmup(epoch, self.warmup_epochs) * float(self.factor**passed)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine, down to zero after the last epoch.

    >>> [round(Cosine()(epoch, 100), 4) for epoch in (0, 50, 99)]
    [1.0, 0.5, 0.0002]
    """

    warmup_epochs: int = 0

    def __call__(self, epoch: float, epochs: int) -> float:
        """Return the factor of the base learning rate in a 0-based epoch."""
        return _warmup(epoch, self.warmup_epochs) * 0.5 * (1 + math.cos(math.pi * epoch / epochs))


@dataclass(frozen=True)
class Linear:
    """A straight line, down to zero after the last epoch: for short trainings.

    >>> [Linear()(epoch, 100) for epoch in (0, 50, 99)]
    [1.0, 0.5, 0.01]
    """

    warmup_epochs: int = 0

    def __call__(self, epoch: float, epochs: int) -> float:
        """Return the factor of the base learning rate in a 0-based epoch."""
        return _warmup(epoch, self.warmup_epochs) * (epochs - epoch) / epochs


@dataclass(frozen=True)
class Constant:
    """The base learning rate, after the warm-up.

    >>> Constant(warmup_epochs=2)(0, 10)
    0.5
    """

    warmup_epochs: int = 0

    def __call__(self, epoch: float, epochs: int) -> float:
        """Return the factor of the base learning rate in a 0-based epoch."""
        return _warmup(epoch, self.warmup_epochs)


def _warmup(epoch: float, warmup_epochs: int) -> float:
    return min(1.0, (epoch + 1) / warmup_epochs) if warmup_epochs else 1.0
