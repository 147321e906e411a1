"""TLC (Li et al. 2022): evidential experts, of which the later ones learn from samples that are still uncertain.

An expert's logits v are logarithms of evidence: e_j = e^(v_j), a Dirichlet distribution with alpha_j = e_j + 1, whose
uncertainty is u = C / sum_j alpha_j, C classes. With the margins of LDAM (`ldam`) and the diversity of RIDE (`ride`),

    loss_e = -w_y log softmax(v_e with margins)_y + progress * evidence * KL( Dir(alpha without the label's) || Dir(1) )
             - diversity * divergence of expert e from the mean of all,

averaged over the samples that expert e is engaged in, and summed over the experts. Expert e is engaged where what the
experts before it leave uncertain, combined by Dempster's rule, is above a share of the largest in the batch:

    U_1 = 1,   U_(e+1) = U_e * u_e / (1 - conflict),   conflict = sum_{j != k} b_j b'_k,   b_j = e_j / sum_k alpha_k,

where b' is the belief of the expert before, and the first has no conflict. In prediction the experts are averaged.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balpoe.baselines.class_weights import (
    at_label,
    effective_number_weights,
    equal_shares,
    hard_labels,
    is_label,
    weights_from,
)
from balpoe.baselines.ldam import ldam_margins, with_margins
from balpoe.baselines.method import Method, MethodInputs
from balpoe.baselines.ride import divergence_from_mean, diversity_temperatures
from balpoe.method.ensemble import at_least_float32

__all__ = ["METHOD", "TLCLoss", "divergence_from_ignorance", "left_uncertain"]

MOST_EVIDENCE = 40.0  # a logit; e^40 squared is still a number in float32
SERIES_FROM = 10.0  # where the asymptotic series are exact to 1e-8


def divergence_from_ignorance(log_evidence: Tensor) -> Tensor:
    """Return KL( Dir(1 + e^x) || Dir(1) ) over the last axis, (...).

    The usual formula subtracts numbers as large as the evidence; here Stirling's formula has taken these out, as
    their sum is 0, so that float32 is enough.

    Args:
        log_evidence: Logarithm of each class's evidence, (..., classes); -inf for none.

    >>> divergence_from_ignorance(torch.tensor([-torch.inf, -torch.inf])), divergence_from_ignorance(torch.zeros(2))
    (tensor(0.), tensor(0.1251))
    """
    evidence = log_evidence.clamp(max=MOST_EVIDENCE).exp()
    alpha = 1 + evidence
    classes, total = alpha.shape[-1], alpha.sum(dim=-1)
    logs = (classes - 0.5) * total.log() - 0.5 * alpha.log().sum(dim=-1)
    fixed = (1 - classes) * 0.5 * math.log(2 * math.pi) - math.lgamma(classes)
    rests = _lgamma_rest(total) - _lgamma_rest(alpha).sum(dim=-1)
    slopes = (evidence * _digamma_rest(alpha)).sum(dim=-1) - evidence.sum(dim=-1) * _digamma_rest(total)
    return logs + fixed + rests + slopes


def _lgamma_rest(x: Tensor) -> Tensor:
    """Log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2), for x from 1."""
    near, far = x.clamp(max=SERIES_FROM), 1 / x.clamp(min=SERIES_FROM)
    exact = torch.lgamma(near) - (near - 0.5) * near.log() + near - 0.5 * math.log(2 * math.pi)
    return torch.where(x < SERIES_FROM, exact, far / 12 - far**3 / 360)


def _digamma_rest(x: Tensor) -> Tensor:
    """digamma(x) - log x, for x from 1."""
    near, far = x.clamp(max=SERIES_FROM), 1 / x.clamp(min=SERIES_FROM)
    return torch.where(x < SERIES_FROM, torch.digamma(near) - near.log(), -far / 2 - far**2 / 12 + far**4 / 120)


def left_uncertain(logits: Tensor) -> Tensor:
    """Return the logarithm of what the experts before each one leave uncertain, (batch, experts); 0 for the first.

    Args:
        logits: Expert logits, (batch, experts, classes).

    >>> left_uncertain(torch.zeros(1, 3, 2)).exp()
    tensor([[1.0000, 0.5000, 0.2857]])
    """
    classes = logits.shape[2]
    total = torch.logaddexp(logits.logsumexp(dim=2), logits.new_full((), math.log(classes)))  # log S, (batch, experts)
    uncertainty, belief = math.log(classes) - total, (logits - total[:, :, None]).exp()  # the former a logarithm
    # 1 - conflict, without the difference of numbers near 1
    before, after = uncertainty[:, :-1].exp(), uncertainty[:, 1:].exp()
    agreement = before + after - before * after + (belief[:, :-1] * belief[:, 1:]).sum(dim=2)
    factors = uncertainty - F.pad(agreement.log(), (1, 0))
    return F.pad(factors[:, :-1].cumsum(dim=1), (1, 0))


class TLCLoss(nn.Module):
    """The evidential loss, summed over the experts.

    Which samples an expert is engaged in depends on the batch: values of single samples average to the loss of theirs.

    Args:
        class_counts: Training samples of each class, (classes,).
        scale: Scale of the network's cosine classifier.
        threshold: Share of the batch's largest uncertainty above which an expert is engaged in a sample.
        evidence: Weight of the evidence for wrong classes at the end of the training; it grows from 0.
        diversity: Weight of the diversity.
        temperature_factor: The g of the diversity's temperatures.
        max_margin: Margin of the rarest class, on the cosine.
        beta: Parameter of the effective number of samples.
        reweight_from: Part of the training after which classes are weighted.

    >>> loss = TLCLoss(torch.tensor([160_000, 16]), scale=2.0)
    >>> loss(torch.zeros(1, 2, 2), torch.tensor([1]))
    tensor(2.6265)
    """

    margins: Tensor
    weights: Tensor
    temperatures: Tensor

    def __init__(
        self,
        class_counts: Tensor,
        scale: float,
        threshold: float = 0.54,
        evidence: float = 0.015,
        diversity: float = 0.01,
        temperature_factor: float = 0.05,
        max_margin: float = 0.5,
        beta: float = 0.9999,
        reweight_from: float = 0.8,
    ) -> None:
        super().__init__()
        self.threshold, self.evidence, self.diversity = threshold, evidence, diversity
        self.reweight_from = reweight_from
        self.register_buffer("margins", scale * ldam_margins(class_counts, max_margin))
        self.register_buffer("weights", effective_number_weights(class_counts, beta))
        self.register_buffer("temperatures", diversity_temperatures(class_counts, temperature_factor))

    def forward(
        self, expert_logits: Tensor, targets: Tensor, progress: Tensor | float | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Return the mean over the samples, or with the reduction "none" one value for each, (batch,)."""
        labels, logits = hard_labels(targets, "TLC"), at_least_float32(expert_logits)
        values = self._margin_loss(logits, labels, progress) - self.diversity * self._divergence(logits, progress)
        wrong = logits.masked_fill(is_label(labels, logits.shape[2]), -torch.inf)
        values = values + (0 if progress is None else progress) * self.evidence * divergence_from_ignorance(wrong)
        engaged = self._engaged(logits.detach())
        values = (values * engaged / engaged.mean(dim=0)).sum(dim=1)
        return values.mean() if reduction == "mean" else values

    def _margin_loss(self, logits: Tensor, labels: Tensor, progress: Tensor | float | None) -> Tensor:
        weights = weights_from(self.reweight_from, self.weights, progress).to(logits)
        scores = with_margins(logits, labels, self.margins).log_softmax(dim=2)
        return -weights[labels, None] * at_label(scores, labels)

    def _divergence(self, logits: Tensor, progress: Tensor | float | None) -> Tensor:
        return divergence_from_mean(logits, weights_from(self.reweight_from, self.temperatures, progress).to(logits))

    def _engaged(self, logits: Tensor) -> Tensor:
        """1 where an expert learns from a sample, 0 elsewhere, (batch, experts)."""
        uncertain = left_uncertain(logits)
        return ((uncertain - uncertain.amax(dim=0)).exp() > self.threshold).to(logits)


def loss(inputs: MethodInputs, **settings: float) -> TLCLoss:
    """Return the loss for the scale of the network's cosine."""
    return TLCLoss(inputs.class_counts, inputs.cosine_scale, **settings)


METHOD = Method(loss, source_prior=equal_shares)
