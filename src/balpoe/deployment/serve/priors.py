"""The deployment prior of a request: a name, weights by class, or a place of the server's table."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from balpoe.deployment.prior_tables import PriorTable, unknown_keys_sentence
from balpoe.deployment.serve.refusals import RequestError
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.deployment_prior import parse_prior, prior_of_word, target_prior

__all__ = ["ChosenPrior", "Priors"]

AS_TRAINED = "as trained"
WORDS, SHAPES = ("uniform", "train"), ("forward-", "backward-")
"""What a stranger may name: no file, and no estimate, which is made of many samples."""
KEPT = 256


class ChosenPrior(NamedTuple):
    """The prior that a request is answered under."""

    name: str
    target: Tensor | None
    """Shares, (classes,), in float64; None: what the model is made for."""
    fallbacks: tuple[Tensor | None, ...] = ()
    """Priors to fit on where held-out samples are too few for this one: of what a place is in."""
    estimated: bool = False
    notes: tuple[str, ...] = ()


class Priors:
    """What a server knows of priors.

    Args:
        model: Model.
        assumed: Deployment prior of requests that name none: a word, or a .csv or .json file; None: the
            model's own, or as trained.
        table: Priors by place, if there is a table.
    """

    def __init__(self, model: Any, assumed: str | None = None, table: PriorTable | None = None) -> None:
        self.model, self.table = model, table
        self.assumed = ChosenPrior(AS_TRAINED, None)
        if assumed is not None:
            if model.source_prior is None:
                raise UserError("the model's logits are no posterior of a known prior; leave --prior out")
            is_file = assumed.lower().endswith((".csv", ".json"))
            self.assumed = ChosenPrior("the server's own" if is_file else assumed, parse_prior(assumed, model))
        elif table is not None:  # whoever does not say where is somewhere
            self.assumed = ChosenPrior(table.name(0), table.priors[0], (None,), table.estimated)
        elif model.default_prior is not None:  # an estimator's target_prior
            self.assumed = ChosenPrior("the model's own", model.default_prior.double())
        self._named = functools.lru_cache(KEPT)(self._of_name)

    def __call__(self, asked: Any) -> ChosenPrior:
        """Return the prior that a request asks for, or refuse it.

        Args:
            asked: Field `prior` of the request; None for the server's own.
        """
        if asked is None:
            return self.assumed
        if self.model.source_prior is None:
            raise RequestError(422, "this model's scores belong to no known prior; send none")
        try:
            if isinstance(asked, str):
                return self._named(asked)
            if isinstance(asked, Mapping):
                return ChosenPrior("weights", target_prior(asked, self.model))
            if asked and isinstance(asked[0], str):
                return self._of_place(tuple(asked))
            return ChosenPrior("weights", target_prior(list(asked), self.model))
        except UserError as error:
            raise RequestError(422, str(error).replace("target_prior", "prior")) from None

    def _of_name(self, name: str) -> ChosenPrior:
        keys = tuple(name.split("/"))
        if self.table is not None and (keys in self.table.row_of or (name,) in self.table.row_of):
            return self._of_place((name,) if (name,) in self.table.row_of else keys)
        if name not in WORDS and not name.startswith(SHAPES):
            raise unknown_name("prior", name, (*WORDS, *(f"{shape}R" for shape in SHAPES)))
        return ChosenPrior(name, prior_of_word(name, self.model))

    def _of_place(self, keys: tuple[str, ...]) -> ChosenPrior:
        table = self.table
        if table is None:
            raise UserError("the server has no table of priors; send a name, or a weight for each class")
        if len(keys) > len(table.keys):
            raise UserError(f"a place has {len(table.keys)} keys ({', '.join(table.keys)}), but {len(keys)} were sent")
        match = table.match([(*keys, *[""] * (len(table.keys) - len(keys)))])
        row = int(match.rows[0])
        above = tuple(table.priors[each] for each in table.lineage(row))
        notes = (unknown_keys_sentence(match.unknown, 1),) if match.unknown else ()
        return ChosenPrior(table.name(row), table.priors[row], (*above, None), table.estimated, notes)
