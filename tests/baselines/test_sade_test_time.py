"""SADE's weights of the experts: the formula by a slow loop, and the maximum by trying all weights."""

import itertools
import math

import pytest
import torch

from balpoe import UserError
from balpoe.baselines import sade_test_time
from balpoe.baselines.sade_test_time import agreeing_weights, agreement, view_operations
from balpoe.data.augment.operations import Crop


def views(samples=60, experts=3, classes=5, noise=(0.5, 1.0, 2.0), seed=0):
    """Two views whose logits differ by an expert's own noise."""
    generator = torch.Generator().manual_seed(seed)
    shape = samples, experts, classes
    common = 3 * torch.randn(shape, generator=generator)
    spread = torch.tensor(noise)[:experts, None]
    return tuple(common + spread * torch.randn(shape, generator=generator) for _ in range(2))


def slow_agreement(first, second, weights):
    """The paper's formula, one sample and one class at a time."""
    total = 0.0
    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        predictions = []
        for experts in (one, other):
            logits = [sum(w * v[c] for w, v in zip(weights, experts, strict=True)) for c in range(len(experts[0]))]
            sums = sum(math.exp(logit) for logit in logits)
            predictions.append([math.exp(logit) / sums for logit in logits])
        p, q = predictions
        norms = math.sqrt(sum(a * a for a in p) * sum(b * b for b in q))
        total += sum(a * b for a, b in zip(p, q, strict=True)) / norms
    return total / len(first)


def simplex(steps):
    return [torch.tensor([i, j, steps - i - j]) / steps for i in range(steps + 1) for j in range(steps + 1 - i)]


def test_the_agreement_is_the_paper_s_formula():
    first, second = views(samples=7)
    for weights in ([1 / 3] * 3, [0.2, 0.5, 0.3], [1.0, 0.0, 0.0]):
        found = agreement(first.double(), second.double(), torch.tensor(weights, dtype=torch.float64))
        assert float(found.mean()) == pytest.approx(slow_agreement(first, second, weights), rel=1e-9)


def test_the_slopes_are_those_of_the_formula():
    first, second = (view.double() for view in views(samples=9))
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64, requires_grad=True)
    agreement(first, second, weights).mean().backward()
    value, slopes = sade_test_time._disagreement(first, second, weights.detach().numpy())
    assert value == pytest.approx(1 - float(agreement(first, second, weights.detach()).mean()))
    assert slopes.tolist() == pytest.approx((-weights.grad).tolist(), rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_no_weights_agree_more(seed):
    first, second = views(seed=seed)
    found = agreeing_weights(first, second, least=0.0)
    assert float(found.sum()) == pytest.approx(1)
    reached = float(agreement(first, second, found).mean())
    tried = {tuple(weights.tolist()): float(agreement(first, second, weights).mean()) for weights in simplex(40)}
    assert reached >= max(tried.values()) - 1e-6
    best = torch.tensor(max(tried, key=tried.get))
    assert float((best - found).abs().max()) < 0.05
    assert reached > tried[min(tried, key=tried.get)] + 0.01  # there was something to find


def test_a_steadier_expert_gets_more_weight_and_none_gets_nothing():
    found = agreeing_weights(*views(noise=(0.1, 1.5, 3.0)))
    assert found[0] > found[1] > found[2] - 1e-6
    assert float(found.min()) >= 0.05 - 1e-6
    assert found.dtype == torch.float32


def test_blocks_change_nothing(monkeypatch):
    first, second = views()
    whole = agreeing_weights(first, second)
    monkeypatch.setattr(sade_test_time, "BLOCK_VALUES", 7 * 15)
    torch.testing.assert_close(agreeing_weights(first, second), whole, atol=1e-5, rtol=0)


def test_order_of_views_and_of_samples_makes_no_difference():
    first, second = views()
    whole = agreeing_weights(first, second)
    torch.testing.assert_close(agreeing_weights(second, first), whole, atol=1e-4, rtol=0)
    order = torch.randperm(len(first), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(agreeing_weights(first[order], second[order]), whole, atol=1e-4, rtol=0)


def test_half_precision_and_logits_of_inference_are_taken():
    first, second = views()
    with torch.inference_mode():
        pair = [view.half() for view in (first, second)]
        inside = agreeing_weights(*pair)
    torch.testing.assert_close(inside, agreeing_weights(first, second), atol=1e-2, rtol=0)


def test_one_expert_and_no_sample():
    assert agreeing_weights(*(view[:, :1] for view in views())).tolist() == [1.0]
    assert agreeing_weights(*(view[:0, :2] for view in views())).tolist() == [0.5, 0.5]


def test_views_of_two_shapes_are_refused():
    first, second = views()
    for wrong in itertools.permutations((first, second[:-1])):
        with pytest.raises(UserError, match="two views must have expert logits of one shape"):
            agreeing_weights(*wrong)


def test_a_view_is_shifted_by_up_to_an_eighth():
    assert [view_operations((3, side, side))[0] for side in (32, 224, 8)] == [Crop(4), Crop(28), Crop(1)]
