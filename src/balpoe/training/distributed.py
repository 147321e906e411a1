"""One process or several: the engine set up, the work launched, errors brought home.

Several processes are started here, or by torchrun or SLURM, on one machine or many. Either way the first one says
what is to be done, and the others get it by pickling.
"""

import copy
import functools
import logging
import multiprocessing
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException

from balpoe.errors import UserError, show_warning, unknown_name
from balpoe.training.checkpoints import load_checkpoint, save_checkpoint
from balpoe.training.engine import Engine, OneProcess
from balpoe.training.interrupts import Interrupt
from balpoe.training.launchers import launcher, processes_and_machines
from balpoe.training.sharding import in_parts, whole

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = [
    "check_devices",
    "chosen_device",
    "chosen_precision",
    "gathered_rows",
    "launch",
    "led_by_first",
    "one_device",
    "share_weights",
]

DEVICES = ("auto", "cpu", "cuda", "mps")
LONGEST_WAIT = timedelta(days=365)  # for the first process, which reads the data, and evaluates in between
# Gloo's thread lets go of a collective a moment after it reports it done, and wants Python's lock for that; leaving
# holds the lock and waits for the thread. Without the pause one run in ten hangs there.
PAUSE = 0.2
HEAD_START = 3.0  # seconds by which a process that failed is to end before those that miss it

logging.getLogger("lightning_fabric.utilities").setLevel(logging.WARNING)  # five lines whenever processes meet

Result = TypeVar("Result")
ProcessWork = Callable[[Engine, nn.Module], Result]


def launch(
    work: "ProcessWork[Result]",
    network: nn.Module,
    *,
    device: str,
    precision: str,
    devices: int = 1,
    num_nodes: int = 1,
    shard: bool = False,
) -> Result:
    """Return work(engine, network), done in this process or in several that train together.

    Each of several works on a copy of the first one's network, whose weights come back into `network`; the first
    one's result is returned. A `UserError` that one of them raises is raised here.

    Args:
        work: Function of engine and network; for several processes it can be pickled, and returns data and tensors.
        network: Network that the work changes.
        device: "auto", "cpu", "cuda" or "mps".
        precision: "auto", or a name of Lightning Fabric's.
        devices: Number of processes on each machine.
        num_nodes: Number of machines.
        shard: Whether the work leaves each of several processes a part of the weights (`sharding`).
    """
    devices, num_nodes = processes_and_machines(devices, num_nodes)
    if devices * num_nodes == 1:
        return work(one_device(device, precision), network)
    parcel = _Parcel(work, network, (device, precision, devices, num_nodes, shard))
    result: Result = _in_new_processes(parcel) if launcher() is None else _with_fellows(parcel)
    return result


def led_by_first(command: Callable[[], Result], *, device: str, devices: int = 1, num_nodes: int = 1) -> Result | None:
    """Return what a command gives; where a launcher started several processes, the first one alone calls it.

    The others take part in what it launches, and get None: reading, writing and printing are done once.

    Args:
        command: May call `launch`, any number of times.
        device: "auto", "cpu", "cuda" or "mps".
        devices: Number of processes on each machine.
        num_nodes: Number of machines.
    """
    check_devices(device, devices, num_nodes)
    found, together = launcher(), processes_and_machines(devices, num_nodes)
    if found is None or together == (1, 1):
        return command()
    _fabric(device, "auto", *together).launch()
    result = None
    try:
        if found.rank:
            _follow()
        else:
            result = command()
            _first_says(None)
    finally:
        time.sleep(PAUSE)
    _channel.cache_clear()
    torch.distributed.destroy_process_group()
    return result


def one_device(device: str, precision: str) -> Engine:
    """Return the engine for work in this process alone: its own, or Fabric's for precisions that its own lacks."""
    found = chosen_precision(device, precision)
    if found in OneProcess.PRECISIONS:
        return OneProcess(_one_place(device), found)
    return _fabric(device, found, 1, 1)


def share_weights(engine: Engine, network: nn.Module) -> None:
    """Give all processes the first one's weights and its statistics, which are each process's own."""
    if engine.world_size > 1:
        for tensor in network.state_dict().values():
            if not in_parts([tensor]):  # each process has its own
                torch.distributed.broadcast(tensor, src=0)


