"""Evaluations read back from a file: whether they are what a run has written."""

from collections.abc import Callable
from typing import Any

from balpoe.evaluation.catalogue import METRICS
from balpoe.old_names import current_names

__all__ = ["current_evaluation", "is_evaluation"]

# What the evaluations of the first version had; a metric that came later may be missing from a file.
FIRST = (
    "accuracy", "balanced_accuracy", "many", "medium", "few", "ece", "mce", "classwise_ece", "nll", "brier",
)  # fmt: skip
LARGEST = 1e15


def current_evaluation(value: Any) -> Any:
    """Return an evaluation from a file under the names that its parts have now; anything else as it is."""
    if not isinstance(value, dict) or not _list_of(value.get("shifted"), lambda row: isinstance(row, dict)):
        return value
    return {**value, "shifted": [current_names("shifted", row) for row in value["shifted"]]}


def is_evaluation(value: Any, experts: int) -> bool:
    """Return whether a value from JSON has the parts of an evaluation of so many experts, each of its kind.

    >>> is_evaluation({"accuracy": 0.5}, experts=3)
    False
    """
    if not _is_scores(value):
        return False
    classes = len(value["per_class"])
    return (
        _list_of(value.get("experts"), lambda each: _is_scores(each) and len(each["per_class"]) == classes, experts)
        and _are_checks(value.get("check", ""), value.get("expert_checks"), classes, experts)
        and _is_intervals(value.get("intervals"))
        and _list_of(value.get("shifted"), _is_shifted)
        and len(value["shifted"]) > 0
        and _is_number(value.get("samples"))
        and _is_number(value.get("effective_samples"))
        and all(_is_number_or_none(value.get(name, "")) for name in ("parameters", "multiply_adds"))
        and _is_router(value.get("router"))
    )


def _is_scores(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(name in value for name in FIRST)
        and all(_is_metric(name, value[name]) for name in METRICS if name in value)
        and _list_of(value.get("per_class"), _is_number_or_none)
        and _list_of(value.get("per_class_interval"), _is_pair_or_none, len(value["per_class"]))
        and _is_bins(value.get("reliability"))
    )


def _is_metric(name: str, value: Any) -> bool:
    return _is_number_or_none(value) if METRICS[name].optional else _is_number(value)


def _is_bins(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("share"), list):
        return False
    bins = len(value["share"])
    return bins > 0 and all(_list_of(value.get(name), _is_number, bins) for name in ("share", "confidence", "accuracy"))


def _are_checks(check: Any, of_experts: Any, classes: int, experts: int) -> bool:
    if check is None and of_experts == []:  # of predictions without lambdas
        return True
    return _is_check(check, classes) and _list_of(of_experts, lambda each: _is_check(each, classes), experts)


def _is_check(value: Any, classes: int) -> bool:
    return (
        isinstance(value, dict)
        and _list_of(value.get("marginal"), _is_number, classes)
        and _is_number(value.get("marginal_kl"))
        and all(_is_number_or_none(value.get(name, "")) for name in ("weighted_kl", "weighted_ece"))
    )


def _is_router(value: Any) -> bool:
    """Whether a run without a router says nothing of one, or what one did is said."""
    return value is None or (
        isinstance(value, dict)
        and _is_numbers(value.get("experts_asked"))
        and _is_number(value["experts_asked"].get("all"))
        and _is_number_or_none(value.get("multiply_adds_of_all", ""))
        and _is_numbers(value.get("with_all_experts", {}))
    )


def _is_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number_or_none, value.values()))


def _is_intervals(value: Any) -> bool:
    return isinstance(value, dict) and all(name in METRICS and _list_of(value[name], _is_number, 2) for name in value)


def _is_shifted(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and all(_is_number(value.get(name)) for name in ("ratio", "samples", "as_trained"))
        and _is_number_or_none(value.get("adjusted", ""))
    )


def _is_pair_or_none(value: Any) -> bool:
    return value is None or _list_of(value, _is_number, 2)


def _is_number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST  # not NaN either


def _list_of(value: Any, kind: Callable[[Any], bool], length: int | None = None) -> bool:
    return isinstance(value, list) and (length is None or len(value) == length) and all(map(kind, value))
