"""balpoe serve: a model that answers over HTTP."""

import argparse
import os

from balpoe.cli.flags import Commands, add_fields, add_prior, changed_fields
from balpoe.cli.prior_table import add_prior_table, table_flags
from balpoe.deployment.serve.settings import Limits, ServeSettings, read_token
from balpoe.errors import UserError
from balpoe.experiments.recipe import Recipe, updated

__all__ = ["add_parser"]

TOKEN = "BALPOE_TOKEN"  # noqa: S105 (the name of a variable)
LAST_PORT = 65535
LIMITS = {
    "batch": (int, "N", "samples that the network sees at once"),
    "queue": (int, "N", "samples that may wait; then the answer is 503"),
    "images": (int, "N", "samples of one request"),
    "megabytes": (float, "X", "size of a request's body"),
    "megapixels": (float, "X", "size of an image"),
    "seconds": (float, "X", "time of a request, from its body to its answer"),
    "body_seconds": (float, "X", "time in which a request's body must come"),
    "connections": (int, "N", "connections that are open at once"),
}


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser("serve", help="answer requests for a model's labels over HTTP")
    command.add_argument("model", metavar="MODEL", help="a model's file, or a run, as predict takes it")
    command.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this machine alone)")
    command.add_argument("--port", type=int, default=8000, metavar="N", help="port; 0 for any (default: 8000)")
    command.add_argument(
        "--token-file", metavar="FILE", help=f"file with the token that requests must bear (or set {TOKEN})"
    )
    add_prior(command)
    add_prior_table(command)
    command.add_argument("--taxonomy", metavar="FILE", help="tree of labels, for `level`: a .csv with class,genus,...")
    command.add_argument(
        "--held-out",
        metavar="RUN",
        help="run whose held-out samples serve decisions and drift (default: the model's)",
    )
    command.add_argument(
        "--window", type=int, default=1000, metavar="N", help="latest samples whose class mix is shown (default: 1000)"
    )
    command.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes with the network, on shared cores (default: 1)"
    )
    command.add_argument(
        "--threads", type=int, default=0, metavar="N", help="threads of each of them (default: the cores, shared out)"
    )
    add_fields(command, ("device",))
    group = command.add_argument_group("limits")
    for name, (kind, metavar, text) in LIMITS.items():
        default = getattr(Limits, name)
        group.add_argument(
            f"--most-{name.replace('_', '-')}", type=kind, default=default, metavar=metavar,
            help=f"{text} (default: {default:g})",
        )  # fmt: skip
    command.set_defaults(work=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    limits = Limits(**{name: getattr(arguments, f"most_{name}") for name in LIMITS})
    for name, least in (("port", 0), ("window", 2), ("workers", 1), ("threads", 0)):
        if getattr(arguments, name) < least:
            raise UserError(f"--{name} must be at least {least}, but is {getattr(arguments, name)}")
    if arguments.port > LAST_PORT:
        raise UserError(f"--port must be at most {LAST_PORT}, but is {arguments.port}")
    settings = ServeSettings(
        arguments.model,
        host=arguments.host,
        port=arguments.port,
        prior=arguments.prior,
        table=table_flags(arguments),
        taxonomy=arguments.taxonomy,
        held_out=arguments.held_out,
        token=read_token(arguments.token_file, os.environ.get(TOKEN)),
        device=updated(Recipe(), changed_fields(arguments)).device,
        workers=arguments.workers,
        threads=arguments.threads,
        window=arguments.window,
        limits=limits,
    )
    from balpoe.deployment.serve.start import serve

    return serve(settings)
