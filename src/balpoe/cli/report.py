"""balpoe report: runs, or anybody's saved predictions, as a page to show."""

import argparse
from pathlib import Path

from balpoe.cli.flags import Commands, add_scoring, scoring_options
from balpoe.errors import UserError
from balpoe.experiments.run_paths import run_path

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser("report", help="runs, or anybody's saved predictions, as a page to show")
    command.add_argument(
        "runs_or_predictions",
        nargs="+",
        metavar="RUN|PREDICTIONS",
        help="NAME of a run in runs for all its seeds, NAME/seed-N for one, latest for the last that was finished, a "
        "path of a run, or a file .npz of logits; the first is looked at closely",
    )
    command.add_argument("--out", metavar="FILE", help="file to write (default: report.html, or report.md)")
    command.add_argument("--baseline", metavar="RUN", help="compare with this, test sample by test sample")
    command.add_argument(
        "--format", choices=("html", "md"), help="a page, or tables as Markdown (default: as --out ends)"
    )
    command.add_argument(
        "--taxonomy",
        metavar="FILE",
        help="a tree of the classes for the part Decide: .csv with a line for each class, from the class upwards",
    )
    add_scoring(command)
    command.set_defaults(work=_report)


def _report(arguments: argparse.Namespace) -> None:
    given: list[str] = arguments.runs_or_predictions
    options = scoring_options(arguments, run_path(given[0]) if len(given) == 1 else None)
    ending = Path(arguments.out or "").suffix.removeprefix(".")
    if ending not in ("", "html", "htm", "md") or (arguments.format == "html" and ending == "md"):
        raise UserError(f"a report is HTML or Markdown, but --out is {arguments.out}; end it with .html or .md")
    kind = arguments.format or ("md" if ending == "md" else "html")
    out = Path(arguments.out or f"report.{kind}")
    from balpoe.report.console import console
    from balpoe.report.write import write_report

    paths = [str(run_path(each)) for each in given]
    baseline = None if arguments.baseline is None else str(run_path(arguments.baseline))
    files = write_report(paths, out, baseline=baseline, markdown=kind == "md", taxonomy=arguments.taxonomy, **options)
    size = out.stat().st_size / 1e6
    console().print(f"{out}: {size:.1f} MB; open it in a browser" if len(files) > 1 else f"{out}: written")
    if len(files) > 1:
        console().print(f"Its figures, as PNG and SVG: {files[1].parent}")
