"""What predict decides of images, block by block: each with what was fitted for its own deployment prior."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from balpoe.cli.decision_flags import DecisionFlags
from balpoe.deployment.deciders import Decider, HeldOut, Wanted, unlabelled
from balpoe.deployment.place_deciders import PlaceDeciders
from balpoe.deployment.prior_tables import PriorTable
from balpoe.errors import UserError
from balpoe.experiments.model_file import Model

__all__ = ["Decisions", "decision_cells", "decision_columns", "set_separator"]

SEPARATORS = ("|", ";", "/", "\t")
ROWS_AT_ONCE = 64
ROWS_OF_PLACES = 4096  # so that each of many places, in any order, is asked once for several rows
LOGITS_AT_ONCE = 2**24

Keys = tuple[str, ...]


class Decisions:
    """Decisions on blocks of expert logits under one prior, or under the priors of a table.

    Args:
        run: The run that the model is of, for its held-out samples.
        model: Model.
        flags: What is asked for.
        priors: Deployment prior, (classes,), or a table of them; None for what the model is made for.
    """

    def __init__(self, run: str, model: Model, flags: DecisionFlags, priors: Tensor | PriorTable | None) -> None:
        self.model = model
        few, many = model.recipe.shot_groups
        self.wanted: Wanted = flags.read(model.class_names, (few, many))
        held_out = HeldOut.of_run(run) if self.wanted.needs_held_out else None
        self.columns = decision_columns(self.wanted)
        lists = self.wanted.alpha is not None or self.wanted.thresholds is not None
        self.separator = set_separator(model.class_names) if lists else ""
        like = unlabelled(model, torch.zeros(0, model.network.num_experts, model.num_classes))
        self._decider: Decider | PlaceDeciders
        if isinstance(priors, PriorTable):
            self._decider = PlaceDeciders(self.wanted, like, held_out, priors)
        else:
            self._decider = Decider.fit(self.wanted, like, held_out, priors)

    def __call__(self, expert_logits: Tensor, keys: Sequence[Keys]) -> list[dict[str, Any]]:
        """Return what is decided of each sample.

        Args:
            expert_logits: Logits as the network gives them, (samples, experts, classes).
            keys: Keys of each sample, for a table.
        """
        samples = unlabelled(self.model, expert_logits)
        if isinstance(self._decider, Decider):
            return self._decider(samples).rows()
        return self._decider(samples, self._decider.table.match(keys).rows).rows()

    @property
    def rows_at_once(self) -> int:
        """How many rows are best decided together."""
        if isinstance(self._decider, Decider):
            return ROWS_AT_ONCE
        size = self.model.network.num_experts * self.model.num_classes
        return max(ROWS_AT_ONCE, min(ROWS_OF_PLACES, LOGITS_AT_ONCE // size))

    def print_notes(self) -> None:
        """Say what came of the fits: at the start, or of places when all are known."""
        for note in self._decider.notes:
            print(f"balpoe: note: {note}", file=sys.stderr)


def decision_columns(wanted: Wanted) -> list[str]:
    """Return the names of the columns that are asked for.

    >>> decision_columns(Wanted(metric="accuracy", alpha=0.1))
    ['decision', 'set']
    """
    asked = {
        "decision": wanted.answers_asked_for,
        "set": wanted.alpha is not None,
        "level": wanted.taxonomy is not None,
        "level_label": wanted.taxonomy is not None,
        "unknown": wanted.unknown is not None,
        "yes": wanted.thresholds is not None,
    }
    return [name for name, is_asked in asked.items() if is_asked]


def set_separator(class_names: Sequence[str]) -> str:
    """Return what stands between the classes of a set in a .csv: the first of | ; / and tab that no class name has.

    >>> set_separator(("oak", "ash")), set_separator(("oak|red", "ash"))
    ('|', ';')
    """
    free = [each for each in SEPARATORS if not any(each in name for name in class_names)]
    if not free:
        raise UserError("class names have each of | ; / and tab, so that no set can be written; add --format jsonl")
    return free[0]


def decision_cells(row: dict[str, Any], columns: Sequence[str], separator: str) -> list[str]:
    """Return the cells of a row in a .csv.

    >>> decision_cells({"set": ["oak", "ash"], "unknown": False}, ["set", "unknown"], "|")
    ['oak|ash', 'false']
    """
    cells = []
    for name in columns:
        value = row[name]
        if isinstance(value, bool):
            value = "true" if value else "false"
        cells.append(separator.join(value) if isinstance(value, list) else value)
    return cells
