"""How ill a class fits a sample, for prediction sets: any fixed function is valid, a good one gives small sets."""

from dataclasses import dataclass

import torch
from torch import Tensor

from balpoe.errors import UserError, unknown_name

__all__ = ["SCORES", "SetScore", "checked_logits"]

SCORES = ("probability", "aps")
SPREAD = 1e4  # of the sum from whose digits a sample's random number is made


@dataclass(frozen=True, eq=False)
class SetScore:
    """A score of each class for each sample, from logits; low for classes that fit.

    "probability" is minus the log posterior, which gives the sets of 1 - p (least ambiguous sets, Sadinle et al. 2019).
    "aps" is the probability of all classes that are likelier, and of a random part of the class itself (adaptive
    prediction sets, Romano et al. 2020). That random part is a fixed function of the sample's logits and the seed: a
    sample gets the same set in any batch.

    Args:
        name: "probability" or "aps".
        move: Addition to the logits that takes them to the prior of the scores, (classes,).
        prevalence: Addition to minus the log posterior, (classes,): a power of the prior, in logarithms; zero without.
        seed: Seed of the random parts.

    >>> SetScore("probability", torch.zeros(2), torch.zeros(2))(torch.tensor([[0.0, 0.0]])).exp()
    tensor([[2., 2.]])
    """

    name: str
    move: Tensor
    prevalence: Tensor
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in SCORES:
            raise unknown_name("score of sets", self.name, SCORES)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.move)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the scores, (samples, classes), in float64; infinite for a class that the prior excludes."""
        logits = checked_logits(logits, self.num_classes).to(self.move)  # in float64, on the CPU
        log_p = (logits + self.move).log_softmax(dim=1)
        if self.name == "probability":
            return (self.prevalence - log_p).masked_fill_(self.move == -torch.inf, torch.inf)
        p, order = log_p.exp().sort(dim=1, descending=True, stable=True)
        scores = p.cumsum(dim=1).sub_(p * (1 - _random_part(logits, self.seed)))
        return torch.empty_like(scores).scatter_(1, order, scores).masked_fill_(self.move == -torch.inf, torch.inf)


def checked_logits(logits: Tensor, num_classes: int) -> Tensor:
    """Return logits (samples, classes) whose rows have a posterior, or say what is wrong with them."""
    if logits.ndim != 2 or logits.shape[1] != num_classes:
        raise UserError(
            f"logits must have shape (samples, {num_classes}) for these {num_classes} classes, "
            f"but have {tuple(logits.shape)}; give the ensemble's logits of the same model"
        )
    wrong = logits.isnan().any(dim=1) | (logits.amax(dim=1).isinf() if logits.numel() else False)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise UserError(f"the logits of sample {row} are not numbers, or infinite; check the network that gave them")
    return logits


def _random_part(logits: Tensor, seed: int) -> Tensor:
    """A number from 0 to 1 for each sample, (samples, 1), from the last digits of its logits."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randn(logits.shape[1], generator=generator, dtype=torch.float64).to(logits.device)
    sums = SPREAD * (logits.nan_to_num(neginf=0.0) * factors).sum(dim=1, keepdim=True)
    return sums - sums.floor()
