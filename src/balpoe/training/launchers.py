"""Who started this process: torchrun, SLURM's srun, or neither; read from the environment alone."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from balpoe.errors import UserError

__all__ = ["Launcher", "in_one_process", "launcher", "processes_and_machines"]


class Launcher(NamedTuple):
    """A program that started this process together with others."""

    name: str
    rank: int
    """Number of this process among all."""
    devices: int
    """Processes on each machine."""
    num_nodes: int
    """Machines."""


def launcher(environment: Mapping[str, str] = os.environ) -> Launcher | None:
    """Return what started this process, or None if that was nobody who starts several.

    Args:
        environment: Variables and their values.

    >>> launcher({"TORCHELASTIC_RUN_ID": "a", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    Launcher(name='torchrun', rank=3, devices=2, num_nodes=2)
    >>> launcher({}) is None
    True
    """
    if "TORCHELASTIC_RUN_ID" in environment:  # also where srun starts torchrun
        return _launcher("torchrun", environment, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    # Of the step: a script that sbatch runs knows the tasks of its whole job, but is alone.
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return _launcher("srun", environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE")
    return None


def _launcher(name: str, environment: Mapping[str, str], *variables: str) -> Launcher:
    rank, world, devices = (int(environment.get(variable, "0")) for variable in variables)
    if not devices or world % devices:
        raise UserError(
            f"{name} started {world} processes, but not as many on each machine; "
            + ("give every torchrun the same --nproc-per-node" if name == "torchrun" else "add --ntasks-per-node")
        )
    return Launcher(name, rank, devices, world // devices)


def processes_and_machines(devices: int, num_nodes: int) -> tuple[int, int]:
    """Return how many processes train on each of how many machines: as a launcher has it, or else as asked.

    Args:
        devices: Processes asked for; 1 leaves it to a launcher.
        num_nodes: Machines asked for; 1 leaves it to a launcher.

    >>> processes_and_machines(2, 1)
    (2, 1)
    """
    found = launcher()
    if found is None:
        if num_nodes > 1:
            raise UserError(
                f"num_nodes is {num_nodes}, but nothing has started processes on several machines; type on each: "
                f"torchrun --nnodes {num_nodes} --nproc-per-node {devices} --rdzv-backend c10d "
                "--rdzv-endpoint FIRST_MACHINE:29500 -m balpoe train ..."
            )
        return devices, 1
    for name, asked, there in (("devices", devices, found.devices), ("num_nodes", num_nodes, found.num_nodes)):
        if asked not in (1, there):
            what = "processes on each machine" if name == "devices" else "machines"
            raise UserError(
                f"{name} is {asked}, but {found.name} started {there} {what}; leave it out, or let them agree"
            )
    return found.devices, found.num_nodes


def in_one_process(devices: int, num_nodes: int) -> bool:
    """Return whether a training is done by this process alone, so that it can be paused and stopped from here.

    Args:
        devices: Processes asked for.
        num_nodes: Machines asked for.

    >>> in_one_process(1, 1), in_one_process(2, 1)
    (True, False)
    """
    return devices == num_nodes == 1 and launcher() is None
