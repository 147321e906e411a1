"""balpoe card: a model card, in a folder that is ready to upload."""

import argparse

from balpoe.cli.flags import Commands

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser(
        "card", help="a model card with the run's scores, in a folder that is ready to upload"
    )
    command.add_argument(
        "run",
        metavar="RUN",
        help="one run: its path, NAME of one in runs, or latest; or a model's file, of which there are no scores",
    )
    command.add_argument("--out", metavar="FOLDER", help="folder to write (default: NAME-card)")
    command.add_argument(
        "--license", default="unknown", metavar="ID", help="licence, as the Hugging Face Hub calls it, such as mit"
    )
    command.set_defaults(work=_card)


def _card(arguments: argparse.Namespace) -> None:
    import shlex
    from pathlib import Path

    from balpoe.deployment.card import write_card
    from balpoe.deployment.loaded_model import load

    model = load(arguments.run)
    named = Path(arguments.run) if model.run is None else model.run.resolve().parent
    name = named.stem if model.run is None else named.name
    out = arguments.out or f"{name}-card"
    files = write_card(model, out, name=name, license=arguments.license)
    print(f"{out}: {', '.join(files)}")
    print(f"  hf upload USER/{shlex.quote(name)} {shlex.quote(out)}")
