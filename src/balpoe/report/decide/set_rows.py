"""Held-out and test samples as the page holds them, to make prediction sets anew for any deployment prior.

Thresholds under another prior need the whole posterior of each held-out sample. Both kinds of samples are calibrated by
the other half of the held-out ones; so the page holds the test samples a second time, not all if there are many.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from balpoe.deployment.class_pools import ALL, least_samples, own_pools
from balpoe.deployment.set_promise import Promise
from balpoe.evaluation.predictions import Predictions
from balpoe.report.decide.sets import ALPHAS, METHODS
from balpoe.report.explorer.rows import COARSE, FINE, PackedRows, packed_rows

__all__ = ["set_rows"]

WHOLE_VALUES = 500_000  # samples x classes of whole rows, a byte each
FINE_VALUES = 50_000  # up to here two bytes each
# Samples of which there are no whole rows, and classes of each: held-out ones tell of their own class alone, and test
# samples how many classes are in a set.
HELD_OUT_PART, TEST_PART = (5_000, 30), (2_000, 80)


def set_rows(
    validation: Predictions, test: Predictions, alphas: Sequence[float] = ALPHAS, *, cross_fitted: bool = False
) -> dict[str, Any] | None:
    """Return what sets.js reads; None where the samples are too few for any of the alphas.

    Args:
        validation: Labelled predictions that are new to all that was fitted.
        test: Labelled predictions of the same model, to measure on.
        alphas: Shares of samples whose set may miss their class.
        cross_fitted: Whether networks other than the one in use predicted the validation samples.

    >>> targets = torch.arange(40) % 2
    >>> predictions = Predictions(torch.zeros(40, 1, 2), targets, [500, 5], [0])
    >>> rows = set_rows(predictions, predictions, [0.01, 0.1])
    >>> rows["alphas"], rows["part"], rows["test"]["kept"]
    ([0.1], False, 2)
    """
    alphas = [alpha for alpha in alphas if len(validation) >= least_samples(alpha)]
    if not alphas:
        return None
    held_out = _packed(validation, *HELD_OUT_PART)
    tested = _packed(replace(test, calibration=validation.calibration), *TEST_PART)
    promises = {method: [_promise(validation, method, alpha, cross_fitted) for alpha in alphas] for method in METHODS}
    return {
        "alphas": alphas,
        "methods": {method: list(map(str, found)) for method, found in promises.items()},
        "proven": [method for method, found in promises.items() if found[0].is_proven],
        "part": len(held_out.targets) < len(validation) or held_out.labels is not None or tested.labels is not None,
        "validation": held_out.data(),
        "test": tested.data(),
    }


def _packed(predictions: Predictions, most: int, kept: int) -> PackedRows:
    samples = min(len(predictions), max(most, WHOLE_VALUES // predictions.num_classes))
    values = samples * predictions.num_classes
    levels = FINE if values <= FINE_VALUES else COARSE
    return packed_rows(predictions, samples, None if values <= WHOLE_VALUES else kept, levels, with_own=True)


def _promise(validation: Predictions, method: str, alpha: float, cross_fitted: bool) -> Promise:
    """What is promised under any known prior; the page adds what depends on it."""
    pools = own_pools(validation.targets, validation.num_classes, alpha)
    rare = pools.rare if method == "per-class" else torch.zeros_like(pools.rare)
    return Promise(
        alpha,
        method,
        "counted",
        shortfall=None,
        rare=[validation.class_names[label] for label in rare.nonzero().squeeze(1).tolist()],
        alone=not bool((pools.pool_of == ALL).any()),
        cross_fitted=cross_fitted,
        grouped=validation.groups is not None,
    )
