"""One process or several: the engine set up, the work launched, errors brought home."""

import copy
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import TypeVar

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException

from balpoe.errors import UserError, unknown_name
from balpoe.interrupts import Interrupt

__all__ = ["check_devices", "launch", "one_device"]

DEVICES = ("auto", "cpu", "cuda", "mps")

Result = TypeVar("Result")
Work = Callable[[Fabric, nn.Module], Result]


def launch(work: "Work[Result]", network: nn.Module, *, device: str, devices: int, precision: str) -> Result:
    """Return work(fabric, network), done in this process or in several that train together.

    Several processes are started anew and get `work` by pickling. Each works on a copy of the network; the
    first one's weights come back into `network`, and its result is returned. A `UserError` that one of them
    raises is raised here.
    """
    check_devices(device, devices)
    fabric, parcel = _fabric(device, devices, precision), _Parcel(work, network)
    result: Result
    if devices == 1:
        result = fabric.launch(_in_process, parcel)  # type: ignore[arg-type]
        return result
    network.share_memory()  # the way back for the weights
    with Interrupt(_tell_processes) as interrupt:
        try:
            result = fabric.launch(_in_process, parcel)  # type: ignore[arg-type]
        except ProcessException as error:
            if interrupt.requested:
                raise KeyboardInterrupt from None
            raise _from_process(error) from error
    return result


def one_device(device: str, precision: str) -> Fabric:
    """Return the engine for work in this process alone."""
    check_devices(device, 1)
    return _fabric(device, 1, precision)


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


def _tell_processes() -> None:
    """Pass an interrupt on: a Ctrl-C reaches all processes by itself, a signal to this one does not."""
    for process in multiprocessing.active_children():
        if process.pid is not None:
            os.kill(process.pid, signal.SIGINT)


def check_devices(device: str, devices: int) -> None:
    """Say in one sentence what cannot be had here."""
    if device not in DEVICES:
        raise unknown_name("device", device, DEVICES)
    if device == "mps" and not torch.backends.mps.is_available():
        raise UserError("device 'mps' was asked for, but torch sees none here; use 'cpu' or 'auto'")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device 'cuda' was asked for, but torch sees no GPU here; use 'cpu' or 'auto'")
    if devices < 1:
        raise UserError(f"devices must be at least 1, but is {devices}; it is the number of processes")
    on_cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if on_cuda and devices > torch.cuda.device_count():
        raise UserError(f"devices is {devices}, but torch sees {torch.cuda.device_count()} GPUs here; use fewer")


def _fabric(device: str, devices: int, precision: str) -> Fabric:
    on_cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if precision == "auto":
        precision = "bf16-mixed" if on_cuda else "32-true"
    strategy = "auto" if devices == 1 else "ddp_spawn"
    try:
        return Fabric(accelerator=device, devices=devices, strategy=strategy, precision=precision)  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"precision {precision!r} is not known; use auto, 32-true, bf16-mixed or 16-mixed") from error


def _from_process(error: ProcessException) -> Exception:
    """The sentence of a UserError that was raised in another process; any other error as it is."""
    if isinstance(error, ProcessExitedException):
        return UserError(f"a process of the training was ended from outside ({error}); run the same command again")
    marker = f"{UserError.__module__}.{UserError.__name__}: "
    lines = [line for line in str(error).splitlines() if line.startswith(marker)]
    return UserError(lines[-1].removeprefix(marker)) if lines else error
