"""SADE with its test-time part (Zhang et al. 2022): weights of the experts, learnt from unlabelled test images.

Training is that of `sade`. Then two views are made of each test image x, and with expert logits v_e of these

    w = argmax  mean_x cos( p(x'), p(x'') ),    p = softmax( sum_e w_e v_e ),    w >= 0, sum_e w_e = 1:

those weights under which the ensemble says most nearly the same about both views. Experts are steadiest on the classes
that they are good at, so that the weights follow the class frequencies of the test images, which nobody tells. What is
predicted is the weighted ensemble on the very images that the weights were learnt from: it is transductive.

The paper follows the gradient for some epochs; here the maximum itself is found, from equal weights.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from balpoe.baselines.sade import METHOD as SADE
from balpoe.data.augment.operations import ColourJitter, Crop, Flip, Operation
from balpoe.errors import UserError
from balpoe.method.ensemble import product_of_experts

__all__ = ["METHOD", "agreeing_weights", "agreement", "view_operations"]

LEAST_WEIGHT = 0.05  # where the authors' code stops learning, lest all weight goes to one expert
BLOCK_VALUES = 2**20  # logits of a view that are looked at together


def agreement(first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
    """Return how alike the weighted ensemble is on two views of each sample, (samples,): 1 for the same.

    Args:
        first: Expert logits of the first views, (samples, experts, classes).
        second: Expert logits of the second views, as many.
        weights: Weights of the experts, (experts,), which sum to 1.

    >>> first, second = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]]), torch.tensor([[[0.0, 2.0], [0.0, 0.0]]])
    >>> agreement(first, second, torch.tensor([1.0, 0.0])), agreement(first, second, torch.tensor([0.5, 0.5]))
    (tensor([0.2658]), tensor([0.6481]))
    """
    ours, theirs = (product_of_experts(view, weights).softmax(dim=1) for view in (first, second))
    return F.cosine_similarity(ours, theirs, dim=1)


def agreeing_weights(first: Tensor, second: Tensor, least: float = LEAST_WEIGHT) -> Tensor:
    """Return the weights of the experts with which an ensemble agrees most on two views, (experts,), in float32.

    Args:
        first: Expert logits of the first views, (samples, experts, classes).
        second: Expert logits of the second views, as many.
        least: Least weight of an expert.

    >>> generator = torch.Generator().manual_seed(0)
    >>> steady, noise = torch.randn(50, 1, 4, generator=generator), torch.randn(2, 50, 1, 4, generator=generator)
    >>> agreeing_weights(*(torch.cat([3 * steady, each], dim=1) for each in noise))
    tensor([0.9500, 0.0500])
    """
    if first.shape != second.shape or first.ndim != 3:
        raise UserError(
            f"two views must have expert logits of one shape, (samples, experts, classes), but have "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    from scipy.optimize import minimize  # on first use: a tenth of a second

    samples, experts, _ = first.shape
    equal = np.full(experts, 1 / experts)
    if experts == 1 or not samples:
        return torch.from_numpy(equal).float()
    sums_to_one = {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(experts)}
    found = minimize(
        functools.partial(_disagreement, first, second), equal, jac=True, method="SLSQP",
        bounds=[(min(least, 1 / experts), 1.0)] * experts, constraints=[sums_to_one], options={"ftol": 1e-9},
    )  # fmt: skip
    weights = torch.from_numpy(found.x).float()
    return weights / weights.sum()


def _disagreement(first: Tensor, second: Tensor, values: np.ndarray) -> tuple[float, np.ndarray]:
    """One less the mean agreement, and its slopes by the weights; block by block.

    With u = p / |p| of one view and u'' of the other, the slope of their cosine by the logits of p is
    u (u'' - cosine * u): the softmax adds nothing, as p (u'' - cosine * u) sums to 0.
    """
    weights = torch.from_numpy(values)
    total, slopes = 0.0, torch.zeros_like(weights)
    rows = max(1, BLOCK_VALUES // first[0].numel())
    for pair in zip(first.split(rows), second.split(rows), strict=True):
        one, other = (view.double() for view in pair)
        u, v = (F.normalize(product_of_experts(view, weights).softmax(dim=1), dim=1) for view in (one, other))
        cosine = (u * v).sum(dim=1, keepdim=True)
        total += float(cosine.sum())
        slopes += torch.einsum("bc,bec->e", u * (v - cosine * u), one)
        slopes += torch.einsum("bc,bec->e", v * (u - cosine * v), other)
    return 1 - total / len(first), -(slopes / len(first)).numpy()


def view_operations(size: Sequence[int]) -> Sequence[Operation]:
    """Return what makes a view of an image: shifted by up to an eighth of its side, mirrored or not, other colours.

    >>> view_operations((3, 32, 32))[0]
    Crop(padding=4)
    """
    return Crop(size[-1] // 8), Flip(), ColourJitter()


METHOD = replace(SADE, test_views=view_operations)
