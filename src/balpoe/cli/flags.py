"""Flags that several commands share, and those made from the fields of a recipe."""

import argparse
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from balpoe.baselines.catalogue import METHODS
from balpoe.errors import UserError, unknown_name
from balpoe.experiments.recipe import FIELDS, TYPES, Recipe, parse, setting_owners, updated
from balpoe.old_names import OLD_METHODS, OLD_NAMES, OLD_SWITCHES
from balpoe.settings import parsed_setting
from balpoe.training.settings import OPTIMIZERS

__all__ = [
    "RECIPE_FLAGS",
    "Commands",
    "add_backbone",
    "add_fields",
    "add_prior",
    "add_runs_root",
    "add_scoring",
    "add_settings",
    "add_views",
    "changed_fields",
    "join_negative_values",
    "scoring_options",
    "with_settings",
]

RECIPE_FLAGS = tuple(
    name for name, item in FIELDS.items() if "filled_in" not in item.metadata and TYPES[name] is not dict
)

VIEWS = ("flips", "five-crops", "ten-crops")
"""The names of `evaluation.image_views`, which comes with torch."""


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


def add_backbone(command: argparse.ArgumentParser) -> None:
    """Add --weights."""
    command.add_argument(
        "--weights", default="", metavar="FILE",
        help="the backbone's weights, for a model that holds adapters alone (default: where they were in training)",
    )  # fmt: skip


def add_views(command: argparse.ArgumentParser) -> None:
    """Add --views."""
    command.add_argument(
        "--views", choices=VIEWS, help="look at several views of each image, and average: takes so many times as long"
    )


def scoring_options(arguments: argparse.Namespace, run: Path | None = None) -> dict[str, Any]:
    """Return the values of `add_scoring`'s flags; shot groups that are not given are None.

    Args:
        arguments: Arguments of the command.
        run: Folder of the one run that is scored, whose held-out predictions serve to estimate a prior.
    """
    estimated, validation = arguments.prior == "estimate", arguments.validation
    if estimated and validation is None:
        validation = _held_out(run)
        if validation is None:
            raise UserError(
                "--prior estimate needs labelled predictions of the same model on other samples; give --validation PATH"
            )
    if validation is not None and not estimated:
        raise UserError("--validation serves --prior estimate alone; give both, or leave it out")
    given = changed_fields(arguments)
    return {
        "thresholds": updated(Recipe(), given).shot_groups if "shot_groups" in given else None,
        "data_root": given.get("data_root", ""),
        "prior": arguments.prior,
        "validation": validation,
    }


def _held_out(run: Path | None) -> str | None:
    """What a calibrated run has kept of samples outside of its training."""
    found = [] if run is None else [*run.glob("calibration.json"), *run.glob("seed-*/calibration.json")]
    return str(found[0].parent / "predictions" / "held-out") if len(found) == 1 else None


def add_fields(command: argparse.ArgumentParser, names: Collection[str], *, grouped: bool = False) -> None:
    """Add flags from fields: imbalance_ratio is --imbalance-ratio, a switch is --x/--no-x; help comes from the field.

    Old names of a field are taken, too, and not shown.
    """
    group: Any = command
    for name in names:
        metadata = FIELDS[name].metadata
        if grouped and metadata["group"] != getattr(group, "title", None):
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
    if "off" in FIELDS[field].metadata:
        value, text = FIELDS[field].metadata["off"]
        group.add_argument(f"--no-{flag}", dest=field, default=None, action="store_const", const=value, help=text)


def add_settings(command: argparse.ArgumentParser) -> None:
    """Add --set, for the settings that the method and the optimiser have for themselves."""
    command.add_argument(
        "--set", dest="settings", action="append", default=[], type=_named_value, metavar="KEY=VALUE",
        help="a setting of the method or of the optimiser, such as betas=0.9,0.95; give it once for each",
    )  # fmt: skip
    for old in OLD_METHODS:
        command.add_argument(f"--{old.replace('_', '-')}", type=float, default=None, help=argparse.SUPPRESS)
    for old in OLD_SWITCHES:
        command.add_argument(f"--{old}", action=argparse.BooleanOptionalAction, default=None, help=argparse.SUPPRESS)


def _named_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"wants KEY=VALUE, such as betas=0.9,0.95, but is {text!r}")
    return name, value


def with_settings(recipe: Recipe, given: Iterable[tuple[str, str]]) -> Recipe:
    """Return a recipe with what --set gives, sorted into the settings of its method and of its optimiser."""
    left, known, changes = dict(given), list[str](), dict[str, Any]()
    tables = {"method": METHODS[recipe.method].settings, "optimizer": OPTIMIZERS[recipe.optimizer]}
    for owner, table in tables.items():
        ours = {key: parsed_setting(key, item, left.pop(key)) for key, item in table.items() if key in left}
        changes[f"{owner}_settings"] = {**getattr(recipe, f"{owner}_settings"), **ours}
        known += table
    for key in left:
        raise _no_setting(key, known)
    return updated(recipe, changes)


def _no_setting(key: str, known: Sequence[str]) -> UserError:
    """The error for a setting that neither the method nor the optimiser has."""
    if owners := " or ".join(f"--{kind} {name}" for kind, name in setting_owners(key)):
        return UserError(f"--set: {key} is a setting of {owners}; add that, or leave it out")
    if known:
        return UserError(f"--set: {unknown_name('setting', key, known)}")
    return UserError(f"--set: {key!r} is no setting, for neither method nor optimizer have any; leave it out")


def changed_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe fields given on the command line, fields of before among them."""
    names = (*arguments.fields, *OLD_METHODS, *OLD_SWITCHES)
    given = {name: value for name in names if (value := getattr(arguments, name, None)) is not None}
    return {name: parse(name, value) if isinstance(value, str) else value for name, value in given.items()}


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
