"""The processes that share a list of images: started here, or by torchrun or SLURM."""

import contextlib
import functools
import hashlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import balpoe
from balpoe.cli.predict_parts import Parts, Share
from balpoe.cli.predict_rows import predict_files
from balpoe.errors import UserError, show_warning
from balpoe.experiments.model_file import model_path
from balpoe.training.distributed import check_devices, chosen_device
from balpoe.training.launchers import launcher, processes_and_machines

__all__ = ["predict_shared"]

START_METHOD = "spawn"  # forked, they would share what CUDA has begun
LAUNCH = (  # what differs from one start of torchrun or srun to the next, and not within one
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
)
PLACES = ("run", "inputs", "out", "device")  # what the description of a command says in another way, or not at all


def predict_shared(settings: Mapping[str, Any], devices: int) -> tuple[int, int] | None:
    """Take part in predicting images; return how many there were and how many could not be read, or None.

    None means that parts are lacking yet, which other processes have: the last one to end merges them.

    Args:
        settings: Arguments of `predict_files`.
        devices: Number of processes on each machine; 1 leaves it to a launcher.
    """
    if settings["out"] is None:
        raise UserError("several processes write parts beside the file that they are merged into; give --out FILE")
    if settings["track"] is not None:
        raise UserError(
            "--track-prior follows all images in their order, so that processes cannot share them; use one process"
        )
    check_devices(settings["device"], devices)
    devices, machines = processes_and_machines(devices, 1)
    found = launcher()
    if found is None:
        others = functools.partial(_others, settings, devices)
        return _predicted(settings, Share(0, devices, others=others))
    name = "LOCAL_RANK" if found.name == "torchrun" else "SLURM_LOCALID"
    local_rank = int(os.environ.get(name, found.rank % devices))
    launch = " ".join(os.environ.get(each, "") for each in LAUNCH)
    return _predicted(settings, Share(found.rank, devices * machines, local_rank, launch=launch))


def _predicted(settings: Mapping[str, Any], share: Share) -> tuple[int, int] | None:
    if chosen_device(settings["device"]) == "cuda":
        torch.cuda.set_device(share.local_rank % torch.cuda.device_count())
    return predict_files(**settings, parts=Parts(Path(settings["out"]), _described(settings), share))


def _described(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All that the rows depend on but the images' own contents: files by their digests."""
    model = model_path(settings["run"])
    table, decisions = settings["table"], settings["decisions"]
    read = [settings["prior"], table and table.path, *(decisions.files if decisions else ())]
    held_out = sorted((model.parent / "predictions" / "held-out").rglob("*")) if decisions else []
    return {
        **{name: value for name, value in settings.items() if name not in PLACES},
        "balpoe": balpoe.__version__,
        "model": _file_digest(model),
        "inputs": [os.path.abspath(each) for each in settings["inputs"]],
        "files": [_file_digest(Path(path)) for path in (*read, *held_out) if path and os.path.isfile(path)],
    }


def _file_digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def _others(settings: Mapping[str, Any], devices: int) -> Iterator[None]:
    """All processes but the first, until they have ended; on a processor each has its share of the threads."""
    context: Any = multiprocessing.get_context(START_METHOD)
    threads = torch.get_num_threads()
    each = max(1, threads // devices) if chosen_device(settings["device"]) == "cpu" else threads
    sentences = context.SimpleQueue()
    processes = [
        context.Process(target=_other, args=(dict(settings), rank, devices, each, sentences), daemon=True)
        for rank in range(1, devices)
    ]
    torch.set_num_threads(each)
    try:
        for process in processes:
            process.start()
        yield
        for process in processes:
            process.join()
    finally:
        torch.set_num_threads(threads)
        for process in processes:
            if process.is_alive():
                process.terminate()
                process.join()
    if not sentences.empty():
        raise UserError(sentences.get())
    for rank, process in enumerate(processes, start=1):
        if process.exitcode:
            raise UserError(
                f"process {rank} of {devices} ended with exit code {process.exitcode}, perhaps for want of memory; "
                "complete parts are kept, and the same command goes on from them"
            )


def _other(settings: Mapping[str, Any], rank: int, devices: int, threads: int, sentences: Any) -> None:
    """The work of another process: it ends early where the first one does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches all; the first one ends the others
    warnings.showwarning = show_warning
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()
    assert parent is not None
    try:
        _predicted(settings, Share(rank, devices, rank, parent.is_alive, merges=False))
    except UserError as error:
        with contextlib.suppress(OSError):  # nobody may be there to read it
            sentences.put(str(error))
