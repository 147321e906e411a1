"""The command line with slow features and slow batches, for tests that stop it in the middle: each prints a line."""

import multiprocessing.process
import time

from balpoe.cli import main as command_line
from balpoe.cli import train_choice
from balpoe.data.loading.streaming import StreamedData
from balpoe.experiments import cached_features
from balpoe.experiments.cost_estimate import UnitCosts
from balpoe.networks import ExpertNetwork


def main(arguments):
    """Run a command of balpoe; return its exit code."""
    multiprocessing.process._parent_process = None  # as if a user had started it, and a SIGTERM were for it
    cached_features.FEATURES_AT_ONCE = 2
    train_choice.measured_costs = lambda *_: UnitCosts(0.0, 0.0, 0.0)  # features of which no line is to be printed
    ExpertNetwork.features, StreamedData._batch = _slow(ExpertNetwork.features), _slow(StreamedData._batch)
    return command_line.main(arguments)


def _slow(quick):
    def call(*arguments):
        print("block", flush=True)
        time.sleep(0.1)
        return quick(*arguments)

    return call
