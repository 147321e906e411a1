"""The scores under a deployment prior, as trained and adjusted: for `evaluate --prior` and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from balpoe.errors import UserError
from balpoe.evaluation.deployment_prior import parse_prior
from balpoe.evaluation.evaluate import evaluate
from balpoe.evaluation.predictions import Predictions, load_predictions
from balpoe.evaluation.prior_estimate import TargetEstimate, estimate_target
from balpoe.experiments.calibrate import are_of_cross_fitting
from balpoe.method.label_shift import PriorEstimate
from balpoe.report.console import print_scores

__all__ = ["DeploymentScores", "deployment_scores", "estimate_sentences", "print_deployment_scores"]


@dataclass(frozen=True)
class DeploymentScores:
    """Scores under a deployment prior, and what there is to say about them."""

    what: str
    """What the samples stand for."""
    rows: dict[str, list[dict[str, Any]]]
    """From "as trained" and, if the logits are posteriors, "adjusted" or "estimated" to the scores of each seed."""
    sentences: list[str]


def print_deployment_scores(
    out: Any,
    path: str,
    seeds: Mapping[str, Predictions],
    prior: str,
    validation: str | None,
    groups: tuple[int, int],
) -> None:
    """Print the scores under a deployment prior, of one or several seeds.

    Args:
        out: Console to print on.
        path: Path of what is evaluated.
        seeds: Predictions of each seed, by its name.
        prior: Deployment prior, as given on the command line.
        validation: Labelled predictions, for the prior "estimate"; of several seeds, a folder with those of each.
        groups: Thresholds of the shot groups.
    """
    found = deployment_scores(seeds, prior, validation, groups)
    print_scores(out, found.rows, title=f"{path}: {len(next(iter(seeds.values()))):,} test samples{found.what}")
    for sentence in found.sentences:
        out.print(sentence)


def deployment_scores(
    seeds: Mapping[str, Predictions], prior: str, validation: str | None, groups: tuple[int, int]
) -> DeploymentScores:
    """Return the scores under a deployment prior; the arguments are those of `print_deployment_scores`."""
    if prior != "estimate":
        return _known(list(seeds.values()), prior, groups)
    if validation is None:
        raise UserError("the prior 'estimate' is found with labelled validation predictions; give --validation PATH")
    return _estimated(seeds, _validation(validation, list(seeds)), groups, are_of_cross_fitting(validation))


def _known(seeds: Sequence[Predictions], prior: str, groups: tuple[int, int]) -> DeploymentScores:
    targets = [parse_prior(prior, predictions) for predictions in seeds]
    uses = {"as trained": False} if seeds[0].source_prior is None else {"as trained": False, "adjusted": True}
    rows = {
        name: [_scores(p, groups, target, adjust) for p, target in zip(seeds, targets, strict=True)]
        for name, adjust in uses.items()
    }
    effective = fmean(scores["effective_samples"] for scores in rows["as trained"])
    sentence = f"Effective sample size: under these weights {len(seeds[0]):,} samples are worth {effective:,.0f}."
    return DeploymentScores(f", weighted to the prior {prior}", rows, [sentence, *seeds[0].caveats])


def _estimated(
    seeds: Mapping[str, Predictions], validation: Sequence[Predictions], groups: tuple[int, int], cross_fitted: bool
) -> DeploymentScores:
    """Nothing is weighted: the estimate describes the test data themselves."""
    pairs = zip(seeds.values(), validation, strict=True)
    estimates = [estimate_target(*pair, cross_fitted=cross_fitted) for pair in pairs]
    moved = [estimate.adjusted(p) for estimate, p in zip(estimates, seeds.values(), strict=True)]
    rows = {
        "as trained": [_scores(p, groups) for p in seeds.values()],
        "estimated": [_scores(p, groups) for p in moved],
    }
    sentences = [
        sentence if len(seeds) == 1 else f"{seed}: {sentence}"
        for seed, estimate in zip(seeds, estimates, strict=True)
        for sentence in estimate_sentences(estimate)
    ]
    return DeploymentScores(" as they are; prior estimated from them", rows, sentences)


def _scores(
    predictions: Predictions, groups: tuple[int, int], target: Tensor | None = None, adjust: bool = True
) -> dict[str, Any]:
    return evaluate(predictions, target, adjust=adjust, shot_groups=groups, num_resamples=0).to_dict()


def estimate_sentences(estimate: TargetEstimate) -> list[str]:
    """Return what was estimated, whether it is used, and whether it explains the predictions."""
    found = estimate.shift
    used = (
        "the logits are moved there"
        if found.significant
        else "too little evidence of a shift, so the logits are calibrated but stay at their own prior"
    )
    return [f"Estimated prior: {_estimate_text(found)}, p = {found.p_value:.3f}: {used}.", _fit_sentence(estimate)]


def _estimate_text(found: PriorEstimate) -> str:
    if found.lambda_ is not None:
        low, high = found.interval.tolist()
        return f"P_train^lambda with lambda {found.lambda_:.2f} (95 % interval {low:.2f} to {high:.2f})"
    label = int(found.estimate.argmax())
    low, high = (100 * found.interval[:, label]).tolist()
    share = 100 * float(found.estimate[label])
    return f"a share for each class, the largest {share:.1f} % (95 % interval {low:.1f} to {high:.1f})"


def _fit_sentence(estimate: TargetEstimate) -> str:
    if estimate.changed is None and estimate.cross_fitted:
        return (
            "It is approximate, for networks of cross-fitting said the held-out samples, and whether a prior explains "
            "the predictions was not checked; --validation PATH, labelled predictions of the model itself, does both."
        )
    if estimate.changed is None:
        return (
            f"Whether a prior explains the predictions was not checked: classes without a validation sample have "
            f"{100 * estimate.unseen:.1f} % of it."
        )
    if estimate.changed:
        return (
            f"Warning: no label prior explains these predictions (p = {estimate.fit_p_value:.3f}); the images "
            "themselves seem to have changed, and the estimate is not to be trusted."
        )
    return (
        f"A shift of the labels alone can explain these predictions (p = {estimate.fit_p_value:.3f}, not below 0.01)."
    )


def _validation(path: str, seeds: Sequence[str]) -> list[Predictions]:
    """For one seed, the predictions in `path`; for several, those in path/seed-N."""
    if len(seeds) == 1:
        return [load_predictions(path)]
    folders = [Path(path) / seed for seed in seeds]
    lacking = next((folder for folder in folders if not folder.exists()), None)
    if lacking is not None:
        raise UserError(
            f"{len(seeds)} seeds are {len(seeds)} models, each with validation predictions of its own, but {lacking} "
            "is missing; write it, or evaluate one seed"
        )
    return [load_predictions(folder) for folder in folders]
