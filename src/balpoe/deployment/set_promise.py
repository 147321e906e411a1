"""What prediction sets promise, in words: as much as has been shown, and for whom."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["LEAST_ALPHA", "Promise", "cv_plus_level"]

LEAST_ALPHA = 1e-6
"""Least share of sets that may miss: for less there would have to be more than a million validation samples."""
MOST_NAMED = 5


class Promise(NamedTuple):
    """What a promise depends on; as text, the promise.

    >>> print(Promise(alpha=0.1, method="marginal"))
    At least 90 % of samples have their class in their set, if they come with the class mix of the validation samples.
    """

    alpha: float
    method: str
    mix: str = "validation"
    """Class mix of the new samples: "validation", "known", "counted" (known; counts stand for the validation shares) or
    "estimated"."""
    shortfall: float | None = None
    """How far coverage may fall below 1 - alpha where counts stand for shares; None: not known, and not said."""
    rare: Sequence[str] = ()
    """Classes too rare for what the method does for the others."""
    alone: bool = True
    """Whether the rare classes have enough samples among them for a threshold; otherwise they take that of all."""
    one_pool: bool = False
    """Whether similar classes could not be told, so that all share one threshold."""
    always: Sequence[str] = ()
    """Classes that are in every set."""
    cv_plus: float | None = None
    """What CV+ promises of the networks of all folds; None for one network."""
    cross_fitted: bool = False
    """Whether networks other than the one in use predicted the validation samples."""
    grouped: bool = False
    """Whether validation samples come in groups, such as frames of a track."""
    drawn: bool = False
    """Whether thresholds are drawn at random between neighbouring scores."""

    def __str__(self) -> str:
        sentences = [self._whom(), self._least(), self._rare(), self._always(), self._networks()]
        if self.grouped:
            sentences.append("Validation samples come in groups, and are counted as if each stood alone.")
        if self.drawn:
            sentences.append("Thresholds are drawn, and the promise holds on average over draws.")
        return " ".join(sentence for sentence in sentences if sentence)

    def _level(self, any_mix: bool = False) -> str:
        """How much is promised; where that is for any class mix, the prior has no part in it."""
        careful = self.cross_fitted or self.grouped
        if not any_mix:  # nobody has shown CV+ for weighted samples
            careful = careful or self.mix == "estimated" or (self.cv_plus is not None and self.mix != "validation")
        promised = 1 - self.alpha if self.cv_plus is None else self.cv_plus
        about = "Approximate: about " if self.cv_plus is None else "Approximate: at least about "
        return (about if careful else "At least ") + _percent(promised)

    def _mix(self) -> str:
        return {
            "validation": "if they come with the class mix of the validation samples",
            "known": "if they come with the given prior",
            "counted": (
                "if they come with the given prior and the validation samples were drawn with the class shares that "
                "they have"
            ),
            "estimated": "as far as the estimated prior is right",
        }[self.mix]

    @property
    def _by_pool(self) -> bool:
        return self.method == "pooled" and not self.one_pool

    def _whom(self) -> str:
        if self.method == "per-class":
            level = self._level(any_mix=True)
            return f"{level} of the samples of each class have it in their set, whatever the class mix."
        whom = "the samples of each pool of similar classes" if self._by_pool else "samples"
        found = f"{self._level()} of {whom} have their class in their set, {self._mix()}"
        return found + ("; too few samples tell which classes are alike." if self.one_pool else ".")

    @property
    def is_proven(self) -> bool:
        """Whether there is a level that holds for all shares that counts of the validation samples may come from."""
        careful = self.drawn or self.cross_fitted or self.grouped or self.cv_plus is not None
        return self.mix == "counted" and self.method != "per-class" and not self._by_pool and not careful

    def _least(self) -> str:
        if self.shortfall is None or not self.is_proven:
            return ""
        return f"Whatever those shares were, at least {_percent(1 - self.alpha - self.shortfall)}."

    def _rare(self) -> str:
        if not self.rare:
            return ""
        if self.method == "pooled":
            return f"Too rare to be compared with others: {_named(self.rare)}; nothing is promised of them."
        found = f"Too rare for a threshold of their own: {_named(self.rare)}."
        if not self.alone:
            return f"{found} They take the threshold of all samples, and nothing is promised of them."
        together = "of their samples, taken together, have their class in their set"
        return f"{found} They share one. {self._level()} {together}, {self._mix()}."

    def _always(self) -> str:
        if not self.always:
            return ""
        return f"In every set, as too few validation samples say when to leave it out: {_named(self.always)}."

    def _networks(self) -> str:
        found = []
        if self.cv_plus is not None:
            found.append(f"This is CV+: coverage is near {_percent(1 - self.alpha)} as a rule, though less is proven.")
        if self.cross_fitted:
            found.append(
                "Other networks than the one in use predicted the validation samples: the promise is as good as this "
                "one answers like them."
            )
            if self.cv_plus is None:
                found.append(f"Of sets by those networks CV+ would promise at least {_percent(1 - 2 * self.alpha)}.")
        return " ".join(found)


def cv_plus_level(alpha: float, samples: int, folds: int) -> float:
    """Return the share that CV+ promises with so many validation samples in so many folds (Barber et al. 2021).

    For thresholds by class these are the samples of a class.

    >>> round(cv_plus_level(0.1, 1000, 5), 4)
    0.792
    """
    excess = min(2 * (1 - 1 / folds) / (samples / folds + 1), (1 - min(1, folds / samples)) / (folds + 1))
    return max(0.0, 1 - 2 * alpha - excess)


def _percent(share: float) -> str:
    return f"{max(0.0, 100 * share):.3g} %"


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMED])
    return shown if len(names) <= MOST_NAMED else f"{shown} and {len(names) - MOST_NAMED} more"
