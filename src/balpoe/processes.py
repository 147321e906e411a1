"""One process or several: the engine set up, the work launched, errors brought home."""

import copy
import time
from collections.abc import Callable
from typing import TypeVar

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.multiprocessing.spawn import ProcessRaisedException

from balpoe.errors import UserError, unknown_name
from balpoe.interrupts import Interrupt

__all__ = ["launch"]

DEVICES = ("auto", "cpu", "cuda", "mps")

Result = TypeVar("Result")
Work = Callable[[Fabric, nn.Module], Result]


def launch(work: "Work[Result]", network: nn.Module, *, device: str, devices: int, precision: str) -> Result:
    """Return work(fabric, network), done in this process or in several that train together.

    Several processes are started anew and get `work` by pickling. Each works on a copy of the network; the
    first one's weights come back into `network`, and its result is returned. A `UserError` that one of them
    raises is raised here.
    """
    fabric = _fabric(device, devices, precision)
    if devices > 1:
        network.share_memory()  # the way back for the weights
    with Interrupt() as interrupt:  # several processes: each gets the Ctrl-C as well, and ends its work in order
        try:
            result: Result = fabric.launch(_in_process, _Parcel(work, network))  # type: ignore[arg-type]
        except ProcessRaisedException as error:
            if interrupt.requested:
                raise KeyboardInterrupt from None
            raise _from_process(error) from error
    return result


class _Parcel:
    """Not a tuple or a dataclass, whose contents Fabric would copy on the way."""

    def __init__(self, work: "Work[Result]", network: nn.Module) -> None:
        self.work, self.network = work, network


def _in_process(fabric: Fabric, parcel: _Parcel) -> object:
    if fabric.world_size == 1:
        return parcel.work(fabric, parcel.network)
    network = copy.deepcopy(parcel.network)  # the caller's lies in memory that all processes share
    try:
        result = parcel.work(fabric, network)
        if fabric.is_global_zero:
            parcel.network.load_state_dict(network.state_dict())
        fabric.barrier()
    finally:
        # Gloo's thread lets go of a collective a moment after it reports it done, and wants Python's lock for
        # that; leaving holds the lock and waits for the thread. Without the pause one run in ten hangs here.
        time.sleep(0.2)
    torch.distributed.destroy_process_group()
    return result


def _fabric(device: str, devices: int, precision: str) -> Fabric:
    if device not in DEVICES:
        raise unknown_name("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device 'cuda' was asked for, but torch sees no GPU here; use 'cpu' or 'auto'")
    if devices < 1:
        raise UserError(f"devices must be at least 1, but is {devices}")
    on_cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if on_cuda and devices > torch.cuda.device_count():
        raise UserError(f"devices is {devices}, but torch sees {torch.cuda.device_count()} GPUs here")
    if precision == "auto":
        precision = "bf16-mixed" if on_cuda else "32-true"
    strategy = "auto" if devices == 1 else "ddp_spawn"
    return Fabric(accelerator=device, devices=devices, strategy=strategy, precision=precision)  # type: ignore[arg-type]


def _from_process(error: ProcessRaisedException) -> Exception:
    """The sentence of a UserError that was raised in another process; any other error as it is."""
    marker = f"{UserError.__module__}.{UserError.__name__}: "
    lines = [line for line in str(error).splitlines() if line.startswith(marker)]
    return UserError(lines[-1].removeprefix(marker)) if lines else error
