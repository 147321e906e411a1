"""balpoe evaluate: the metrics of a run, of all seeds of one, of a model's file or of saved predictions."""

import argparse

from balpoe.cli.flags import Commands, add_scoring, scoring_options
from balpoe.errors import UserError

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
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
    add_scoring(command)
    command.set_defaults(work=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> None:
    options = scoring_options(arguments)
    if arguments.baseline is not None and arguments.prior is not None:
        raise UserError("--baseline compares logits as trained; leave out --prior, or evaluate each run with it")
    from balpoe.cli.evaluate_scores import evaluate

    evaluate(arguments.run, baseline=arguments.baseline, **options)
