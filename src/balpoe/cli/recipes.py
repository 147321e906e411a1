"""balpoe recipes: the presets, or one of them, ready to edit."""

import argparse
import shutil
import textwrap

from balpoe.baselines.catalogue import METHODS
from balpoe.cli.flags import Commands
from balpoe.experiments.presets import PRESETS, preset
from balpoe.experiments.recipe import FIELDS, recipe_toml

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser("recipes", help="the presets and the methods; one preset printed, ready to edit")
    command.add_argument("name", nargs="?", metavar="NAME", help="a preset")
    command.add_argument("--as-released", action="store_true", help="every value of the released code")
    command.set_defaults(work=_recipes)


def _recipes(arguments: argparse.Namespace) -> None:
    if arguments.name is not None:
        _print_recipe(arguments.name, arguments.as_released)
        return
    width = shutil.get_terminal_size((140, 24)).columns
    for name in PRESETS:
        _print_line(name, _summary(name), width)
    print("\nbalpoe recipes NAME prints one, ready to edit; balpoe train NAME trains it.")
    print("\nMethods, for --method:")
    for name, entry in METHODS.items():
        _print_line(name, f"{entry.summary} ({entry.paper})" if entry.paper else entry.summary, width)


def _print_line(name: str, text: str, width: int) -> None:
    print(textwrap.fill(f"{name:26}  {text}", width, subsequent_indent=" " * 28))


def _print_recipe(name: str, as_released: bool) -> None:
    chosen, usual = preset(name, as_released), preset(name)
    print(f"# balpoe train THIS_FILE.toml    ({_summary(name)})")
    changed = [field for field in FIELDS if getattr(chosen, field) != getattr(usual, field)]
    if changed:
        print(f"# as the released code has it, which differs in: {', '.join(changed)}")
    print(recipe_toml(chosen, comments=True), end="")


def _summary(name: str) -> str:
    return " ".join((PRESETS[name].__doc__ or "").split("\n\n")[0].split())
