"""Flags that several commands share, and those made from the fields of a recipe."""

import argparse
import re
import tomllib
from collections.abc import Collection
from typing import Any, Protocol

from balpoe.errors import UserError
from balpoe.experiments.recipe import FIELDS, TYPES, Recipe, parse, updated
from balpoe.old_names import OLD_NAMES

__all__ = [
    "RECIPE_FLAGS",
    "Commands",
    "add_fields",
    "add_method_settings",
    "add_prior",
    "add_runs_root",
    "add_scoring",
    "changed_fields",
    "join_negative_values",
    "scoring_options",
]

RECIPE_FLAGS = tuple(
    name for name, item in FIELDS.items() if "filled_in" not in item.metadata and name != "method_settings"
)


class Commands(Protocol):
    """Where a verb adds its parser: what `ArgumentParser.add_subparsers` returns."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser:  # noqa: A002
        """Add a command and return its parser."""


def add_runs_root(command: argparse.ArgumentParser) -> None:
    """Add --runs."""
    command.add_argument("--runs", default="runs", metavar="FOLDER", help="where runs are kept (default: runs)")


def add_prior(command: argparse.ArgumentParser, *others: str) -> None:
    """Add --prior; `others` are words that this command takes beside those for any."""
    words = ", ".join(("uniform", "train", "forward-R", "backward-R", *others))
    command.add_argument("--prior", metavar="PRIOR", help=f"deployment prior: {words}, or a .csv or .json file")


def add_scoring(command: argparse.ArgumentParser) -> None:
    """Add what commands that print scores take: --prior, --validation, --shot-groups and --data-root."""
    add_prior(command, "estimate")
    command.add_argument(
        "--validation", metavar="PATH", help="labelled predictions of the same model, for --prior estimate"
    )
    add_fields(command, ("shot_groups", "data_root"))


def scoring_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values of `add_scoring`'s flags; shot groups that are not given are None."""
    estimated = arguments.prior == "estimate"
    if estimated and arguments.validation is None:
        raise UserError(
            "--prior estimate needs labelled predictions of the same model on other samples; give --validation PATH"
        )
    if arguments.validation is not None and not estimated:
        raise UserError("--validation serves --prior estimate alone; give both, or leave it out")
    given = changed_fields(arguments)
    return {
        "thresholds": updated(Recipe(), given).shot_groups if "shot_groups" in given else None,
        "data_root": given.get("data_root", ""),
        "prior": arguments.prior,
        "validation": arguments.validation,
    }


def add_fields(command: argparse.ArgumentParser, names: Collection[str], *, grouped: bool = False) -> None:
    """Add flags from fields: imbalance_ratio is --imbalance-ratio, a switch is --x/--no-x; help comes from the field.

    Old names of a field are taken, too, and not shown.
    """
    group: Any = command
    for name in names:
        metadata = FIELDS[name].metadata
        if grouped and "group" in metadata:
            group = command.add_argument_group(metadata["group"])
        choices = f": {', '.join(metadata['choices'])}" if "choices" in metadata else ""
        _add_flag(group, name, name, f"{metadata['doc']}{choices}".replace("%", "%%"))
        for old in (old for old, new in OLD_NAMES["recipe"].items() if new == name):
            _add_flag(group, old, name, argparse.SUPPRESS)
    command.set_defaults(fields=tuple(names))


def _add_flag(group: Any, flag: str, field: str, text: str) -> None:
    settings: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
    if TYPES[field] is not bool:
        metavar = FIELDS[field].metadata.get("metavar") or {int: "N", float: "X", str: "NAME"}.get(TYPES[field])
        settings = {"metavar": metavar or "X,X,..."}
    group.add_argument(f"--{flag.replace('_', '-')}", dest=field, default=None, help=text, **settings)


def add_method_settings(command: argparse.ArgumentParser) -> None:
    """Add --set, which collects into the field `method_settings`."""
    if "method_settings" in FIELDS:
        command.add_argument(
            "--set",
            dest="method_settings",
            action="append",
            type=method_setting,
            metavar="KEY=VALUE",
            help="a setting of the method, such as max_margin=0.5; give it once for each",
        )


def method_setting(text: str) -> tuple[str, float | bool | str]:
    """Return name and value, with the value as TOML reads it: a number, a switch, else text.

    >>> method_setting("max_margin=0.5"), method_setting("deferred=true"), method_setting("kind=cosine")
    (('max_margin', 0.5), ('deferred', True), ('kind', 'cosine'))
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"wants KEY=VALUE, such as max_margin=0.5, but is {text!r}")
    try:
        read = tomllib.loads(f"value = {value}")
    except ValueError:
        return name, value
    return name, read["value"] if len(read) == 1 and isinstance(read["value"], int | float | str) else value


def changed_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe fields given on the command line."""
    given = {name: value for name in arguments.fields if (value := getattr(arguments, name)) is not None}
    changes = {name: parse(name, value) if isinstance(value, str) else value for name, value in given.items()}
    settings = getattr(arguments, "method_settings", None)
    return changes if settings is None else {**changes, "method_settings": dict(settings)}


def join_negative_values(arguments: list[str]) -> list[str]:
    """Let `--lambdas -1,0,1` mean `--lambdas=-1,0,1`: argparse takes a leading minus for a flag.

    >>> join_negative_values(["--lambdas", "-1,0,1", "--fresh"])
    ['--lambdas=-1,0,1', '--fresh']
    """
    joined: list[str] = []
    for argument in arguments:
        if joined and re.fullmatch(r"--[a-z-]+", joined[-1]) and re.match(r"-(\d|\.\d|inf|nan)", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined
