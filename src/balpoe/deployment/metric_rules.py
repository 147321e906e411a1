"""Decision rules for metrics that no fixed cost stands for: they are fitted on predictions.

Macro F1 is the mean over the classes of F_c = 2 TP_c / (P_c + A_c): the mass of right answers c, of class c, and of
answers c. It is no expected cost, but its derivative at any TP and A is one: an answer c to x is worth
(2 p_c(x) - F_c) / (P_c + A_c). The best rule is best for its own derivative (the linearisation of Frank and Wolfe, or
of Dinkelbach for one ratio). So TP and A, and the rule, are found in turns, with smaller and smaller steps, and the
best rule on the way is kept. TP and A are expected ones, from the probabilities: a rare class has too few labels to
count, but all samples tell of it.

The most accurate rule whose recall of a class is at least r weighs that class alone, by Lagrange: p_c w_c against the
other p. Each sample of the class has the least weight with which it is found, and the weight wanted is a quantile.
"""

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from balpoe.deployment.decision_rule import DecisionRule
from balpoe.deployment.posteriors import BLOCK_VALUES, Posteriors, label_weights
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.predictions import Predictions
from balpoe.method.intervals import LEAST_EVIDENCE, effective_counts, exact_interval
from balpoe.settings import checked

__all__ = ["METRICS", "macro_f1_rule", "metric_name", "recall_rule", "wanted_recall"]

METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "recall of CLASS at least R")
OTHER_NAMES = {"f1_macro": "macro_f1", "f1": "macro_f1"}
# Probabilities that macro F1 is fitted on, of held-out samples and of others, of which there may be very many: of more,
# every second, third, ... sample is taken. They are kept, 128 MiB at most, as each turn needs them all.
HELD_OUT_VALUES, OWN_VALUES = 2**24, 2**22
TURNS = 50
ABOVE = 0.001  # what a weight's logarithm is above where the last sample is found: beyond rounding in float32
ROUNDS = 200


def metric_name(metric: str) -> str:
    """Return the name of a metric as it is kept: "Balanced accuracy" is "balanced_accuracy".

    >>> metric_name("F1 macro"), metric_name("recall of red fox at least 90 %")
    ('macro_f1', 'recall of red fox at least 90 %')
    """
    if isinstance(metric, str) and metric.lower().startswith("recall of "):
        return metric
    name = re.sub(r"[\s-]+", "_", str(metric).strip().lower())
    name = OTHER_NAMES.get(name, name)
    if name not in METRICS:
        raise unknown_name("metric", metric, METRICS)
    return name


def wanted_recall(metric: str) -> tuple[str, float]:
    """Return class and recall of a text such as "recall of red fox at least 0.9".

    >>> wanted_recall("recall of red fox at least 90 %")
    ('red fox', 0.9)
    """
    found = re.fullmatch(r"recall of (.+) at least ([\d.]+)\s*(%?)", metric.strip(), flags=re.IGNORECASE)
    try:
        name, recall = found[1], float(found[2]) / (100 if found[3] else 1)  # type: ignore[index]
    except (TypeError, ValueError) as error:
        raise UserError(f"the metric {metric!r} is not understood; write recall of CLASS at least 0.9") from error
    return name, recall


