"""The command line: flags made from the fields of a recipe, one sentence for every mistake."""

import argparse
import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

import balpoe
from balpoe.data.registry import DATASETS
from balpoe.errors import UserError, unknown_name
from balpoe.experiments.presets import PRESETS, preset, read_recipe
from balpoe.experiments.recipe import FIELDS, TYPES, Recipe, parse, recipe_toml, updated
from balpoe.files import holds_features, is_user_data

__all__ = ["main"]

FLAGS = tuple(name for name, item in FIELDS.items() if "filled_in" not in item.metadata)
COMMANDS = ("demo", "recipes", "data", "train", "evaluate", "report", "predict", "reproduce")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 1 if some pictures could not be read, or 2 after one sentence about what went wrong."""
    arguments = _join_negative_values(list(sys.argv[1:] if argv is None else argv))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a ± on a terminal that has none
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = _run(arguments)
            sys.stdout.flush()
            return code
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    except BrokenPipeError:  # whoever read has seen enough: `balpoe recipes | head -1`
        with contextlib.suppress(OSError, AttributeError):  # nothing is to complain at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UserError as error:
        print(f"balpoe: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print(f"balpoe: cannot use{where}: {error.strerror or error}; choose another place", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        where = f" in {stop}" if str(stop) else ""
        kept = (
            "the same command begins anew"
            if arguments[0] in ("predict", "data")
            else "the same command goes on from here"
        )
        print(f"balpoe: stopped{where}; nothing is lost, {kept}", file=sys.stderr)
        return 2


def _run(arguments: list[str]) -> int:
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 0
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise unknown_name("command", arguments[0], COMMANDS)
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise _unknown_option(unknown[0], known)
    return int(known.command(known) or 0)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"balpoe: note: {message}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """argparse without abbreviations and without usage text in errors."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="balpoe", description="Balanced product of calibrated experts: classifiers that work on rare classes."
    )
    parser.add_argument("--version", action="version", version=f"balpoe {balpoe.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    command = commands.add_parser("demo", help="a minute on a CPU: cross-entropy against BalPoE on bundled data")
    command.add_argument("--fresh", action="store_true", help="train anew; earlier runs are moved aside")
    _add_runs_root(command)
    command.set_defaults(command=_demo, options=())

    command = commands.add_parser("recipes", help="the presets; one of them printed, ready to edit")
    command.add_argument("name", nargs="?", metavar="NAME", help="a preset")
    command.add_argument("--as-released", action="store_true", help="every value of the released code")
    command.set_defaults(command=_recipes, options=())

    command = commands.add_parser("data", help="classes, counts, imbalance and shot groups of a data set; bad files")
    sets = "; ".join(f"{name}, {entry.summary}" for name, entry in DATASETS.items())
    command.add_argument("name", metavar="NAME|FOLDER", help=f"your own data, as for train, or a data set: {sets}")
    _add_fields(
        command,
        ("imbalance_ratio", "profile", "shot_groups", "data_root", "download", "test_fraction", "group", "image_size"),
    )
    command.set_defaults(command=_data)

    command = commands.add_parser(
        "train", help="train a preset, a recipe file or own data; continues what was interrupted"
    )
    command.add_argument(
        "recipe",
        metavar="NAME|FILE|FOLDER",
        help="a preset, a TOML file, or own data: a folder with a subfolder of pictures for each class, a .csv or "
        ".parquet of paths and labels, or features in a .npz",
    )
    command.add_argument(
        "--baseline",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="train cross-entropy, too, to compare with (default: for own data)",
    )
    command.add_argument("--seeds", metavar="N,N,...", help="several seeds, one run each")
    command.add_argument("--name", help="of the run; by default the recipe's, with what was changed")
    command.add_argument("--fresh", action="store_true", help="train anew; an earlier run is moved aside")
    command.add_argument("--as-released", action="store_true", help="start from every value of the released code")
    _add_runs_root(command)
    _add_fields(command, FLAGS)
    command.set_defaults(command=_train)

    command = commands.add_parser("evaluate", help="the metrics of a run, or of all seeds of one")
    command.add_argument(
        "run",
        metavar="RUN",
        help="runs/NAME/seed-N, runs/NAME for all its seeds, a model's file, or predictions (a folder or .npz)",
    )
    command.add_argument(
        "--baseline",
        metavar="RUN",
        help="print the difference to this run: intervals for one seed, mean and deviation for several",
    )
    _add_prior(command)
    _add_fields(command, ("shot_groups", "data_root"))
    command.set_defaults(command=_evaluate)

    command = commands.add_parser("report", help="runs, or anybody's saved predictions, as a page to show")
    command.add_argument(
        "runs_or_predictions",
        nargs="+",
        metavar="RUN|PREDICTIONS",
        help="runs/NAME/seed-N, runs/NAME for all its seeds, or a file .npz of logits; the first is looked at closely",
    )
    command.add_argument("--out", metavar="FILE", help="to write (default: report.html, or report.md)")
    command.add_argument("--baseline", metavar="RUN", help="compare with this, test sample by test sample")
    command.add_argument(
        "--format", choices=("html", "md"), help="a page, or tables as Markdown (default: as --out ends)"
    )
    _add_prior(command)
    _add_fields(command, ("shot_groups", "data_root"))
    command.set_defaults(command=_report)

    command = commands.add_parser("predict", help="labels and probabilities of pictures, as CSV or JSON lines")
    command.add_argument("run", metavar="RUN", help="runs/NAME/seed-N, or a model's file")
    command.add_argument(
        "images", nargs="+", metavar="IMAGES", help="pictures, folders, patterns, or a .csv with a column of paths"
    )
    command.add_argument("--out", metavar="FILE", help="to write (default: standard output)")
    command.add_argument(
        "--format", choices=("csv", "jsonl"), help="a table, or a JSON object a line (default: as --out ends, or csv)"
    )
    command.add_argument(
        "--top", type=int, default=1, metavar="N", help="so many labels, the likeliest first (default: 1)"
    )
    command.add_argument("--experts", action="store_true", help="each expert's label, too")
    command.add_argument(
        "--prior",
        metavar="PRIOR",
        help="labels at the place of use: uniform, train, forward-R, backward-R, or a .csv or .json file",
    )
    _add_fields(command, ("device",))
    command.set_defaults(command=_predict)

    command = commands.add_parser(
        "reproduce", help="the paper's tables: trains what is missing, goes on where it stopped"
    )
    command.add_argument(
        "items", nargs="*", metavar="ITEM", help="such as table1, figure7, cifar100-lt-long, or all (default: all)"
    )
    command.add_argument("--minutes", type=float, metavar="X", help="stop in time (default: when all is done)")
    command.add_argument("--results", default="results", metavar="FOLDER", help="of the records (default: results)")
    _add_runs_root(command)
    _add_fields(command, ("data_root",))
    command.set_defaults(command=_reproduce)
    for command in commands.choices.values():
        command.set_defaults(flags=[flag for flag in command._option_string_actions if flag.startswith("--")])
    return parser


def _add_runs_root(command: argparse.ArgumentParser) -> None:
    command.add_argument("--runs", default="runs", metavar="FOLDER", help="where runs are kept (default: runs)")


def _add_prior(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--prior",
        metavar="PRIOR",
        help="labels at the place of use: uniform, train, forward-R, backward-R, estimate, or a .csv or .json file",
    )
    command.add_argument(
        "--validation", metavar="PATH", help="labelled predictions of the same model, for --prior estimate"
    )


def _add_fields(command: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Flags from fields: imbalance_ratio is --imbalance-ratio, a switch is --x/--no-x; help comes from the field."""
    group: Any = command
    for name in names:
        flag, metadata, kind = f"--{name.replace('_', '-')}", FIELDS[name].metadata, TYPES[name]
        if "group" in metadata and names is FLAGS:
            group = command.add_argument_group(metadata["group"])
        choices = f": {', '.join(metadata['choices'])}" if "choices" in metadata else ""
        text = f"{metadata['doc']}{choices}".replace("%", "%%")
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            metavar = metadata.get("metavar") or {int: "N", float: "X", str: "NAME"}.get(kind, "X,X,...")
            group.add_argument(flag, default=None, metavar=metavar, help=text)
    command.set_defaults(options=tuple(names))


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """The recipe fields given on the command line."""
    given = {name: getattr(arguments, name) for name in arguments.options if getattr(arguments, name) is not None}
    return {name: parse(name, value) if isinstance(value, str) else value for name, value in given.items()}


def _join_negative_values(arguments: list[str]) -> list[str]:
    """Let `--lambdas -1,0,1` mean `--lambdas=-1,0,1`: argparse takes a leading minus for a flag."""
    joined: list[str] = []
    for argument in arguments:
        if joined and re.fullmatch(r"--[a-z-]+", joined[-1]) and re.match(r"-(\d|\.\d|inf|nan)", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _unknown_option(option: str, known: argparse.Namespace) -> UserError:
    if not option.startswith("-"):
        return UserError(f"{option!r} is one word too many; see --help")
    return unknown_name("option", option.partition("=")[0], known.flags)


def _demo(arguments: argparse.Namespace) -> None:
    from balpoe.cli.demo import demo

    demo(Path(arguments.runs), fresh=arguments.fresh)


def _recipes(arguments: argparse.Namespace) -> None:
    if arguments.name is not None:
        chosen, usual = preset(arguments.name, arguments.as_released), preset(arguments.name)
        print(f"# balpoe train THIS_FILE.toml    ({_summary(arguments.name)})")
        changed = [name for name in FIELDS if getattr(chosen, name) != getattr(usual, name)]
        if changed:
            print(f"# as the released code has it, which differs in: {', '.join(changed)}")
        print(recipe_toml(chosen, comments=True), end="")
        return
    width = shutil.get_terminal_size((140, 24)).columns
    for name in PRESETS:
        print(textwrap.fill(f"{name:20}  {_summary(name)}", width, subsequent_indent=" " * 22))
    print("\nbalpoe recipes NAME prints one, ready to edit; balpoe train NAME trains it.")


def _summary(name: str) -> str:
    preset(name)  # a misspelt name is told here
    return " ".join((PRESETS[name].__doc__ or "").split("\n\n")[0].split())


def _data(arguments: argparse.Namespace) -> None:
    known = FIELDS["dataset"].metadata["choices"]
    if arguments.name in known and arguments.name != "own":
        start = preset(arguments.name) if arguments.name in PRESETS else Recipe(dataset=arguments.name)
    elif is_user_data(arguments.name):
        start, _ = _start(arguments.name, as_released=False)
    elif len(Path(arguments.name).parts) > 1:
        raise UserError(f"there is nothing at {arguments.name}; give a data set, or where your pictures are")
    else:
        raise unknown_name("data set", arguments.name, known)
    recipe = updated(start, _changes(arguments))
    from balpoe.cli.data import print_data

    print_data(arguments.name, recipe)


def _train(arguments: argparse.Namespace) -> None:
    start, base = _start(arguments.recipe, arguments.as_released)
    changes = _changes(arguments)
    if is_user_data(arguments.recipe) and (twice := {"dataset", "data_root"} & set(changes)):
        flag = min(twice).replace("_", "-")
        raise UserError(f"{arguments.recipe} says what to train on, so that --{flag} is one too many; leave it out")
    recipe = updated(start, changes)
    seeds, name = _seeds(arguments, recipe), arguments.name
    if (name is not None and not re.fullmatch(r"[^/\\\0]{1,150}", name)) or name in (".", ".."):
        raise UserError(
            f"--name wants the name of a folder, without slashes, but is {name!r}; --runs says where it lies"
        )
    baseline = start.dataset == "own" and not recipe.lambdas if arguments.baseline is None else arguments.baseline
    from balpoe.cli.train import train  # torch comes with it: not before the recipe is known to be right

    train(
        recipe,
        seeds,
        root=Path(arguments.runs),
        base=name or base,
        start=recipe if is_user_data(arguments.recipe) else start,  # a folder's first run is called as the folder is
        fixed=bool(name),
        fresh=arguments.fresh,
        baseline=baseline,
    )


def _start(text: str, as_released: bool) -> tuple[Recipe, str]:
    """The recipe to start from, and its name."""
    if text in PRESETS:
        return preset(text, as_released), f"{text}-as-released" if as_released else text
    path = Path(text)
    if is_user_data(path):
        own = preset("own-features" if holds_features(path) else "own")
        return updated(own, {"data_root": text}), path.resolve().name if path.is_dir() else path.stem
    if path.suffix == ".toml" or path.is_file():
        return read_recipe(path, as_released), path.stem
    if len(path.parts) > 1 or path.suffix:
        raise UserError(f"there is nothing at {text}; give a preset, a recipe file, or where your pictures are")
    raise UserError(f"{unknown_name('recipe', text, PRESETS)}; nor is there a file or folder of this name")


def _seeds(arguments: argparse.Namespace, recipe: Recipe) -> list[int]:
    if arguments.seeds is None:
        return [recipe.seed]
    if arguments.seed is not None:
        raise UserError("give --seed or --seeds, not both")
    try:
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
    except ValueError:
        raise UserError(f"--seeds wants whole numbers with commas between, but is {arguments.seeds!r}") from None
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds names a seed twice: {arguments.seeds}; give each once")
    return [updated(recipe, {"seed": seed}).seed for seed in seeds]


def _reproduce(arguments: argparse.Namespace) -> None:
    from balpoe.paper.reproduce import reproduce

    reproduce(
        arguments.items,
        minutes=arguments.minutes,
        results=Path(arguments.results),
        runs=Path(arguments.runs) / "reproduce",
        data_root=_changes(arguments).get("data_root", ""),
    )


def _predict(arguments: argparse.Namespace) -> int:
    ending = Path(arguments.out or "").suffix.removeprefix(".")
    kind = arguments.format or ("jsonl" if ending in ("jsonl", "json", "ndjson") else "csv")
    from balpoe.cli.predict import predict_files

    pictures, unreadable = predict_files(
        arguments.run,
        arguments.images,
        out=arguments.out,
        kind=kind,
        top=arguments.top,
        experts=arguments.experts,
        prior=arguments.prior,
        device=updated(Recipe(), _changes(arguments)).device,
    )
    if unreadable:
        print(f"balpoe: {unreadable:,} of {pictures:,} pictures could not be read; see their rows", file=sys.stderr)
    elif arguments.out is not None:
        print(f"{arguments.out}: pictures: {pictures:,}")
    return 1 if unreadable else 0


def _thresholds(arguments: argparse.Namespace) -> tuple[int, int] | None:
    """Of the shot groups, where they are given."""
    given = _changes(arguments).get("shot_groups")
    if given is None:
        return None
    few, many = updated(Recipe(), {"shot_groups": given}).shot_groups
    return few, many


def _check_prior(arguments: argparse.Namespace) -> None:
    estimated = arguments.prior == "estimate"
    if estimated and arguments.validation is None:
        raise UserError(
            "--prior estimate needs labelled predictions of the same model on other samples; give --validation PATH"
        )
    if arguments.validation is not None and not estimated:
        raise UserError("--validation serves --prior estimate alone; give both, or leave it out")


def _report(arguments: argparse.Namespace) -> None:
    _check_prior(arguments)
    from balpoe.report.console import console
    from balpoe.report.write import write_report

    ending = Path(arguments.out or "").suffix.removeprefix(".")
    if ending not in ("", "html", "htm", "md") or (arguments.format == "html" and ending == "md"):
        raise UserError(f"a report is HTML or Markdown, but --out is {arguments.out}; end it with .html or .md")
    kind = arguments.format or ("md" if ending == "md" else "html")
    out = Path(arguments.out or f"report.{kind}")
    files = write_report(
        arguments.runs_or_predictions,
        out,
        baseline=arguments.baseline,
        thresholds=_thresholds(arguments),
        markdown=kind == "md",
        data_root=_changes(arguments).get("data_root", ""),
        prior=arguments.prior,
        validation=arguments.validation,
    )
    size = out.stat().st_size / 1e6
    console().print(f"{out}: {size:.1f} MB; open it in a browser" if len(files) > 1 else f"{out}: written")
    if len(files) > 1:
        console().print(f"Its figures, as PNG and SVG: {files[1].parent}")


def _evaluate(arguments: argparse.Namespace) -> None:
    _check_prior(arguments)
    if arguments.baseline is not None and arguments.prior is not None:
        raise UserError("--baseline compares logits as trained; leave out --prior, or evaluate each run with it")
    from balpoe.cli.train import evaluate

    evaluate(
        arguments.run,
        baseline=arguments.baseline,
        thresholds=_thresholds(arguments),
        data_root=_changes(arguments).get("data_root", ""),
        prior=arguments.prior,
        validation=arguments.validation,
    )
