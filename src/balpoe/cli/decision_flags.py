"""Flags of what is decided of each sample, which predict and evaluate share."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from balpoe.deployment.set_promise import LEAST_ALPHA
from balpoe.errors import UserError, unknown_name

if TYPE_CHECKING:
    from balpoe.deployment.deciders import Wanted

__all__ = ["DecisionFlags", "add_decisions", "decision_flags"]

SET_METHODS = ("marginal", "per-class", "pooled", "prevalence")
UNKNOWN_SCORES = ("probability", "energy", "max-logit", "disagreement")  # those that need no features
BALANCES = ("none", "share", "error")
AIMS = ("f1", "precision=X", "recall=X", "costs=FALSE_ALARM,MISS")
CONFIDENCE = 0.9
PROMISED = 0.95


class DecisionFlags(NamedTuple):
    """What the flags ask for."""

    costs: str | None = None
    metric: str | None = None
    abstain_cost: float | None = None
    abstain_error: float | None = None
    alpha: float | None = None
    set_method: str = "marginal"
    taxonomy: str | None = None
    confidence: float = CONFIDENCE
    unknown: tuple[str, ...] | None = None
    unknown_keep: float = PROMISED
    abstain_confidence: float = PROMISED
    abstain_balance: str = "none"
    thresholds: Mapping[str, Any] | None = None

    def read(self, class_names: Sequence[str], shot_groups: tuple[int, int] = (20, 100)) -> "Wanted":
        """Return what is wanted, with what the files say of these classes.

        Args:
            class_names: Name of each class.
            shot_groups: Thresholds: a class is few-shot below the first number and many-shot above the second.
        """
        from balpoe.deployment.cost_files import read_costs
        from balpoe.deployment.deciders import Wanted
        from balpoe.deployment.taxonomy import Taxonomy

        costs, answers = (None, None) if self.costs is None else read_costs(self.costs, class_names)
        tree = None if self.taxonomy is None else Taxonomy.read(self.taxonomy, class_names)
        same = {name: value for name, value in self._asdict().items() if name not in ("costs", "taxonomy")}
        return Wanted(costs=costs, answers=answers, taxonomy=tree, shot_groups=shot_groups, **same)

    @property
    def files(self) -> tuple[str, ...]:
        """Files that are read."""
        return tuple(path for path in (self.costs, self.taxonomy) if path is not None)


def add_decisions(command: argparse.ArgumentParser) -> None:
    """Add the flags of decisions."""
    group = command.add_argument_group("decisions")
    group.add_argument(
        "--costs", metavar="FILE",
        help="give the answer that costs least: a .csv with class,cost (of missing it), or a column for each answer",
    )  # fmt: skip
    group.add_argument(
        "--metric", metavar="NAME",
        help="give the answer that is best for accuracy, balanced_accuracy, macro_f1 or 'recall of CLASS at least 0.9'",
    )  # fmt: skip
    _add_abstaining(group)
    group.add_argument(
        "--thresholds", nargs="?", const="f1", metavar="AIM",
        help="say yes or no to each class by itself, with the threshold of best F1 (default), or for precision=0.9, "
        "recall=0.9 or costs=FALSE_ALARM,MISS",
    )  # fmt: skip
    group.add_argument(
        "--sets", type=float, metavar="ALPHA",
        help="give a set of classes; this share of the sets may miss the right one, such as 0.1",
    )  # fmt: skip
    group.add_argument(
        "--set-method", choices=SET_METHODS,
        help="whom that holds for: all samples together (marginal, prevalence; default: marginal), each class, or each "
        "pool of similar classes",
    )  # fmt: skip
    group.add_argument(
        "--taxonomy", metavar="FILE", help="give the deepest label that is sure in a tree: a .csv with class,genus,..."
    )
    group.add_argument(
        "--confidence", type=float, metavar="X", help=f"least probability of that label (default: {CONFIDENCE})"
    )
    group.add_argument(
        "--unknown", nargs="?", const=UNKNOWN_SCORES[0], metavar="SCORE",
        help="say whether a sample looks like none of the classes, by probability (default), energy, max-logit or "
        "disagreement, or by several with commas",
    )  # fmt: skip
    group.add_argument(
        "--unknown-keep", type=float, metavar="X",
        help=f"share of samples of known classes that must not be called unknown (default: {PROMISED})",
    )  # fmt: skip


def _add_abstaining(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--abstain-error", type=float, metavar="X",
        help="answer where it is sure enough that at most this share of the answers is wrong; else abstain",
    )  # fmt: skip
    group.add_argument(
        "--abstain-confidence", type=float, metavar="X",
        help=f"probability with which --abstain-error holds for new samples (default: {PROMISED})",
    )  # fmt: skip
    group.add_argument(
        "--abstain-balance", choices=BALANCES,
        help="do not let rare classes alone go without answers: keep the same share, or the same error, of the answers "
        "in each shot group (default: none)",
    )  # fmt: skip
    group.add_argument(
        "--abstain-cost", type=float, metavar="X",
        help="answer where that is expected to cost less than this; else abstain (a wrong answer costs 1, or --costs)",
    )  # fmt: skip


def decision_flags(arguments: argparse.Namespace) -> DecisionFlags | None:
    """Return what the flags ask for; None if that is nothing."""
    _check_together(arguments)
    if arguments.sets is not None and not LEAST_ALPHA <= arguments.sets < 1:
        raise UserError(
            f"--sets must lie between 0 and 1, from {LEAST_ALPHA:g}, such as 0.1 for 90 % coverage, but is "
            f"{arguments.sets}"
        )
    if arguments.confidence is not None and not 0 < arguments.confidence <= 1:
        raise UserError(f"--confidence must lie above 0 and up to 1, but is {arguments.confidence}")
    for name in ("unknown_keep", "abstain_confidence"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < 1:
            raise UserError(f"--{name.replace('_', '-')} must lie between 0 and 1, such as 0.95, but is {value}")
    same = ("costs", "metric", "abstain_cost", "abstain_error", "taxonomy")
    defaulted = ("set_method", "confidence", "unknown_keep", "abstain_confidence", "abstain_balance")
    given = {name: getattr(arguments, name) for name in (*same, *defaulted)}
    flags = DecisionFlags(
        **{name: value for name, value in given.items() if value is not None},
        alpha=arguments.sets,
        unknown=None if arguments.unknown is None else _scores(arguments.unknown),
        thresholds=None if arguments.thresholds is None else _aim(arguments.thresholds),
    )
    return None if flags == DecisionFlags() else flags


def _scores(text: str) -> tuple[str, ...]:
    """Scores of unknown samples, by their names."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name in ("mahalanobis", "cosine"):
            raise UserError(
                f"--unknown {name} is a distance in feature space, and a run keeps no features of its held-out "
                f"samples; take one of {', '.join(UNKNOWN_SCORES)}, or balpoe.UnknownDetector in Python"
            )
        if name not in UNKNOWN_SCORES:
            raise unknown_name("score for --unknown", name, UNKNOWN_SCORES)
    return names


