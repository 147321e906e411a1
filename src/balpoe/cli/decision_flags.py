"""Flags of what is decided of each sample, which predict and evaluate share."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from balpoe.errors import UserError, unknown_name

if TYPE_CHECKING:
    from balpoe.deployment.deciders import Wanted

__all__ = ["DecisionFlags", "add_decisions", "decision_flags"]

SET_METHODS = ("marginal", "per-class", "pooled", "prevalence")
UNKNOWN_SCORES = ("energy", "max-logit", "probability", "disagreement")  # those that need no features
CONFIDENCE = 0.9


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
    unknown: str | None = None

    def read(self, class_names: Sequence[str]) -> "Wanted":
        """Return what is wanted, with what the files say of these classes."""
        from balpoe.deployment.cost_files import read_costs
        from balpoe.deployment.deciders import Wanted
        from balpoe.deployment.taxonomy import Taxonomy

        costs, answers = (None, None) if self.costs is None else read_costs(self.costs, class_names)
        return Wanted(
            costs, answers, self.metric, self.abstain_cost, self.abstain_error, self.alpha, self.set_method,
            None if self.taxonomy is None else Taxonomy.read(self.taxonomy, class_names), self.confidence, self.unknown,
        )  # fmt: skip

    @property
    def files(self) -> tuple[str, ...]:
        """Files that are read."""
        return tuple(path for path in (self.costs, self.taxonomy) if path is not None)


def add_decisions(command: argparse.ArgumentParser) -> None:
    """Add the flags of decisions."""
    group = command.add_argument_group("decisions")
    group.add_argument(
        "--costs", metavar="FILE", help="answers of least cost: a .csv with class,cost, or with a column an answer"
    )
    group.add_argument(
        "--metric", metavar="NAME",
        help="answers for accuracy, balanced_accuracy, macro_f1 or 'recall of CLASS at least 0.9'",
    )  # fmt: skip
    group.add_argument(
        "--abstain-error", type=float, metavar="X", help="answer only as far as at most this share is wrong"
    )
    group.add_argument(
        "--abstain-cost", type=float, metavar="X", help="answer only where it costs less than this (a mistake: 1)"
    )
    group.add_argument(
        "--sets", type=float, metavar="ALPHA", help="sets of classes, of which this share may miss the right one"
    )
    group.add_argument(
        "--set-method", choices=SET_METHODS, help="what the sets promise that of (default: marginal, all samples)"
    )
    group.add_argument("--taxonomy", metavar="FILE", help="the deepest sure label of a tree: class,genus,family ...")
    group.add_argument(
        "--confidence", type=float, metavar="X", help=f"how sure that label must be (default: {CONFIDENCE})"
    )
    group.add_argument(
        "--unknown", nargs="?", const="probability", metavar="SCORE",
        help=f"whether a sample is of no known class, by {', '.join(UNKNOWN_SCORES)} (default: probability)",
    )  # fmt: skip


def decision_flags(arguments: argparse.Namespace) -> DecisionFlags | None:
    """Return what the flags ask for; None if that is nothing."""
    _check_together(arguments)
    if arguments.sets is not None and not 0 < arguments.sets < 1:
        raise UserError(f"--sets must lie between 0 and 1, such as 0.1 for 90 % coverage, but is {arguments.sets}")
    if arguments.unknown is not None and arguments.unknown not in UNKNOWN_SCORES:
        raise unknown_name("score for --unknown", arguments.unknown, UNKNOWN_SCORES)
    if arguments.confidence is not None and not 0 < arguments.confidence <= 1:
        raise UserError(f"--confidence must lie above 0 and up to 1, but is {arguments.confidence}")
    flags = DecisionFlags(
        arguments.costs, arguments.metric, arguments.abstain_cost, arguments.abstain_error, arguments.sets,
        arguments.set_method or "marginal", arguments.taxonomy,
        CONFIDENCE if arguments.confidence is None else arguments.confidence, arguments.unknown,
    )  # fmt: skip
    return None if flags == DecisionFlags() else flags


def _check_together(arguments: argparse.Namespace) -> None:
    """Refuse flags that contradict each other, or serve one that is not there."""
    if arguments.set_method is not None and arguments.sets is None:
        raise UserError("--set-method is how sets are made; give --sets ALPHA, too")
    if arguments.confidence is not None and arguments.taxonomy is None:
        raise UserError("--confidence is for labels of a tree; give --taxonomy FILE, too")
    given = [f"--{name}" for name in ("costs", "metric") if getattr(arguments, name) is not None]
    if len(given) == 2:
        raise UserError("--costs and --metric are two answers to one question; give one of them")
    if arguments.abstain_error is not None and (given or arguments.abstain_cost is not None):
        raise UserError(f"--abstain-error has answers of its own; leave out {(*given, '--abstain-cost')[0]}")
    if arguments.abstain_cost is not None and arguments.metric is not None:
        raise UserError("--abstain-cost is compared with costs, which a metric has not; give --costs instead of it")
