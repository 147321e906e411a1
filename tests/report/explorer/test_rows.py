"""Rows as a page holds them: what is kept of each, and what the rest has together."""

import base64

import numpy as np
import pytest
import torch

from balpoe.report.explorer.rows import COARSE, DEEPEST, FINE, packed_rows
from made_predictions import make


def shares(packed):
    """Probabilities of what the rows hold."""
    values = torch.exp(-DEEPEST * (packed.codes.double() / packed.levels).square())
    return values / (values.sum(dim=1) + packed.rest)[:, None]


@pytest.mark.parametrize(("levels", "within"), [(COARSE, 0.02), (FINE, 1e-4)])
def test_probabilities_of_kept_classes_are_those_of_the_predictions(levels, within):
    predictions = make(200, 40)
    exact = predictions.logits.double().softmax(dim=1)
    whole = packed_rows(predictions, 200, None, levels)
    torch.testing.assert_close(shares(whole), exact, atol=within, rtol=0)
    part = packed_rows(predictions, 200, 7, levels)
    torch.testing.assert_close(shares(part), exact.gather(1, part.labels), atol=within, rtol=0)
    assert torch.equal(part.labels.sort(dim=1).values, exact.topk(7).indices.sort(dim=1).values)
    assert float(part.spread.sum()) == pytest.approx(1)


def test_the_own_class_is_kept_however_improbable():
    predictions = make(300, 40)
    part = packed_rows(predictions, 300, 5, FINE, with_own=True)
    exact = predictions.logits.double().softmax(dim=1)
    assert bool((part.labels == part.targets[:, None]).any(dim=1).all())
    torch.testing.assert_close(shares(part), exact.gather(1, part.labels), atol=1e-4, rtol=0)
    best_four = exact.topk(4).indices
    assert all(set(four.tolist()) <= set(row.tolist()) for four, row in zip(best_four, part.labels, strict=True))


def test_fewer_samples_are_spread_over_the_classes():
    predictions = make(1000, 10)
    part = packed_rows(predictions, 50, None, COARSE)
    assert torch.bincount(part.targets).tolist() == 10 * [5]
    data = part.data()
    assert len(base64.b64decode(data["codes"])) == 50 * 10
    assert np.frombuffer(base64.b64decode(data["targets"]), np.uint16).tolist() == part.targets.tolist()
    assert "labels" not in data
