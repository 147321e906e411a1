"""An unknown label prior, estimated from unlabelled predictions, and used only when the evidence carries it.

If P(x | y) is the same in deployment, the likelihood of unlabelled samples under a prior pi is,
up to a constant, prod_i sum_y pi_y r_iy with the ratios r_iy = p(y | x_i) / source_y (Saerens et al. 2002);
`prior_families.py` finds its maximum. It needs calibrated p(y | x): labelled validation predictions fit a temperature
and a bias per class first, and their resamples tell how large the likelihood ratio gets when nothing has shifted
(`shift_evidence.py`).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from balpoe.method.calibration import Calibration, LabelledLogits
from balpoe.method.ensemble import checked_source, shift_prior
from balpoe.method.prior_families import on_curve, prior_family
from balpoe.method.shift_evidence import SIGNIFICANCE, ShiftEvidence, checked_logits, checked_weights

__all__ = ["PriorEstimate", "estimate_prior", "on_curve"]


@dataclass(frozen=True)
class PriorEstimate:
    """An estimated label prior and whether to believe it.

    >>> found = estimate_prior(torch.tensor([[4.0, -4.0]] * 90 + [[-4.0, 4.0]] * 10))
    >>> found.significant, found.prior.round(decimals=1).tolist(), found.adjust(torch.zeros(1, 2)).argmax(dim=1).item()
    (True, [0.9, 0.1], 0)
    """

    prior: Tensor
    """The prior to use, (classes,): the estimate if it is significant, otherwise the source prior, unchanged.

    A free estimate gives each class half a sample at least, so that none is excluded."""
    estimate: Tensor
    """The most likely prior, (classes,), believed or not; shares may be zero."""
    lambda_: float | None
    """Lambda of the family P^lambda; None for a free estimate."""
    significant: bool
    """Whether a shift explains the predictions better than randomness does, at 5 %; one sample never suffices."""
    p_value: float
    interval: Tensor
    """95 % bootstrap interval: of lambda, (2,), or of each class's share, (2, classes)."""
    source_prior: Tensor
    """What the logits were made for."""
    calibration: Calibration | None
    """Fitted on the validation data; None without."""

    def adjust(self, logits: Tensor) -> Tensor:
        """Return logits calibrated and moved to `prior`: what to predict with in deployment."""
        logits = logits if self.calibration is None else self.calibration(logits)
        return shift_prior(logits, self.prior, self.source_prior)


def estimate_prior(
    logits: Tensor,
    *,
    source_prior: Any = None,
    validation: LabelledLogits | None = None,
    family: str = "free",
    train_prior: Any = None,
    weights: Any = None,
    num_resamples: int = 100,
    seed: int = 0,
) -> PriorEstimate:
    """Estimate the label prior behind unlabelled logits (samples, classes).

    Give validation predictions whenever there are any: networks are not calibrated well enough to be
    taken at their word, and an estimate from uncalibrated logits can be worse than none.

    Args:
        logits: Logits of the unlabelled samples.
        source_prior: The prior that the logits are made for; by default uniform (a balanced ensemble).
        validation: Labelled predictions of the same model, any label distribution.
        family: "free" for any prior, or "tempered" for P^lambda, one parameter, which needs far fewer samples.
        train_prior: The prior that "tempered" bends.
        weights: One weight a sample, of which the ratios alone matter: unequal ones make the evidence thinner, as
            that of (sum of weights)^2 / (sum of their squares) samples. To count a sample twice, repeat its row.
        num_resamples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = (torch.rand(2000, generator=generator) < 0.9).float()
    >>> x = 2 * labels - 1 + torch.randn(2000, generator=generator)  # one Gaussian around -1, one around 1
    >>> estimate_prior(torch.stack([-x, x], dim=1)).prior.round(decimals=1)
    tensor([0.1000, 0.9000], dtype=torch.float64)
    """
    logits = checked_logits(logits, "logits").cpu()  # thousands of small operations: a GPU would wait
    weights = checked_weights(weights, len(logits))
    classes = logits.shape[1]
    source = torch.full((classes,), 1 / classes, dtype=torch.float64)
    if source_prior is not None:
        source = checked_source(source_prior, classes)
    members = prior_family(family, train_prior, source)
    generator = torch.Generator().manual_seed(seed)
    evidence = ShiftEvidence.gather(members, source, validation, num_resamples, generator)
    ratios = evidence.ratios(logits)
    found = members.fit(ratios, weights)
    p_value = evidence.p_value(
        found, ratios, weights, source, lambda samples: evidence.null(source, samples, generator)
    )
    redrawn = evidence.redrawn(found, logits, weights, generator)
    interval = evidence.interval(found, redrawn, float(weights.sum()), generator)
    significant = p_value < SIGNIFICANCE
    used = evidence.usable(found, float(weights.sum())) if significant else source
    return PriorEstimate(used, found.prior, found.lambda_, significant, p_value, interval, source, evidence.calibration)
