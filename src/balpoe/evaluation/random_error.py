"""The ECE that few samples give a calibrated classifier, too: so much of it proves nothing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["RANDOM_FACTOR", "random_error", "random_error_notes"]

RANDOM_FACTOR = 2.0  # times its random error, an ECE proves nothing
WORTH_A_WORD = 0.03  # a smaller ECE needs no excuse


def random_error(bins: Mapping[str, Sequence[float]], samples: float) -> float:
    """Return about the ECE of a calibrated classifier on so many (equally weighted) samples.

    In each bin the gap is the mean of a binomial, whose mean distance from its expectation is
    sqrt(2 / pi) times its deviation.

    Args:
        bins: Share of the samples and mean confidence of each bin.
        samples: Number of samples.

    >>> round(random_error({"share": [0.5, 0.5], "confidence": [0.5, 0.9]}, samples=100), 3)
    0.045
    """
    pairs = zip(bins["share"], bins["confidence"], strict=True)
    return sum(math.sqrt(2 / math.pi * share * mean * (1 - mean) / samples) for share, mean in pairs)


def random_error_notes(evaluation: Mapping[str, Any]) -> list[str]:
    """Return a sentence where an evaluation has too few samples to say that its model is not calibrated.

    Args:
        evaluation: Scores of a run, with its `ece`, `samples` and `reliability`.

    >>> bins = {"share": [0.5, 0.5], "confidence": [0.5, 0.9]}
    >>> random_error_notes({"ece": 0.07, "samples": 100, "reliability": bins})
    ['100 test samples are too few to judge by the ECE: of a perfectly calibrated model it would be about 4.5 %.']
    >>> random_error_notes({"ece": 0.07, "samples": 10_000, "reliability": bins})
    []
    """
    random = random_error(evaluation["reliability"], evaluation["samples"])
    if not WORTH_A_WORD < evaluation["ece"] <= RANDOM_FACTOR * random:
        return []
    return [
        f"{evaluation['samples']:,} test samples are too few to judge by the ECE: of a perfectly calibrated model it "
        f"would be about {100 * random:.1f} %."
    ]
