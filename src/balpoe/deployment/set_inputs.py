"""What prediction sets are fitted on and made of: predictions of this library, or bare logits."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.deployment.set_promise import LEAST_ALPHA
from balpoe.deployment.set_scores import SetScore
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.deployment_prior import target_prior as deployment_prior
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.prior_estimate import TargetEstimate
from balpoe.method.ensemble import checked_source, shift_prior
from balpoe.method.expert_calibration import ExpertCalibration
from balpoe.method.label_shift import PriorEstimate
from balpoe.method.priors import checked_prior, class_counts
from balpoe.settings import checked

__all__ = ["METHODS", "Validation", "check_settings", "checked_folds", "logit_blocks", "resolved_prior", "set_score"]

METHODS = ("marginal", "per-class", "pooled", "prevalence")
BLOCK_VALUES = 2**20  # logits looked at together


class Validation(NamedTuple):
    """Labelled validation samples, of either form."""

    samples: Predictions | Tensor
    targets: Tensor
    class_names: tuple[str, ...]
    source_prior: Tensor | None
    train_prior: Tensor | None = None
    """The training prior, where it is known."""
    is_posterior: bool = True
    calibration: ExpertCalibration | None = None
    grouped: bool = False

    @staticmethod
    def of(validation: Any, source_prior: Any = None) -> "Validation":
        """Return predictions, or (logits, targets), as what a fit needs to know of them.

        Args:
            validation: Labelled samples.
            source_prior: Prior that bare logits are made for; None: uniform.
        """
        if isinstance(validation, Predictions):
            source = validation.source_prior
            return Validation(
                validation, validation.targets, validation.class_names, source, validation.train_prior,
                source is not None, validation.calibration, validation.groups is not None,
            )  # fmt: skip
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            raise UserError(f"validation must be Predictions, or (logits, targets), but is {type(validation).__name__}")
        logits, targets = torch.as_tensor(validation[0]), torch.as_tensor(validation[1])
        if logits.ndim != 2 or len(logits) != len(targets):
            raise UserError(
                f"validation logits must have shape (samples, classes) for {len(targets)} targets, "
                f"but have {tuple(logits.shape)}"
            )
        classes = logits.shape[1]
        class_counts(targets, classes)  # an error names the first label outside of the classes
        source = None if source_prior is None else checked_source(source_prior, classes)
        return Validation(logits, targets.long(), tuple(map(str, range(classes))), source)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def own_scores(self, score: SetScore) -> Tensor:
        """Return the score of each sample's own class, (samples,)."""
        start, found = 0, [torch.zeros(0, dtype=torch.float64)]
        for logits in logit_blocks(self.samples):
            rows = self.targets[start : start + len(logits)]
            found.append(score(logits).gather(1, rows[:, None]).squeeze(1))
            start += len(logits)
        return torch.cat(found)


def check_settings(alpha: float, method: str, score: str, power: float) -> None:
    """Refuse settings of a fit that mean nothing."""
    if not LEAST_ALPHA <= checked("alpha", float, {}, alpha) < 1:
        raise UserError(
            f"alpha must lie between 0 and 1, from {LEAST_ALPHA:g}, such as 0.1 for sets that hold 90 %, but is {alpha}"
        )
    if method not in METHODS:
        raise unknown_name("method of sets", method, METHODS)
    if method == "prevalence" and score == "aps":
        raise UserError("method 'prevalence' has a score of its own; leave score out, or choose another method")
    checked("power", float, {}, power)


def resolved_prior(target: Any, samples: Any, num_classes: int) -> tuple[Tensor | None, bool]:
    """Return a deployment prior in float64, (classes,), None for none, and whether it is an estimate.

    Args:
        target: Prior in any form.
        samples: Predictions that words and names are for; of bare logits, the prior is a row of shares.
        num_classes: Number of classes.
    """
    if isinstance(target, TargetEstimate):
        target = target.shift
    if isinstance(target, PriorEstimate):
        return checked_prior(target.prior, num_classes, "target_prior"), True
    if target is None:
        return None, False
    if isinstance(samples, Predictions):
        return deployment_prior(target, samples), False
    return checked_prior(target, num_classes, "target_prior"), False


def set_score(name: str, known: Validation, prior: Tensor | None, power: float | None, seed: int) -> SetScore:
    """Return the score of a fit: of posteriors under the deployment prior, divided by a power of it where asked for.

    Args:
        name: Name of the score.
        known: Validation samples.
        prior: Deployment prior, (classes,); None: the logits stay as they are.
        power: Power of the prior that divides posteriors; None for none.
        seed: Seed of random parts.
    """
    move = prevalence = torch.zeros(known.num_classes, dtype=torch.float64)
    if power is not None and prior is None:
        prior = known.train_prior
        if prior is None:
            raise UserError("method 'prevalence' needs the share of each class; give target_prior")
    if prior is not None and known.is_posterior:
        move = shift_prior(move, prior, known.source_prior)
    if prior is not None and power is not None:
        prevalence = power * prior.double().log()
    return SetScore(name, move, prevalence, seed)


def checked_folds(folds: Any, samples: int) -> Tensor:
    """Return the number of each sample's network, (samples,), or say what is wrong with it."""
    fold_of = torch.as_tensor(folds)
    if fold_of.shape != (samples,) or fold_of.is_floating_point() or (samples and int(fold_of.min()) < 0):
        raise UserError(
            f"folds must be the number of the network of each of the {samples} validation samples, from 0, "
            f"but are {fold_of.dtype} of shape {tuple(fold_of.shape)}"
        )
    return fold_of.long()


def logit_blocks(samples: Any) -> Iterator[Tensor]:
    """Yield the ensemble's logits, some rows at a time.

    Args:
        samples: Predictions; logits, (samples, classes); or blocks of logits, one after the other.
    """
    if isinstance(samples, Predictions):
        yield from (samples.product(samples.calibrated(rows)) for rows in samples.blocks())
    elif isinstance(samples, Iterator) or (isinstance(samples, Sequence) and isinstance(samples[0], Tensor)):
        yield from (part for block in samples for part in logit_blocks(block))
    else:
        logits = torch.as_tensor(samples)
        if logits.ndim != 2:
            raise UserError(f"logits must have shape (samples, classes), but have {tuple(logits.shape)}")
        yield from logits.split(max(1, BLOCK_VALUES // max(1, logits.shape[1])))
