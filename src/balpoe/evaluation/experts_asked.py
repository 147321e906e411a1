"""How many experts a router asked, of all test samples and by shot group, and what that saved."""

from collections.abc import Mapping, Sequence
from typing import Any

from balpoe.evaluation.metrics import shot_groups
from balpoe.evaluation.predictions import Predictions

__all__ = ["asked_by_group", "router_notes"]

SHOT_NAMES = "many", "medium", "few"


def asked_by_group(predictions: Predictions, thresholds: tuple[int, int] = (20, 100)) -> dict[str, float | None]:
    """Return the mean number of experts asked about a sample: of all, and of many-, medium- and few-shot classes.

    Args:
        predictions: Predictions of a network with a router.
        thresholds: Thresholds of the shot groups; a group without test samples has None.

    >>> import torch
    >>> targets, asked = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 3])
    >>> asked_by_group(Predictions(torch.zeros(3, 3, 2), targets, [200, 10], experts_asked=asked))
    {'all': 2.0, 'many': 1.5, 'medium': None, 'few': 3.0}
    """
    asked = predictions.experts_asked
    assert asked is not None
    groups = shot_groups(predictions.class_counts, thresholds)
    parts = {"all": asked, **{name: asked[mask[predictions.targets]] for name, mask in groups.items()}}
    return {name: float(part.double().mean()) if len(part) else None for name, part in parts.items()}


def router_notes(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is said of a router beside the scores of a run, the mean over its seeds; nothing without one.

    Args:
        evaluations: Evaluation of each seed, as `full_evaluation` returns it.

    >>> asked = {"all": 1.5, "many": 1.25, "medium": None, "few": 1.75}
    >>> router = {"experts_asked": asked, "multiply_adds_of_all": 200, "with_all_experts": {"balanced_accuracy": 0.5}}
    >>> router_notes([{"router": router, "multiply_adds": 150, "balanced_accuracy": 0.49, "experts": [{}, {}]}])[0][:62]
    'The router asked 1.50 of 2 experts a sample (many 1.25, few 1.'
    """
    routers = [evaluation["router"] for evaluation in evaluations if evaluation.get("router")]
    if not routers or len(routers) < len(evaluations):
        return []
    asked = {name: _mean([each["experts_asked"].get(name) for each in routers]) for name in ("all", *SHOT_NAMES)}
    groups = ", ".join(f"{name} {asked[name]:.2f}" for name in SHOT_NAMES if asked[name] is not None)
    text = f"The router asked {asked['all']:.2f} of {len(evaluations[0]['experts'])} experts a sample ({groups})"
    cost = _mean([evaluation["multiply_adds"] for evaluation in evaluations])
    of_all = _mean([each["multiply_adds_of_all"] for each in routers])
    if cost and of_all:
        text += f": {100 * cost / of_all:.0f} % of the multiply-adds of all"
    theirs = _mean([each.get("with_all_experts", {}).get("balanced_accuracy") for each in routers])
    ours = _mean([evaluation["balanced_accuracy"] for evaluation in evaluations])
    if theirs is not None and ours is not None:
        text += f"; balanced accuracy {100 * ours:.1f} %, and {100 * theirs:.1f} % with all experts asked"
    return [f"{text}."]


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean, if all are known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
