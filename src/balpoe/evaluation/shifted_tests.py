"""The field's shifted test sets: the same predictions under eleven label distributions."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from balpoe.data.long_tail import long_tailed_indices, shifted_test_counts
from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.evaluate import evaluate
from balpoe.evaluation.experts_asked import asked_by_group
from balpoe.evaluation.learnt_weights import with_learnt_weights
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.prior_estimate import posterior_source
from balpoe.method.label_shift import estimate_prior
from balpoe.method.priors import class_counts, class_prior

__all__ = ["EstimatedScores", "ShiftedScores", "estimated_test_sets", "full_evaluation", "shifted_test_sets"]

SHIFT_RATIOS = (50, 25, 10, 5, 2)

ShiftedSet = tuple[str, float, Tensor]
"""Name, ratio and samples of a test set."""


@dataclass(frozen=True)
class ShiftedScores:
    """A shifted test set: accuracy with the logits as trained, and moved to the set's own label frequencies."""

    name: str
    ratio: float
    samples: int
    as_trained: float
    adjusted: float | None
    """None for logits that are no posterior, which cannot be moved."""
    expert_weights: tuple[float, ...] | None = None
    """Weights of the experts, where they were learnt from the images of this set; None for equal ones."""

    def to_dict(self) -> dict[str, Any]:
        """Return what is known, for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "expert_weights" or value is not None}


@dataclass(frozen=True)
class EstimatedScores:
    """A shifted test set whose prior was estimated from its own unlabelled predictions."""

    name: str
    samples: int
    estimated: float
    """The accuracy with calibrated logits, moved to the estimate where it is significant."""
    lambda_: float | None
    significant: bool


def full_evaluation(
    predictions: Predictions, shot_groups: tuple[int, int], whole: Predictions | None = None
) -> dict[str, Any]:
    """Return what a run saves as its evaluation: all metrics, the shifted test sets, and what calibration changed.

    Args:
        predictions: Predictions of the run.
        shot_groups: Thresholds of the shot groups.
        whole: What the same network says with all experts asked, where a router asks fewer.
    """
    evaluation = evaluate(predictions, shot_groups=shot_groups).to_dict()
    evaluation["shifted"] = [scores.to_dict() for scores in shifted_test_sets(predictions)]
    if predictions.calibration is not None:
        before = _scores(predictions.uncalibrated(), shot_groups)
        evaluation["calibration"] = {**asdict(predictions.calibration), "before": before}
    if predictions.expert_weights is not None:
        before = _scores(replace(predictions, expert_weights=None), shot_groups)
        evaluation["test_time"] = {"expert_weights": predictions.expert_weights.tolist(), "with_equal_weights": before}
    if predictions.experts_asked is not None:
        evaluation["router"] = {
            "experts_asked": asked_by_group(predictions, shot_groups),
            "multiply_adds_of_all": predictions.multiply_adds_of_all,
            **({} if whole is None else {"with_all_experts": _scores(whole, shot_groups)}),
        }
    return evaluation


def _scores(predictions: Predictions, shot_groups: tuple[int, int]) -> dict[str, Any]:
    scores = evaluate(predictions, shot_groups=shot_groups, num_resamples=0).to_dict()
    return {name: scores[name] for name in METRICS if name in scores}


def shifted_test_sets(
    predictions: Predictions, ratios: Sequence[float] = SHIFT_RATIOS, seed: int = 0
) -> list[ShiftedScores]:
    """Return the accuracy on the field's test distributions, forward to uniform to backward.

    Forward sets keep most samples of the classes that are frequent in training, backward sets of the
    rare ones; the samples are those that the reference's rule keeps. Ratios for which a class would
    keep no sample are left out. Weights of the experts that were learnt from test images are learnt from
    those of each set alone.
    """
    sets = list(_test_sets(predictions, ratios, seed))
    counts = (class_counts(predictions.targets[rows], predictions.num_classes) for _, _, rows in sets)
    priors = [count / count.sum() for count in counts]
    results = []
    for (name, ratio, rows), (answers, weights) in zip(sets, _answers(predictions, sets, priors), strict=True):
        right = [float((each == predictions.targets[rows]).double().mean()) for each in answers]
        adjusted = None if predictions.source_prior is None else right[1]
        results.append(ShiftedScores(name, ratio, len(rows), right[0], adjusted, weights))
    return results


def _answers(
    predictions: Predictions, sets: Sequence[ShiftedSet], priors: Sequence[Tensor]
) -> Iterator[tuple[Tensor, tuple[float, ...] | None]]:
    """The answers to each set's samples, (2, samples), as trained and adjusted to its prior; its experts' weights."""
    if predictions.view_logits is not None and predictions.expert_weights is not None:
        for (_, ratio, rows), prior in zip(sets, priors, strict=True):
            of_set = predictions if ratio == 1 else with_learnt_weights(predictions.subset(rows))
            assert of_set.expert_weights is not None
            yield of_set.answers([prior]), tuple(of_set.expert_weights.tolist())
        return
    as_trained, *adjusted = predictions.answers(priors)
    for (_, _, rows), answers in zip(sets, adjusted, strict=True):
        yield torch.stack([as_trained, answers])[:, rows], None


def estimated_test_sets(
    predictions: Predictions, validation: Predictions, ratios: Sequence[float] = SHIFT_RATIOS, seed: int = 0
) -> list[EstimatedScores]:
    """Return the accuracy on the same test sets with the prior estimated from the unlabelled predictions of each.

    Args:
        predictions: Predictions of the whole test set.
        validation: Labelled predictions of the same model on other samples.
        ratios: Imbalance ratios of the test sets.
        seed: Seed of the choice of samples.
    """
    results = []
    for name, _, rows in _test_sets(predictions, ratios, seed):
        subset = predictions.subset(rows)
        found = estimate_prior(
            subset.logits, source_prior=posterior_source(predictions), validation=validation,
            family="tempered", train_prior=class_prior(predictions.class_counts),
        )  # fmt: skip
        right = float((found.adjust(subset.logits).argmax(dim=1) == subset.targets).double().mean())
        results.append(EstimatedScores(name, len(subset), right, found.lambda_, found.significant))
    return results


def _test_sets(predictions: Predictions, ratios: Sequence[float], seed: int) -> Iterator[ShiftedSet]:
    """Return the test sets."""
    counts = class_counts(predictions.targets, predictions.num_classes)
    fewest = int(counts.min())
    # iNaturalist has three test images a class: there the paper takes ratio 3, which no larger test set has.
    ratios = [*ratios, 3] if fewest == 3 and tuple(ratios) == SHIFT_RATIOS else ratios
    usable = [ratio for ratio in sorted(ratios, reverse=True) if ratio <= fewest]
    forward, backward = [("forward", ratio) for ratio in usable], [("backward", ratio) for ratio in reversed(usable)]
    whole = "uniform" if counts.min() == counts.max() else "test set"
    for direction, ratio in [*forward, (whole, 1), *backward]:
        if direction == whole:
            yield whole, 1, torch.arange(len(predictions))
        else:
            kept = shifted_test_counts(predictions.class_counts, counts, ratio, direction)
            yield f"{direction}-{ratio:g}", ratio, long_tailed_indices(predictions.targets, kept, seed)