def gathered_rows(engine: Engine, part: Tensor, rows: int) -> Tensor | None:
    """Return all rows in order, on the CPU, in the first process, and None in the others.

    Args:
        engine: The engine.
        part: This process's rows, every `world_size`-th from its rank.
        rows: Number of rows of all processes together; each row belongs to one of them.
    """
    rank, world = engine.global_rank, engine.world_size
    if rank:
        if len(part):
            torch.distributed.send(part.to(engine.device).contiguous(), dst=0)
        return None
    whole = part.new_empty(rows, *part.shape[1:])
    whole[::world] = part
    for other in range(1, min(world, rows)):
        theirs = torch.empty_like(whole[other::world], device=engine.device, memory_format=torch.contiguous_format)
        torch.distributed.recv(theirs, src=other)
        whole[other::world] = theirs.cpu()
    return whole


class _Parcel:
    """Not a tuple or a dataclass, whose contents Fabric would copy on the way."""

    def __init__(self, work: ProcessWork[Any], network: nn.Module, engine: tuple[str, str, int, int, bool]) -> None:
        self.work, self.network, self.engine = work, network, engine
        self.result = Path()
        """File for the result of new processes: a pipe, which is Fabric's way, would block on more than it holds."""


def _in_new_processes(parcel: _Parcel) -> Any:
    parcel.network.share_memory()  # the way back for the weights
    with tempfile.TemporaryDirectory() as folder, Interrupt(_tell_processes) as interrupt:
        parcel.result = Path(folder, "result.pt")
        try:
            _fabric(*parcel.engine).launch(_in_new_process, parcel)  # type: ignore[arg-type]
        except ProcessException as error:
            if interrupt.requested:
                raise KeyboardInterrupt from None
            raise _from_process(error) from error
        return load_checkpoint(parcel.result)["result"]


def _in_new_process(fabric: "Fabric", parcel: _Parcel) -> None:
    warnings.showwarning = show_warning
    network = copy.deepcopy(parcel.network)  # the caller's lies in memory that all processes share
    try:
        result = _not_alone(parcel.work, fabric, network, HEAD_START)
        state = whole(network.state_dict(), keep=fabric.is_global_zero)
        if fabric.is_global_zero:
            parcel.network.load_state_dict(state)
            save_checkpoint(parcel.result, {"result": result})
        fabric.barrier()
    finally:
        time.sleep(PAUSE)
    torch.distributed.destroy_process_group()


def _with_fellows(parcel: _Parcel) -> Any:
    """Do the first process's work in all those that a launcher started, each of which calls this with its own."""
    _fabric(*parcel.engine[:4]).launch()  # without parts: those that follow the first one do not know of them yet
    network, parcel = parcel.network, _first_says(parcel)
    result = _take_part(parcel)
    network.load_state_dict(parcel.network.state_dict())
    return result


def _take_part(parcel: _Parcel) -> Any:
    fabric, network = _fabric(*parcel.engine), copy.deepcopy(parcel.network)
    fabric.launch()
    result = _not_alone(parcel.work, fabric, network)
    parcel.network.load_state_dict(whole(network.state_dict()))
    return result


def _follow() -> None:
    """Take part in all that the first process launches; how it ends is for that one to tell."""
    with Interrupt():
        while (parcel := _next_parcel()) is not None:
            _take_part(parcel)


def _next_parcel() -> _Parcel | None:
    try:
        parcel: _Parcel | None = _first_says(None)
    except RuntimeError as error:
        if not _is_loss(error):
            raise
        return None
    return parcel


def _first_says(value: Any) -> Any:
    """Return the first process's value in all of them."""
    values = [value]
    torch.distributed.broadcast_object_list(values, src=0, group=_channel())
    return values[0]


@functools.cache
def _channel() -> Any:
    """A group of all processes for what is said between two trainings, however long that takes."""
    return torch.distributed.new_group(backend="gloo", timeout=LONGEST_WAIT)


def _not_alone(work: ProcessWork[Result], engine: Engine, network: nn.Module, head_start: float = 0.0) -> Result:
    """Do the work; where it fails for want of another process, wait until that one's own error is known, and say so."""
    try:
        return work(engine, network)
    except RuntimeError as error:
        if not _is_loss(error):
            raise
        time.sleep(head_start)
        reason = str(error).partition("\n")[0].rpartition(": ")[2]
        raise UserError(
            f"process {engine.global_rank} of the training has lost the others ({reason}); "
            "if one of them failed, its own message says why; the same command goes on from the last checkpoint"
        ) from error


def _is_loss(error: RuntimeError) -> bool:
    return isinstance(error, torch.distributed.DistError) or "gloo/transport" in str(error)


