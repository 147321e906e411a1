"""Processes that are forked from one that has imported torch and us: anew, each would take seconds for that."""

import gc
import importlib
import os
import sys
from multiprocessing import forkserver, get_context, set_start_method

READY = get_context("forkserver")
READY.set_forkserver_preload(
    [
        "pytest",
        "sklearn.datasets",
        "timm.models",
        "lightning_fabric",
        "balpoe.cli.train_seeds",
        "balpoe.experiments.run_folder",
        "balpoe.training.fit",
        "balpoe.training.sharded_strategy",
    ]
)


def start_forkserver():
    """Start the process that the others are forked from: one that a server starts lets Ctrl-C wait, in all of them."""
    forkserver.ensure_running()


def ready_command(arguments, output, variables=None, module="balpoe.cli.main"):
    """Start a command in a group of its own; it prints to the files OUTPUT.out and OUTPUT.err."""
    process = READY.Process(target=_command, args=(module, arguments, output, variables or {}))
    process.start()
    return process


def _command(module, arguments, output, variables):
    os.setsid()
    set_start_method(None, force=True)  # of the processes that it starts: Python's default, as for a user
    gc.freeze()  # what was imported before stays
    gc.set_threshold(50_000)  # instead of 700: to build the site makes many objects and few circles
    os.environ.update(variables)
    for descriptor, suffix in ((1, "out"), (2, "err")):
        with open(f"{output}.{suffix}", "wb") as file:
            os.dup2(file.fileno(), descriptor)
    sys.exit(importlib.import_module(module).main(arguments))
