"""balpoe compare: several methods on the same data, side by side, and which of them is best."""

import argparse
import math
from pathlib import Path

from balpoe.cli.flags import RECIPE_FLAGS, Commands, add_fields, add_runs_root, add_settings
from balpoe.cli.train import asked_changes, check_name, chosen_seeds, starting_recipe
from balpoe.data.registry import DATASETS
from balpoe.errors import UserError
from balpoe.experiments.method_recipes import ALL, method_names, method_recipes
from balpoe.experiments.recipe import FIELDS, Recipe, updated
from balpoe.experiments.search import check_optuna, check_tunable

__all__ = ["add_parser"]

FLAGS = tuple(name for name in RECIPE_FLAGS if name not in ("method", "seed", "tune"))


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser("compare", help="several methods on the same data, side by side: which is best?")
    command.add_argument(
        "recipe",
        metavar="DATA",
        help="whatever train takes: a preset, a TOML file, a folder of images, a table of paths, or features",
    )
    command.add_argument(
        "--methods", default=ALL, metavar="NAME,NAME,...", help="methods of the catalogue (default: all that fit)"
    )
    command.add_argument("--seeds", default="1,2,3", metavar="N,N,...", help="seeds of each method (default: 1,2,3)")
    command.add_argument("--minutes", metavar="X", help="stop in time; what is unfinished goes on next time")
    command.add_argument(
        "--choose", action="store_true", help="pick the best method by held-out training data, not by the test part"
    )
    command.add_argument(
        "--tune",
        dest="searched",
        metavar="FIELD,FIELD,...",
        help="search these settings of each method by held-out training data first, such as mixup_alpha,lr",
    )
    command.add_argument("--trials", default="20", metavar="N", help="trials of each method (default: 20)")
    command.add_argument("--name", help="name of the comparison; by default that of the data, with what was changed")
    command.add_argument("--out", metavar="FILE", help="page to write (default: comparison.html beside the runs)")
    command.add_argument("--fresh", action="store_true", help="train anew; earlier runs are moved aside")
    command.add_argument("--as-released", action="store_true", help="start from every value of the released code")
    add_runs_root(command)
    add_settings(command)
    add_fields(command, FLAGS, grouped=True)
    item = FIELDS["tune"].metadata  # whose own flag has another meaning here
    command.add_argument(
        "--fine-tune", dest="tune", metavar="NAME", help=f"{item['doc']}: {', '.join(item['choices'])}"
    )
    command.set_defaults(work=_compare, seed=None, fields=(*FLAGS, "tune"))


def _compare(arguments: argparse.Namespace) -> None:
    start, base = starting_recipe(arguments.recipe, arguments.as_released, arguments.tune, arguments.network)
    # All else is to be equal, and cheap: alphas of mixup are not tried for each method and seed unless that is asked.
    start = updated(start, {"calibrate": _can_be_calibrated(start), "choose_mixup": False, "choose_lr": False})
    changes = asked_changes(arguments)
    recipe = updated(start, changes)
    if recipe.temperature != 1:
        raise UserError("a temperature is one method's own, and is not compared; leave it out, or add --calibrate")
    names, minutes = method_names(arguments.methods), _minutes(arguments.minutes)
    left_out: dict[str, str] = {}
    every = arguments.methods == ALL
    recipes = method_recipes(start, names, changes, arguments.settings, left_out if every else None)
    tune, trials = _tuned(arguments, recipes)
    if (arguments.choose or tune) and not recipe.calibrate:
        flag = "--choose" if arguments.choose else "--tune"
        raise UserError(f"{flag} asks samples outside of training, which {recipe.dataset} or --no-calibrate rules out")
    check_name(arguments.name)
    if arguments.out and Path(arguments.out).suffix not in (".html", ".htm", ".md"):
        raise UserError(f"the page is HTML or Markdown, but --out is {arguments.out}; end it with .html or .md")
    from balpoe.cli.compare_methods import Asked, compare_methods  # torch comes with it
    from balpoe.experiments.run_names import changed_name, differences_text

    folder = Path(arguments.runs) / (arguments.name or changed_name(f"{base}-compare", recipe, start))
    compare_methods(
        recipes,
        Asked(
            folder=folder,
            data=base,
            command=_command(arguments, base),
            changed=differences_text(recipe, start),
            start=recipe,
            seeds=chosen_seeds(arguments, recipe),
            every=every,
            left_out=left_out,
            minutes=minutes,
            choose=arguments.choose,
            tune=tune,
            trials=trials,
            fresh=arguments.fresh,
            page=Path(arguments.out) if arguments.out else None,
        ),
    )


def _can_be_calibrated(recipe: Recipe) -> bool:
    """Whether samples outside of training are known: not of the data sets that come as lists of files."""
    return recipe.dataset == "own" or DATASETS[recipe.dataset].has_ratio


def _tuned(arguments: argparse.Namespace, recipes: dict[str, Recipe]) -> tuple[tuple[str, ...], int]:
    """What to search for, and with how many trials."""
    if not arguments.trials.isdecimal() or int(arguments.trials) < 1:
        raise UserError(f"--trials wants a whole number from 1, but is {arguments.trials!r}")
    if arguments.searched is None:
        return (), int(arguments.trials)
    names = tuple(name.strip().replace("-", "_") for name in arguments.searched.split(","))
    check_tunable(names, recipes)
    check_optuna()
    return names, int(arguments.trials)


def _command(arguments: argparse.Namespace, base: str) -> str:
    """The command for the page, without places of a machine."""
    words = ["balpoe compare", base, f"--methods {arguments.methods}", f"--seeds {arguments.seeds}"]
    words += ["--choose"] if arguments.choose else []
    words += [f"--tune {arguments.searched} --trials {arguments.trials}"] if arguments.searched else []
    words += [f"--set {key}={value}" for key, value in arguments.settings]
    return " ".join(words)


def _minutes(text: str | None) -> float:
    """Minutes of --minutes; infinite if it is not given."""
    try:
        minutes = math.inf if text is None else float(text)
    except ValueError:
        minutes = math.nan
    if not minutes > 0 or (text is not None and math.isinf(minutes)):
        raise UserError(f"--minutes wants a number above 0, but is {text!r}")
    return minutes
