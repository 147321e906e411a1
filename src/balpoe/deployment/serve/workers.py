"""Who computes for a server: processes that are replaced when they die, or, in tests, this very process."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.image_files import usable_cores
from balpoe.deployment.serve.batching import Forward, Outcome
from balpoe.deployment.serve.network import Network, decode_aside, loaded_model
from balpoe.deployment.serve.reading import BodyReader
from balpoe.deployment.serve.settings import Limits, ServeSettings
from balpoe.deployment.serve.worker import Make, Worker

__all__ = ["Workers"]


class Workers:
    """Networks, each for a thread of its own, and what reads large bodies and decodes images that take long.

    Args:
        networks: Functions from samples to the outcome of each.
        reader: Function from bodies, each with its type, to the outcome of each.
        decoder: Function from image files to the outcome of each.
        processes: Processes behind them, those of the networks first.
    """

    def __init__(
        self, networks: Sequence[Forward], reader: Forward, decoder: Forward, processes: Sequence[Worker] = ()
    ) -> None:
        self.networks, self.reader, self.decoder, self.processes = networks, reader, decoder, processes

    @staticmethod
    def here(model: Any, limits: Limits) -> "Workers":
        """Return the work of a model that is loaded in this process.

        Args:
            model: Model, as `balpoe.load` gives it.
            limits: How much requests may take.
        """
        reader = BodyReader(model.preprocessing, len(model.class_names), limits)
        return Workers([Network(model)], reader.outcomes, decode_aside(model.preprocessing, limits.pixels))

    @staticmethod
    def started(settings: ServeSettings, preprocessing: Preprocessing, classes: int) -> "Workers":
        """Return workers in processes of their own, which load the model themselves, when all are ready.

        Args:
            settings: What the server was told.
            preprocessing: How the model takes samples.
            classes: Number of its classes.
        """
        told = settings.model, settings.device, settings.threads or _threads(settings.workers)
        seconds = 2 * settings.limits.seconds + 10  # long after the last one has stopped waiting
        makes: list[tuple[Make, tuple[Any, ...]]] = [(_network, told)] * settings.workers
        makes.append((_reader, (preprocessing, classes, settings.limits)))
        if len(preprocessing.size) == 3:
            makes.append((_decoder, (preprocessing, settings.limits.pixels)))
        processes = [Worker(make, arguments, seconds) for make, arguments in makes]
        found = [_through(each) for each in processes]
        workers = Workers(found[: settings.workers], found[settings.workers], found[-1], processes)
        try:
            for each in processes:
                each.start()
        except BaseException:
            workers.close()
            raise
        return workers

    @property
    def alive(self) -> bool:
        """Whether a network is there to answer."""
        networks = self.processes[: len(self.networks)]
        return not networks or any(each.alive for each in networks)

    @property
    def deaths(self) -> int:
        """How many processes died."""
        return sum(each.deaths for each in self.processes)

    def stop_replacing(self) -> None:
        """Let no further process be started: the server stops."""
        for each in self.processes:
            each.stop_replacing()

    def close(self) -> None:
        """End all processes, each after what it is at."""
        for each in self.processes:
            each.close()


def _threads(workers: int) -> int:
    """Threads of each of several workers, which share the cores; 0, that is all of them, for the only one."""
    return 0 if workers == 1 else max(1, usable_cores() // workers)


def _network(path: str, device: str, threads: int) -> Callable[[list[Any]], list[Any]]:
    """What a process does that has the network."""
    network = Network(loaded_model(path, device, threads), threads)
    return lambda samples: _packed(network(_unpacked(samples)))


def _reader(preprocessing: Preprocessing, classes: int, limits: Limits) -> Callable[[list[Any]], list[Any]]:
    """What a process does that reads large bodies."""
    return BodyReader(preprocessing, classes, limits).outcomes


def _decoder(preprocessing: Preprocessing, pixels: int) -> Callable[[list[Any]], list[Any]]:
    """What a process does that decodes images which take long."""
    torch.set_num_threads(1)
    decode = decode_aside(preprocessing, pixels)
    return lambda images: _packed(decode(images))


def _through(worker: Worker) -> Forward:
    """What hands samples to a process, and its outcomes back."""

    def forward(samples: Sequence[Any]) -> Sequence[Outcome]:
        return _unpacked(worker(_packed(samples)))

    return forward


def _packed(items: Sequence[Any]) -> list[Any]:
    """Tensors as arrays, which travel by value: torch would share their memory between the processes."""
    return [each.numpy() if isinstance(each, Tensor) else each for each in items]


def _unpacked(items: Sequence[Any]) -> list[Any]:
    return [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in items]
