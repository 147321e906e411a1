"""A table of priors in a file, and how it is to be read: what a command is told before anything is loaded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from balpoe.errors import UserError

if TYPE_CHECKING:
    from balpoe.deployment.prior_tables import PriorTable

__all__ = ["TableSource"]


class TableSource(NamedTuple):
    """Where a table of priors is, and how it is read.

    >>> TableSource("sites.csv", ("site", "month")).kind
    'auto'
    """

    path: str
    keys: tuple[str, ...]
    kind: str = "auto"
    parent: str | None = None
    strength: float | None = None

    def read(self, class_names: Sequence[str], source_prior: Any) -> "PriorTable":
        """Return the table, for logits of these classes, which must be posteriors of some prior."""
        from balpoe.deployment.prior_tables import PriorTable

        if source_prior is None:
            raise UserError(
                "--prior-table cannot adjust logits that are no posterior of a known prior; leave it out, or take a "
                "method that makes them for one"
            )
        options: dict[str, Any] = {"kind": self.kind, "parent": self.parent, "strength": self.strength}
        return PriorTable.read(self.path, class_names, self.keys, **options)
