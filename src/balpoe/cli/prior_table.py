"""Flags of a table of priors, which predict and evaluate share."""

import argparse

from balpoe.deployment.table_source import TableSource
from balpoe.errors import UserError

__all__ = ["add_prior_table", "table_flags"]


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


def table_flags(arguments: argparse.Namespace) -> TableSource | None:
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
    return TableSource(
        arguments.prior_table, keys, arguments.prior_kind or "auto", arguments.prior_parent, arguments.prior_strength
    )
