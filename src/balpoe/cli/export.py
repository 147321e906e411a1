"""balpoe export: a model as a file for other runtimes."""

import argparse

from balpoe.cli.flags import Commands, add_fields, changed_fields
from balpoe.errors import UserError

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser("export", help="a model as a file for other runtimes: ONNX, or a program of torch")
    command.add_argument("run", metavar="RUN|MODEL", help="a run, by name or path, latest, or a model's file")
    command.add_argument(
        "--format", choices=("onnx", "torch"), help="ONNX, or torch.export's .pt2 (default: as --out ends, or onnx)"
    )
    command.add_argument("--out", metavar="FILE", help="file to write (default: model.onnx or model.pt2 in the run)")
    command.add_argument(
        "--precision", choices=("fp32", "fp16", "int8"), default="fp32", help="bits of an ONNX file (default: fp32)"
    )
    command.add_argument("--experts", metavar="N,N,...", help="keep these experts alone, numbered from 0")
    command.add_argument(
        "--images", nargs="+", metavar="IMAGES", default=[],
        help="images that the file is checked with, and that int8 takes its scales from: files, folders, patterns, or "
        "a .csv with a column of paths",
    )  # fmt: skip
    command.add_argument(
        "--license",
        default="unknown",
        metavar="NAME",
        help="license of the weights, for the metadata (default: unknown)",
    )
    add_fields(command, ("data_root",))
    command.set_defaults(work=_export)


def _export(arguments: argparse.Namespace) -> None:
    experts = None if arguments.experts is None else _numbers(arguments.experts)
    from balpoe.cli.export_files import export_model

    export_model(
        arguments.run,
        out=arguments.out,
        kind=arguments.format,
        precision=arguments.precision,
        experts=experts,
        images=arguments.images,
        license=arguments.license,
        data_root=changed_fields(arguments).get("data_root"),
    )


def _numbers(text: str) -> list[int]:
    """Numbers of experts.

    >>> _numbers("0,2")
    [0, 2]
    """
    try:
        return [int(each) for each in text.split(",")]
    except ValueError as error:
        raise UserError(f"--experts wants numbers from 0, such as 0,2, but is {text!r}") from error