def macro_f1_rule(posteriors: Posteriors, held_out: Predictions | None = None) -> DecisionRule:
    """Return the rule of the largest expected macro F1, over the classes that the deployment prior has.

    Args:
        posteriors: Posteriors of the samples to fit on, under the deployment prior: those to decide on, or held-out
            ones.
        held_out: Labels of the samples, where they are held-out ones: they are weighted to the deployment prior.

    >>> generator = torch.Generator().manual_seed(0)
    >>> rule = macro_f1_rule(Posteriors(2 * torch.randn(1000, 3, generator=generator), [0.8, 0.15, 0.05]))
    >>> rule.metric, bool(rule.costs[2] > rule.costs[0])
    ('macro_f1', True)
    """
    if not len(posteriors):
        raise UserError("there is no sample to fit macro F1 on; give some")
    weights = torch.ones(len(posteriors), dtype=torch.float64)
    if held_out is not None:
        weights = label_weights(held_out, posteriors.target_prior)
    most = OWN_VALUES if held_out is None else HELD_OUT_VALUES
    every = -(-len(posteriors) * posteriors.num_classes // most)
    kept = torch.arange(len(posteriors)) % every == 0
    weights = weights[kept] / weights[kept].sum()
    scale, charges, value = _best_for_f1(_probabilities(posteriors, kept), weights, posteriors.target_prior)
    return DecisionRule(
        posteriors.class_names,
        scale,
        charges,
        target_prior=posteriors.target_prior,
        metric="macro_f1",
        notes=(f"expected macro F1 of {len(weights):,} samples: {value:.3f}", *_unseen(held_out)),
    )


def _probabilities(posteriors: Posteriors, kept: Tensor) -> Tensor:
    """Probabilities of some samples, (kept, classes)."""
    found, start = torch.empty(int(kept.sum()), posteriors.num_classes, dtype=torch.float64), 0
    for rows, block in posteriors.probabilities():
        some = block[kept[rows]]
        found[start : start + len(some)] = some
        start += len(some)
    return found


def _best_for_f1(probabilities: Tensor, weights: Tensor, prior: Tensor) -> tuple[Tensor, Tensor, float]:
    """Scale and charge of each class, and the macro F1 expected of them."""
    present, classes = prior > 0, len(prior)
    scale, charges, sums = torch.ones_like(prior), torch.zeros_like(prior), torch.zeros(2, classes, dtype=torch.float64)
    best, size = (scale, charges, -1.0), max(1, BLOCK_VALUES // classes)
    for turn in range(TURNS):
        now = torch.zeros_like(sums)
        for p, mass in zip(probabilities.split(size), weights.split(size), strict=True):
            answers = (p * scale).sub_(charges).argmax(dim=1)
            now[0].index_add_(0, answers, mass * p.gather(1, answers[:, None]).squeeze(1))
            now[1].index_add_(0, answers, mass)
        value = float(_f1(now, prior)[present].mean())
        if value > best[2]:
            best = (scale, charges, value)
        sums = torch.lerp(sums, now, 2 / (turn + 2))  # steps that get smaller, or rules would alternate
        scale = torch.where(present, 2 / (prior + sums[1]).clamp(min=1e-300), 0.0)
        # A class that cannot be is never worth an answer.
        charges = torch.where(present, scale * _f1(sums, prior) / 2, scale.max())
    return best


def _f1(sums: Tensor, prior: Tensor) -> Tensor:
    """F1 of each class, from the mass of right answers and of all answers, (2, classes)."""
    return 2 * sums[0] / (prior + sums[1]).clamp(min=1e-300)


def recall_rule(
    held_out: Predictions, recalls: Mapping[str, float], posteriors: Posteriors, confidence: float | None = None
) -> DecisionRule:
    """Return the most accurate rule with at least these recalls on held-out predictions.

    Args:
        held_out: Labelled predictions outside of training.
        recalls: Wanted recall of each class that has one, by its name.
        posteriors: Posteriors of the held-out samples under the deployment prior.
        confidence: Probability with which the recall of further samples is as wanted, by the exact binomial bound, for
            each class by itself; None: the recall of the held-out samples is.

    >>> logits = torch.tensor([[[4.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])
    >>> held_out = Predictions(logits, torch.tensor([0, 1, 1]), [90, 10], [0], ("oak", "ash"))
    >>> recall_rule(held_out, {"ash": 1.0}, Posteriors(held_out)).costs
    tensor([1.0000, 2.7210], dtype=torch.float64)
    """
    wanted = {_label(name, held_out): _checked_recall(name, recall) for name, recall in recalls.items()}
    ranks = {label: _rank(label, recall, held_out, confidence) for label, recall in wanted.items()}
    logits: dict[int, list[Tensor]] = {label: [] for label in wanted}
    for rows, block in posteriors.logits():
        for label in wanted:
            logits[label].append(block[held_out.targets[rows] == label].double())
    tables = {label: torch.cat(blocks) for label, blocks in logits.items()}
    weights = _least_weights(tables, ranks, held_out)
    notes = [_about_recall(label, tables[label], weights, held_out) for label in wanted]
    metric = " and ".join(f"recall of {name} at least {recall:g}" for name, recall in recalls.items())
    return DecisionRule(
        held_out.class_names, weights.exp(), target_prior=posteriors.target_prior, metric=metric, notes=tuple(notes)
    )


def _least_weights(tables: Mapping[int, Tensor], ranks: Mapping[int, int], held_out: Predictions) -> Tensor:
    """The logarithm of the least weight of each class with which so many of its samples are found.

    Each weight needs those of the others. From nothing upwards, they end at the least that serve all, if any do.
    """
    weights = torch.zeros(held_out.num_classes, dtype=torch.float64)
    for _ in range(ROUNDS):
        before = weights.clone()
        for label, table in tables.items():
            needed = _needed(label, table, weights).sort().values[ranks[label] - 1]
            weights[label] = max(float(weights[label]), float(needed) + ABOVE)
        if torch.equal(before, weights):
            return weights
        if not bool(weights.isfinite().all()):
            break
    names = ", ".join(repr(held_out.class_names[label]) for label in tables)
    raise UserError(f"the recalls wanted of {names} cannot be had together on these samples; ask for less")


def _needed(label: int, table: Tensor, weights: Tensor) -> Tensor:
    """The logarithm of the weight with which each sample of a class is level with the best other answer."""
    others = (table + weights).index_fill(1, torch.tensor([label]), -torch.inf).amax(dim=1)
    return others - table[:, label]


def _about_recall(label: int, table: Tensor, weights: Tensor, held_out: Predictions) -> str:
    found = ((table + weights).argmax(dim=1) == label).double().mean()
    total = effective_counts(held_out.targets, held_out.num_classes, held_out.groups)[label]
    low, high = exact_interval(found * total, total).tolist()
    few = ", too few to tell" if int(held_out.evidence[label]) < LEAST_EVIDENCE else ""
    return (
        f"recall of {held_out.class_names[label]} on {len(table):,} held-out samples: {found:.3f} "
        f"({low:.3f} to {high:.3f}){few}"
    )


def _rank(label: int, recall: float, held_out: Predictions, confidence: float | None) -> int:
    """How many of the class's samples must be found."""
    samples, name = int((held_out.targets == label).sum()), held_out.class_names[label]
    if not samples:
        raise UserError(f"there is no held-out sample of class {name!r}, so that its recall is unknown; hold some out")
    if confidence is None:
        return max(1, math.ceil(recall * samples - 1e-9))
    if not 0.5 <= confidence < 1:
        raise UserError(f"confidence must be from 0.5 to below 1, but is {confidence}")
    hits = torch.arange(1, samples + 1)
    total = effective_counts(held_out.targets, held_out.num_classes, held_out.groups)[label]
    enough = exact_interval(hits / samples * total, total, 2 * confidence - 1)[0] >= recall
    if not bool(enough.any()):
        needed = math.ceil(math.log(1 - confidence) / math.log(recall)) if recall < 1 else None
        wanted = f"at least {needed:,} are needed" if needed else "no number of samples shows that"
        raise UserError(
            f"class {name!r} has {samples} held-out samples, too few for a recall of {recall:g} at confidence "
            f"{confidence:g}; {wanted}"
        )
    return int(enough.nonzero()[0]) + 1


def _label(name: str, held_out: Predictions) -> int:
    if name not in held_out.class_names:
        raise unknown_name("class", name, held_out.class_names)
    return held_out.class_names.index(name)


def _checked_recall(name: str, recall: float) -> float:
    if not 0 < checked(f"the recall of class {name!r}", float, {}, recall) <= 1:
        raise UserError(f"the recall of class {name!r} must lie above 0 and up to 1, but is {recall}")
    return recall


def _unseen(held_out: Predictions | None) -> tuple[str, ...]:
    if held_out is None:
        return ()
    names = [name for name, count in zip(held_out.class_names, held_out.evidence.tolist(), strict=True) if not count]
    listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return (f"{len(names)} classes have no held-out sample: {listed}",) if names else ()
