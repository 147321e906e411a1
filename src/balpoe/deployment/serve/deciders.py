"""Decisions that requests ask for: fitted once for what is wanted and its prior, and then kept for others."""

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.deciders import Decider, HeldOut, Wanted, unlabelled
from balpoe.deployment.serve.asked import DECISIONS, Ask
from balpoe.deployment.serve.priors import ChosenPrior
from balpoe.deployment.serve.refusals import RequestError, busy
from balpoe.deployment.taxonomy import Taxonomy
from balpoe.errors import UserError, unknown_name

__all__ = ["Deciders", "wanted_of"]

KEPT = 32
MOST_FITS = 8  # that wait for their turn
Aside = Callable[[Callable[[], Any]], Awaitable[Any]]


def wanted_of(asked: Ask, class_names: tuple[str, ...], taxonomy: Taxonomy | None = None) -> Wanted | None:
    """Return what a request wants decided; None for nothing.

    Args:
        asked: Request.
        class_names: Name of each class.
        taxonomy: The server's tree of labels, if it has one.

    >>> wanted_of(Ask(costs={"oak": 1.0, "ash": 5.0}), ("oak", "ash")).costs
    tensor([1., 5.], dtype=torch.float64)
    """
    if all(getattr(asked, name) is None for name in DECISIONS):
        return None
    if asked.level is not None and taxonomy is None:
        raise RequestError(422, "the server has no tree of labels; leave level out")
    costs, answers = (None, None) if asked.costs is None else _costs(asked.costs, class_names)
    unknown = tuple(asked.unknown) if isinstance(asked.unknown, list) else asked.unknown
    given: dict[str, Any] = {
        "costs": costs, "answers": answers, "metric": asked.metric, "abstain_cost": asked.abstain_cost,
        "abstain_error": asked.abstain_error, "alpha": asked.sets, "set_method": asked.set_method,
        "taxonomy": taxonomy if asked.level is not None else None, "confidence": asked.level,
        "unknown": unknown or None, "unknown_keep": asked.unknown_keep,
        "thresholds": None if asked.thresholds is None else asked.thresholds.model_dump(exclude_none=True),
    }  # fmt: skip
    return Wanted(**{name: value for name, value in given.items() if value is not None})


def _costs(costs: Mapping[str, Any], class_names: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...] | None]:
    """Costs in the order of the classes, and names of answers where each has a cost of its own."""
    if strange := costs.keys() - set(class_names):
        raise RequestError(422, f"costs: {unknown_name('class', min(strange), class_names)}")
    if lacking := [name for name in class_names if name not in costs]:
        raise RequestError(422, f"costs: class {lacking[0]!r} has no cost; give each class one")
    if not any(isinstance(each, Mapping) for each in costs.values()):
        return torch.tensor([costs[name] for name in class_names], dtype=torch.float64), None
    first = costs[class_names[0]]
    answers = (*(name for name in class_names if name in first), *(name for name in first if name not in class_names))
    if not answers or any(set(row) != set(answers) for row in costs.values()):
        raise RequestError(422, "costs must have the same answers for each class; give each a cost")
    table = [[costs[name][answer] for answer in answers] for name in class_names]
    return torch.tensor(table, dtype=torch.float64), answers


class Deciders:
    """Fitted deciders of a model, the latest of them kept.

    Args:
        model: Model.
        num_experts: Number of its experts.
        held_out: Held-out samples of its run, if there are any.
        taxonomy: Tree of labels, if there is one.
        aside: Function that runs another outside of the event loop.
    """

    def __init__(
        self, model: Any, num_experts: int, held_out: HeldOut | None, taxonomy: Taxonomy | None, aside: Aside
    ) -> None:
        self.model, self.held_out, self.taxonomy, self.aside = model, held_out, taxonomy, aside
        self.like = unlabelled(model, torch.zeros(0, num_experts, len(model.class_names)))
        self._kept: OrderedDict[tuple[str, bytes], Decider] = OrderedDict()
        self._fitting: dict[tuple[str, bytes], asyncio.Future[Decider]] = {}

    async def __call__(self, asked: Ask, prior: ChosenPrior) -> Decider | None:
        """Return what decides as a request asks, or refuse it; None where it asks for nothing."""
        wanted = wanted_of(asked, self.model.class_names, self.taxonomy)
        if wanted is None:
            return None
        try:
            needs_held_out = wanted.needs_held_out
        except UserError as error:  # of a metric that does not exist
            raise RequestError(422, str(error)) from None
        if self.model.source_prior is None:
            raise RequestError(422, "this model's scores belong to no known prior, so that they decide nothing")
        if needs_held_out and self.held_out is None:
            raise RequestError(422, "this is fitted on held-out predictions, which the server has not; ask without it")
        key = asked.model_dump_json(include=set(DECISIONS)), _key(prior)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._fitting:
            if len(self._fitting) >= MOST_FITS:
                raise busy("too many decisions are being fitted already", 5)
            self._fitting[key] = asyncio.ensure_future(self._fit(key, wanted, prior))
        return await asyncio.shield(self._fitting[key])  # others may wait for it when this one has left

    async def _fit(self, key: tuple[str, bytes], wanted: Wanted, prior: ChosenPrior) -> Decider:
        fit = functools.partial(
            Decider.fit, wanted, self.like, self.held_out, prior.target,
            estimated=prior.estimated, fallbacks=prior.fallbacks,
        )  # fmt: skip
        try:
            decider: Decider = await self.aside(fit)
        except UserError as error:
            raise RequestError(422, str(error)) from None
        finally:
            del self._fitting[key]
        self._kept[key] = decider
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return decider


def _key(prior: ChosenPrior) -> bytes:
    return prior.name.encode() + (b"" if prior.target is None else prior.target.numpy().tobytes())
