"""Posteriors under a deployment prior, block by block."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from balpoe import ConformalSets, Predictions, UserError, shift_prior
from balpoe.deployment import posteriors as subject
from balpoe.deployment.posteriors import Posteriors, label_weights
from made_predictions import make


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(subject, "BLOCK_VALUES", 70)


def whole(posteriors):
    return torch.cat([block for _, block in posteriors.probabilities()])


def test_blocks_are_the_whole_moved_to_the_prior(small_blocks):
    logits, source, target = torch.randn(101, 7), torch.rand(7) + 0.1, torch.rand(7) + 0.1
    source, target = source / source.sum(), target / target.sum()
    posteriors = Posteriors(logits, target, source)
    assert [rows.start for rows, _ in posteriors.logits()] == list(range(0, 101, 10))
    expected = shift_prior(logits.double(), target, source).softmax(dim=1)
    torch.testing.assert_close(whole(posteriors), expected, rtol=1e-5, atol=1e-7)


def test_none_is_uniform():
    posterior = torch.tensor([[0.8, 0.2]]).log()
    torch.testing.assert_close(whole(Posteriors(posterior, None, [0.8, 0.2])), torch.tensor([[0.5, 0.5]]).double())


def test_predictions_know_their_source_prior_and_are_calibrated(small_blocks):
    predictions = make(samples=60, classes=5, lambdas=(1,))
    logits = predictions.logits
    expected = shift_prior(logits, predictions.train_prior, predictions.source_prior).softmax(dim=1).double()
    found = whole(Posteriors(predictions, "train"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    assert Posteriors(predictions).class_names == ("0", "1", "2", "3", "4")


def test_a_mapped_file_is_read(tmp_path, small_blocks):
    table = np.random.default_rng(0).normal(size=(33, 7)).astype("float16")
    np.save(tmp_path / "logits.npy", table)
    mapped = np.load(tmp_path / "logits.npy", mmap_mode="r")
    torch.testing.assert_close(whole(Posteriors(mapped)), torch.tensor(table).double().softmax(dim=1))


def test_label_weights_make_the_samples_stand_for_the_prior():
    targets = torch.tensor([0, 0, 0, 2])  # none of class 1
    predictions = Predictions(torch.zeros(4, 1, 3), targets, [3, 2, 1], [0])
    weights = label_weights(predictions, torch.tensor([0.2, 0.5, 0.3]))
    torch.testing.assert_close(torch.bincount(targets, weights) / 4, torch.tensor([0.4, 0, 0.6]).double())


@pytest.mark.parametrize(
    ("logits", "arguments", "message"),
    [
        (torch.zeros(2, 3, 4), {}, r"must have shape \(samples, classes\), but have \(2, 3, 4\)"),
        (torch.zeros(2, 3).long(), {}, "must be floating-point numbers"),
        (np.zeros((2, 3), dtype=int), {}, "must be floating-point numbers"),
        ([["a"]], {}, "must be a table of numbers"),
        (torch.tensor([[0.0, 1], [torch.nan, 0]]), {}, "logits of sample 1 are not numbers"),
        (torch.tensor([[0.0, -torch.inf]]), {"target_prior": [0, 1]}, "sample 0 .* exclude every class"),
        (torch.zeros(1, 2), {"target_prior": [1.0]}, "target_prior has 1 entries, but there are 2 classes"),
        (torch.zeros(1, 2), {"source_prior": [1.0, 0]}, "source_prior is zero for class 1"),
        (make(samples=20), {"source_prior": [0.05] * 20}, "leave source_prior out"),
        (Predictions(torch.zeros(1, 1, 2), torch.tensor([0]), [2, 1]), {}, "not probabilities for a known class mix"),
    ],
)
def test_bad_input(logits, arguments, message):
    with pytest.raises(UserError, match=message):
        list(Posteriors(logits, **arguments).logits())


def test_nothing_to_weigh():
    predictions = Predictions(torch.zeros(1, 1, 2), torch.tensor([0]), [2, 1], [0])
    with pytest.raises(UserError, match="excludes every class of the labelled samples"):
        label_weights(predictions, torch.tensor([0.0, 1.0]))
    with pytest.raises(UserError, match="no labelled sample"):
        label_weights(predictions.subset(torch.tensor([], dtype=torch.long)), torch.tensor([0.5, 0.5]))


def test_experts_count_by_their_weights():
    """As in `predictions.logits`, and in what the metrics say."""
    weighted = replace(make(samples=200, classes=6), expert_weights=torch.tensor([0.7, 0.2, 0.1]))
    expected = shift_prior(weighted.logits, weighted.train_prior, weighted.source_prior).double().softmax(dim=1)
    torch.testing.assert_close(whole(Posteriors(weighted, "train")), expected, rtol=1e-5, atol=1e-6)
    sets = ConformalSets.fit(weighted)
    assert torch.equal(sets.predict(weighted), sets.predict(weighted.logits))


def test_experts_that_weigh_differently_do_so_here_too():
    generator = torch.Generator().manual_seed(0)
    about = torch.randint(3, (20,), generator=generator), [9, 5, 1], [1, 0]
    logits, weights = torch.randn(20, 2, 3, generator=generator), torch.tensor([0.9, 0.1])
    weighted = Predictions(logits, *about, expert_weights=weights)
    found = torch.cat([block for _, block in Posteriors(weighted, [0.2, 0.3, 0.5]).probabilities()])
    mixed = 0.9 * logits[:, 0] + 0.1 * logits[:, 1]
    expected = shift_prior(mixed.double(), [0.2, 0.3, 0.5], weighted.source_prior).softmax(dim=1)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
