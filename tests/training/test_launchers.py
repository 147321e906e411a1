import pytest

from balpoe import UserError
from balpoe.training.launchers import Launcher, launcher, processes_and_machines

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}
SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NNODES": "2", "SLURM_PROCID": "3",
}  # fmt: skip


@pytest.fixture
def started(monkeypatch):
    """Pretend that a launcher started this process."""

    def pretend(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    for name in {**TORCHRUN, **SRUN}:
        monkeypatch.delenv(name, raising=False)
    return pretend


def test_who_started_this_process():
    assert launcher(TORCHRUN) == Launcher("torchrun", 5, 4, 2)
    assert launcher(SRUN) == Launcher("srun", 3, 4, 2)
    assert launcher({**SRUN, **TORCHRUN}) == Launcher("torchrun", 5, 4, 2)  # one torchrun a machine, under srun
    alone = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    assert launcher(alone) == Launcher("torchrun", 0, 1, 1)


def test_a_script_of_sbatch_is_alone_although_its_job_has_many_tasks():
    inside = {name: value for name, value in SRUN.items() if name != "SLURM_STEP_NUM_TASKS"}
    assert launcher(inside) is None
    assert launcher({**inside, "SLURM_STEP_NUM_TASKS": "1"}) is None


def test_processes_that_are_not_as_many_on_each_machine():
    with pytest.raises(UserError, match=r"torchrun started 7 processes, but not as many .* the same --nproc-per-node"):
        launcher({**TORCHRUN, "WORLD_SIZE": "7"})
    without = {name: value for name, value in SRUN.items() if name != "SLURM_NTASKS_PER_NODE"}
    with pytest.raises(UserError, match=r"srun started 8 processes, but not as many .*; add --ntasks-per-node"):
        launcher(without)


def test_what_is_asked_for_and_what_was_started(started):
    assert processes_and_machines(3, 1) == (3, 1)
    with pytest.raises(UserError, match=r"type on each: torchrun --nnodes 2 --nproc-per-node 4 .* -m balpoe train"):
        processes_and_machines(4, 2)
    started(TORCHRUN)
    for asked in ((1, 1), (4, 1), (1, 2), (4, 2)):
        assert processes_and_machines(*asked) == (4, 2)
    with pytest.raises(UserError, match="devices is 8, but torchrun started 4 processes on each machine; leave it out"):
        processes_and_machines(8, 1)
    with pytest.raises(UserError, match="num_nodes is 3, but torchrun started 2 machines; leave it out"):
        processes_and_machines(4, 3)
