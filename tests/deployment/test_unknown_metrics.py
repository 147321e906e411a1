"""AUROC and FPR at 95 % against scikit-learn's curve."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from balpoe.deployment.unknown_metrics import auroc, auroc_interval, fpr_at_tpr, unknown_report
from balpoe.errors import UserError


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 60), st.sampled_from([0.5, 0.9, 0.95]))
def test_against_scikit_learn(seed, known, unknown, tpr):
    generator = torch.Generator().manual_seed(seed)
    lower = torch.randn(known, generator=generator).round(decimals=1)  # with ties
    higher = (1 + torch.randn(unknown, generator=generator)).round(decimals=1)
    labels, scores = np.repeat([0, 1], [known, unknown]), torch.cat([lower, higher]).numpy()
    assert auroc(lower, higher) == pytest.approx(roc_auc_score(labels, scores))
    fpr, found, _ = roc_curve(1 - labels, -scores, drop_intermediate=False)
    assert fpr_at_tpr(lower, higher, tpr) == pytest.approx(fpr[np.argmax(found >= tpr - 1e-9)])


def test_interval_covers():
    """DeLong's interval holds the true AUROC of two Gaussians one apart, 0.760, 95 times of 100."""
    generator = torch.Generator().manual_seed(0)
    truth = float(torch.special.ndtr(torch.tensor(0.5**0.5)))
    inside = 0
    for _ in range(400):
        known, unknown = torch.randn(80, generator=generator), 1 + torch.randn(50, generator=generator)
        low, high = auroc_interval(known, unknown)
        inside += low <= truth <= high
    assert 0.92 <= inside / 400 <= 0.98
    assert auroc_interval(torch.tensor([0.0]), torch.tensor([1.0]))[0] < 0.7


def test_report_by_shot_group():
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(600) % 3
    known = torch.randn(600, generator=generator) + targets  # the rarest class looks most unknown
    unknown = 3 + torch.randn(200, generator=generator)
    report = unknown_report(known, targets, [500, 50, 5], unknown)
    assert list(report) == ["all", "many", "medium", "few"]
    assert report["many"]["auroc"] > report["medium"]["auroc"] > report["few"]["auroc"]
    assert report["few"]["auroc"] == auroc(known[targets == 2], unknown)
    assert report["few"]["fpr"] == fpr_at_tpr(known[targets == 2], unknown)
    assert report["all"]["kept"] == pytest.approx(0.95, abs=1e-3)
    assert report["few"]["kept"] < 0.9 < report["many"]["kept"]
    assert report["few"]["samples"] == 200
    half = unknown_report(known, targets, [500, 50, 5], unknown, threshold=float(known.median()))
    assert half["all"]["kept"] == pytest.approx(0.5, abs=0.01)
    assert list(unknown_report(known, targets, [500, 50, 50], unknown)) == ["all", "many", "medium"]


@pytest.mark.parametrize("wrong", [torch.zeros(0), torch.zeros(2, 2), torch.tensor([torch.nan])])
def test_bad_scores(wrong):
    with pytest.raises(UserError, match="scores of unknown samples must be a row of numbers"):
        auroc(torch.zeros(3), wrong)
