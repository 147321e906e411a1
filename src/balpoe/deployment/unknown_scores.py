"""Scores for "none of these classes".

A closed-set posterior cannot say it: it adds up to 1 over the known classes, however little any of them fits. What can
is the size of the logits, the distance to the classes in feature space, and whether experts that were trained for
different class mixes agree once each is moved to the same one.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.class_means import ClassMeans
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.predictions import Predictions
from balpoe.method.ensemble import product_of_experts
from balpoe.method.priors import checked_prior

__all__ = ["OF_FEATURES", "OF_LOGITS", "SCORES", "num_classes", "unknown_scores"]

OF_LOGITS = ("energy", "max-logit", "probability", "disagreement")
OF_FEATURES = ("mahalanobis", "cosine")
SCORES = (*OF_LOGITS, *OF_FEATURES)
BLOCK_VALUES = 2**20  # logits looked at together


def unknown_scores(
    samples: Any,
    score: str = "energy",
    *,
    expert_priors: Any = None,
    features: Any = None,
    means: ClassMeans | None = None,
) -> Tensor:
    """Return how much each sample looks like none of the known classes, (samples,), in float64: higher is more unknown.

    | score | what it is |
    | --- | --- |
    | energy | minus the log of the sum of exponentials of the ensemble's logits (Liu et al. 2020) |
    | max-logit | minus the largest logit |
    | probability | 1 less the largest posterior |
    | disagreement | mean KL divergence of the product from its experts: 0 where all agree |
    | mahalanobis | squared distance to the nearest class mean, in units of the spread within classes |
    | cosine | cosine distance to the nearest class mean |

    All are for equally frequent classes: priors are taken out first, or rare classes would look unknown.

    Args:
        samples: Predictions, or expert logits (samples, experts, classes).
        score: Name of the score.
        expert_priors: Prior that each expert's bare logits are made for, (experts, classes); by default uniform.
            Predictions know theirs.
        features: Features of the samples, (samples, features), for scores of distance.
        means: Class means of training features, for scores of distance.

    >>> experts = torch.tensor([[[4.0, 0.0], [4.0, 0.0]], [[4.0, 0.0], [0.0, 4.0]]])
    >>> unknown_scores(experts, "disagreement") > 1  # of the second sample the experts say different things
    tensor([False,  True])
    """
    if score not in SCORES:
        raise unknown_name("score of unknown samples", score, SCORES)
    if score in OF_FEATURES:
        if features is None or means is None:
            raise UserError(f"the score {score!r} is a distance in feature space; give features and means")
        return means.cosine(features) if score == "cosine" else means.mahalanobis(features)
    log_priors = _log_priors(samples, expert_priors)
    found = [torch.zeros(0, dtype=torch.float64)]
    weights = samples.expert_weights if isinstance(samples, Predictions) else None
    found += [_of_logits(block.to(log_priors) - log_priors, score, weights) for block in _blocks(samples)]
    scores = torch.cat(found)
    if bool(scores.isnan().any()):
        row = int(scores.isnan().nonzero()[0])
        raise UserError(f"the logits of sample {row} are not numbers; check the network that gave them")
    return scores


def _of_logits(balanced: Tensor, score: str, weights: Tensor | None) -> Tensor:
    """Scores of balanced expert logits, (rows, experts, classes)."""
    if score == "disagreement":
        # The product over experts of p_e^weight sums to Z over the classes, and the mean KL divergence is -log Z.
        return (-product_of_experts(balanced.log_softmax(dim=2), weights).logsumexp(dim=1)).clamp(min=0.0)
    logits = product_of_experts(balanced, weights)
    if score == "energy":
        return -logits.logsumexp(dim=1)
    return -logits.amax(dim=1) if score == "max-logit" else 1 - logits.softmax(dim=1).amax(dim=1)


def _log_priors(samples: Any, expert_priors: Any) -> Tensor:
    """Logarithm of the prior of each expert's logits over the uniform one, (experts or 1, classes)."""
    if isinstance(samples, Predictions):
        expert_priors = samples.expert_priors
        if expert_priors is None and samples.source_prior is not None:
            expert_priors = samples.source_prior[None]
    if expert_priors is None:
        return torch.zeros(1, 1, dtype=torch.float64)
    rows = [checked_prior(prior, num_classes(samples), "expert_priors") for prior in torch.as_tensor(expert_priors)]
    log_priors = torch.stack(rows).log()
    return log_priors - log_priors.mean(dim=1, keepdim=True)  # the size of logits stays


def num_classes(samples: Any) -> int:
    """Return the number of classes of predictions, or of expert logits."""
    return samples.num_classes if isinstance(samples, Predictions) else int(samples.shape[-1])


def _blocks(samples: Any) -> Iterator[Tensor]:
    if isinstance(samples, Predictions):
        yield from (samples.calibrated(rows) for rows in samples.blocks())
        return
    logits = torch.as_tensor(samples)
    if logits.ndim != 3:
        raise UserError(
            f"expert logits must have shape (samples, experts, classes), but have {tuple(logits.shape)}; "
            "logits[:, None] makes one expert of (samples, classes)"
        )
    yield from logits.split(max(1, BLOCK_VALUES // max(1, logits[:1].numel())))