def _aim(text: str) -> dict[str, Any]:
    """What thresholds are for, as `Thresholds.fit` takes it.

    >>> _aim("f1"), _aim("recall=0.9"), _aim("costs=1,5")
    ({}, {'recall': 0.9}, {'costs': (1.0, 5.0)})
    """
    name, _, value = text.partition("=")
    try:
        numbers = tuple(float(each) for each in value.split(",")) if value else ()
    except ValueError:
        numbers = ()
    if text == "f1":
        return {}
    if name in ("precision", "recall") and len(numbers) == 1:
        return {name: numbers[0]}
    if name == "costs" and len(numbers) == 2:
        return {name: numbers}
    raise UserError(f"--thresholds must be one of {', '.join(AIMS)}, but is {text}")


def _check_together(arguments: argparse.Namespace) -> None:
    """Refuse flags that contradict each other, or serve one that is not there."""
    if arguments.set_method is not None and arguments.sets is None:
        raise UserError("--set-method is how sets are made; give --sets ALPHA, too")
    if arguments.confidence is not None and arguments.taxonomy is None:
        raise UserError("--confidence is for labels of a tree; give --taxonomy FILE, too")
    if arguments.unknown_keep is not None and arguments.unknown is None:
        raise UserError("--unknown-keep sets the threshold of unknown; give --unknown, too")
    for name in ("abstain_confidence", "abstain_balance"):
        if getattr(arguments, name) is not None and arguments.abstain_error is None:
            raise UserError(f"--{name.replace('_', '-')} is how a wanted error is kept; give --abstain-error X, too")
    given = [f"--{name}" for name in ("costs", "metric") if getattr(arguments, name) is not None]
    if len(given) == 2:
        raise UserError("--costs and --metric are two answers to one question; give one of them")
    if arguments.abstain_error is not None and (given or arguments.abstain_cost is not None):
        raise UserError(f"--abstain-error has answers of its own; leave out {(*given, '--abstain-cost')[0]}")
    if arguments.abstain_cost is not None and arguments.metric is not None:
        raise UserError("--abstain-cost is compared with costs, which a metric has not; give --costs instead of it")