def _tell_processes() -> None:
    """Pass an interrupt on: a Ctrl-C reaches all processes by itself, a signal to this one does not."""
    for process in multiprocessing.active_children():
        if process.pid is not None:
            os.kill(process.pid, signal.SIGINT)


def check_devices(
    device: str, devices: int, num_nodes: int = 1, sync_batchnorm: bool = False, shard: bool = False
) -> None:
    """Say in one sentence what cannot be had here.

    Args:
        device: "auto", "cpu", "cuda" or "mps".
        devices: Number of processes on each machine.
        num_nodes: Number of machines.
        sync_batchnorm: Whether batch normalisation is to be over all GPUs together.
        shard: Whether each process is to keep a part of the weights.
    """
    if device not in DEVICES:
        raise unknown_name("device", device, DEVICES)
    if device == "mps" and not torch.backends.mps.is_available():
        raise UserError("device 'mps' was asked for, but torch sees none here; use 'cpu' or 'auto'")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device 'cuda' was asked for, but torch sees no GPU here; use 'cpu' or 'auto'")
    if devices < 1 or num_nodes < 1:
        raise UserError(
            f"devices must be at least 1, but is {devices}; it is the number of processes"
            if devices < 1
            else f"num_nodes must be at least 1, but is {num_nodes}; it is the number of machines"
        )
    devices, num_nodes = processes_and_machines(devices, num_nodes)
    if _on_cuda(device) and devices > torch.cuda.device_count():
        raise UserError(f"devices is {devices}, but torch sees {torch.cuda.device_count()} GPUs here; use fewer")
    if shard and devices * num_nodes == 1:
        raise UserError(
            "shard leaves each of several processes a part of the weights, but there is one; add --devices 2"
        )
    if sync_batchnorm and not _on_cuda(device):
        raise UserError("sync_batchnorm works between GPUs alone, but there are none in this training; leave it out")


def chosen_device(device: str) -> str:
    """Return where one process computes: what is asked for, if it is here; for "auto" a GPU where there is one."""
    check_devices(device, 1)
    return ("cuda" if _on_cuda(device) else "cpu") if device == "auto" else device


def chosen_precision(device: str, precision: str) -> str:
    """Return the precision that "auto" stands for on a device; any other is itself."""
    return precision if precision != "auto" else "bf16-mixed" if _on_cuda(device) else "32-true"


def _on_cuda(device: str) -> bool:
    return device == "cuda" or (device == "auto" and torch.cuda.is_available())


def _one_place(device: str) -> torch.device:
    """Where one process trains: on a Mac "auto" is its GPU, though nothing else there is chosen so."""
    found = "mps" if device == "auto" and torch.backends.mps.is_available() else chosen_device(device)
    return torch.device(found, 0) if found == "cuda" else torch.device(found)


def _fabric(device: str, precision: str, devices: int, num_nodes: int, shard: bool = False) -> "Fabric":
    # Here, for they bring torch's compiler with them: one process alone does not wait for that.
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    from balpoe.training.sharded_strategy import ShardedStrategy

    precision, several, found = chosen_precision(device, precision), devices * num_nodes > 1, launcher()
    environment: Any = LightningEnvironment()  # said: in any job of SLURM Fabric takes srun for granted
    strategy: Any = "ddp_spawn" if several else "auto"
    if found is not None and several:
        strategy, environment = "ddp", {"torchrun": TorchElasticEnvironment, "srun": SLURMEnvironment}[found.name]()
    if shard and several:
        strategy = ShardedStrategy(devices * num_nodes)
    try:
        return Fabric(
            accelerator=device, devices=devices, num_nodes=num_nodes, strategy=strategy,
            precision=precision, plugins=[environment],  # type: ignore[arg-type]
        )  # fmt: skip
    except ValueError as error:
        raise UserError(f"precision {precision!r} is not known; use auto, 32-true, bf16-mixed or 16-mixed") from error


def _from_process(error: ProcessException) -> Exception:
    """The sentence of a UserError that was raised in another process; any other error as it is."""
    if isinstance(error, ProcessExitedException):
        return UserError(f"a process of the training was ended from outside ({error}); run the same command again")
    marker = f"{UserError.__module__}.{UserError.__name__}: "
    lines = [line for line in str(error).splitlines() if line.startswith(marker)]
    return UserError(lines[-1].removeprefix(marker)) if lines else error
