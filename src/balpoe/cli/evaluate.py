"""balpoe evaluate: the metrics of a run, of all seeds of one, of a model's file or of saved predictions."""

import argparse

from balpoe.cli.decision_flags import add_decisions, decision_flags
from balpoe.cli.flags import Commands, add_backbone, add_scoring, add_views, scoring_options
from balpoe.cli.prior_table import add_prior_table, table_flags
from balpoe.errors import UserError
from balpoe.experiments.run_paths import holds_run, run_path

__all__ = ["add_parser"]

UNREAD = {
    "decisions": (
        ("baseline", "prior_template"),
        "{} measures something else than decisions; evaluate one after the other",
    ),
    "prior_table": (
        ("baseline", "prior_template"),
        "--prior-table compares with the same run as trained; leave out {}",
    ),
    "gains": (("shot_groups",), "the gains of --prior-table are of each place, not of shot groups; leave out {}"),
    "prior_template": (
        ("prior", "validation", "baseline", "shot_groups", "data_root"),
        "--prior-template writes the classes with their training shares and measures nothing; leave out {}",
    ),
    "baseline": (("prior",), "--baseline compares logits as trained; leave out {}, or evaluate each run with it"),
    "saved": (("weights",), "{} is read for a model's file and for --views alone; leave it out"),
    "saved_alone": (
        ("data_root",),
        "{} is read for a model's file, a run's --prior-table and --views alone; leave it out",
    ),
}
"""Flags that a way to evaluate does not read, and what is said then: the first entry that holds is heard.

Gains are what --prior-table measures without decisions; saved is where predictions are taken as they were saved, and
alone where no table wants the keys of their samples.
"""


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser("evaluate", help="the metrics of a run, or of all seeds of one")
    command.add_argument(
        "run",
        metavar="RUN",
        help="NAME of a run in runs for all its seeds, NAME/seed-N for one, latest for the last that was finished, a "
        "path of a run, a model's file, or predictions (a folder or .npz)",
    )
    command.add_argument(
        "--baseline",
        metavar="RUN",
        help="print the difference to this run: intervals for one seed, mean and deviation for several",
    )
    command.add_argument(
        "--prior-template", metavar="FILE", help="write the classes with their training shares, .csv or .json, to edit"
    )
    add_scoring(command)
    add_views(command)
    add_backbone(command)
    add_prior_table(command)
    command.add_argument(
        "--key-table", metavar="FILE",
        help="keys of the test samples, by path or in their order (default: the table that the run was trained on)",
    )  # fmt: skip
    add_decisions(command)
    command.add_argument(
        "--out", metavar="FILE", help="gains of --prior-table, or what decisions are worth, as .json, too"
    )
    command.set_defaults(work=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> None:
    decisions = decision_flags(arguments)
    if arguments.views:
        _check_views(arguments, others=decisions is not None)
    _check_unread(arguments, decides=decisions is not None)
    options = scoring_options(arguments, run_path(arguments.run) if arguments.prior == "estimate" else None)
    table = table_flags(arguments)
    if table is None and arguments.key_table:
        raise UserError("--key-table is of --prior-table; give that, too, or leave it out")
    if table is None and arguments.out and decisions is None:
        raise UserError("--out is for the gains of --prior-table, or for decisions; ask for one, or leave it out")
    if decisions is not None:
        from balpoe.cli.evaluate_decisions import evaluate_decisions

        where = {"table": table, "key_table": arguments.key_table, "out": arguments.out, "weights": arguments.weights}
        evaluate_decisions(str(run_path(arguments.run)), decisions, **options, **where)
        return
    if table is not None:
        from balpoe.cli.evaluate_sites import evaluate_sites

        path, root = str(run_path(arguments.run)), options["data_root"]
        evaluate_sites(
            path, table, key_table=arguments.key_table, out=arguments.out, data_root=root, weights=arguments.weights
        )
        return
    from balpoe.cli.evaluate_scores import Look, evaluate, write_prior_template

    if arguments.prior_template is not None:
        write_prior_template(str(run_path(arguments.run)), arguments.prior_template, arguments.weights)
        return
    baseline = None if arguments.baseline is None else str(run_path(arguments.baseline))
    look = Look(arguments.views or "", options.pop("data_root"), arguments.weights)
    evaluate(str(run_path(arguments.run)), baseline=baseline, look=look, **options)


def _check_views(arguments: argparse.Namespace, others: bool) -> None:
    """Refuse what rests on the predictions that a run has saved, which are of one view."""
    if arguments.prior == "estimate":
        raise UserError("--prior estimate is checked by single views of held-out samples; leave out --views")
    if others or arguments.prior_table is not None or arguments.prior_template is not None:
        raise UserError("--views measures labels and probabilities alone; leave it out with tables, costs and the like")


def _check_unread(arguments: argparse.Namespace, decides: bool) -> None:
    """Refuse flags that the way that is asked for would not read."""
    ways = _ways(arguments, decides)
    for way, (names, sentence) in UNREAD.items():
        given = (name for name in names if getattr(arguments, name) not in (None, ""))
        if way in ways and (name := next(given, None)):
            raise UserError(sentence.format(f"--{name.replace('_', '-')}"))


def _ways(arguments: argparse.Namespace, decides: bool) -> set[str]:
    """The entries of `UNREAD` that hold."""
    asked = {name for name in ("prior_table", "prior_template") if getattr(arguments, name) is not None}
    if decides:
        asked.add("decisions")
    elif "prior_table" in asked:
        asked.add("gains")
    compared = {"baseline"} if arguments.baseline is not None else set()
    if not _is_saved(arguments):
        return asked | compared
    asks_data = "prior_table" in asked and holds_run(run_path(arguments.run))  # whose recipe says where they are
    return asked | compared | {"saved"} | (set() if asks_data else {"saved_alone"})


def _is_saved(arguments: argparse.Namespace) -> bool:
    """Whether the predictions that are measured are there already."""
    path = run_path(arguments.run)
    return not arguments.views and (path.is_dir() or path.suffix == ".npz")
