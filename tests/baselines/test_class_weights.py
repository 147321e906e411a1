"""Weights of classes against the formula of the effective number of samples."""

import pytest
import torch

from balpoe import UserError
from balpoe.baselines.class_weights import effective_number_weights, hard_labels, sample_weights, weights_from

COUNTS = torch.tensor([500.0, 100.0, 20.0, 5.0], dtype=torch.float64)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.9999])
def test_weights_by_effective_numbers(beta):
    plain = [(1 - beta) / (1 - beta**n) for n in COUNTS.tolist()]
    found = effective_number_weights(COUNTS, beta)
    assert found.tolist() == pytest.approx([4 * each / sum(plain) for each in plain], rel=1e-9)
    mean = sum(n * w for n, w in zip(COUNTS.tolist(), plain, strict=True)) / 625
    assert sample_weights(COUNTS, beta).tolist() == pytest.approx([each / mean for each in plain], rel=1e-9)


def test_a_class_without_samples_has_the_weight_of_one_sample():
    assert torch.equal(
        effective_number_weights(torch.tensor([9, 0]), 0.999), effective_number_weights(torch.tensor([9, 1]), 0.999)
    )
    assert bool(sample_weights(torch.tensor([9, 0]), 0.999).isfinite().all())


@pytest.mark.parametrize("epochs", [5, 10, 40, 200, 400, 1600])
def test_deferred_weights_begin_with_an_epoch(epochs):
    weights, first = torch.tensor([0.5, 1.5]), epochs * 4 // 5
    for number in (float, torch.tensor):  # a float of an eager step, a number on the device of a captured one
        before, begun = (number((first + part) / epochs) for part in (-0.01, 0.0))
        assert weights_from(0.8, weights, before).tolist() == [1, 1]
        assert torch.equal(weights_from(0.8, weights, begun), weights)
    assert weights_from(0.8, weights, None).tolist() == [1, 1]
    assert torch.equal(weights_from(0.0, weights, 0.0), weights)


def test_probabilities_are_no_labels():
    with pytest.raises(UserError, match=r"the loss of LDAM wants labels of shape \(batch,\), but targets have shape"):
        hard_labels(torch.full((2, 4), 0.25), "LDAM")
