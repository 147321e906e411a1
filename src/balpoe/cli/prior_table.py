"""Flags of a table of priors, which predict and evaluate share."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from balpoe.errors import UserError

if TYPE_CHECKING:
    from balpoe.deployment.prior_tables import PriorTable

__all__ = ["TableFlags", "add_prior_table", "table_flags"]


class TableFlags(NamedTuple):
    """What the flags say of a table of priors."""

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


def add_prior_table(command: argparse.ArgumentParser) -> None:
    """Add --prior-table, --keys and what else the table may need."""
    group = command.add_argument_group("a prior for each place and season")
    group.add_argument(
        "--prior-table", metavar="FILE", help="counts or shares of the classes by key, .csv, .tsv or .parquet"
    )
    group.add_argument("--keys", metavar="A,B,...", help="key columns, the widest first: region,site,month")
    group.add_argument(
        "--prior-kind", choices=("auto", "counts", "shares"),
        help="what the table has: counts, which are shrunk to what a place is in, or shares, as they are (default: "
        "counts if all numbers are whole)",
    )  # fmt: skip
    group.add_argument("--prior-parent", metavar="COLUMN", help="the table's column that says what the first key is in")
    group.add_argument(
        "--prior-strength", type=float, metavar="X",
        help="how many counts the shares of what a place is in are worth (default: fitted)",
    )  # fmt: skip


def table_flags(arguments: argparse.Namespace) -> TableFlags | None:
    """Return what the flags say; None without a table."""
    if arguments.prior_table is None:
        if arguments.keys is not None:
            raise UserError("--keys are the keys of a table of priors; give --prior-table FILE, too")
        for name in ("prior_kind", "prior_parent", "prior_strength"):
            if getattr(arguments, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} says how a table of priors is read; give --prior-table FILE, too")
        return None
    if arguments.prior is not None:
        raise UserError("--prior is one prior for all, --prior-table one for each place; give one of them")
    keys = tuple(key.strip() for key in (arguments.keys or "").split(","))
    if not all(keys):
        raise UserError("--prior-table needs the names of its key columns; give --keys, such as --keys site,month")
    return TableFlags(
        arguments.prior_table, keys, arguments.prior_kind or "auto", arguments.prior_parent, arguments.prior_strength
    )
