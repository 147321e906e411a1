import contextlib
import json
import os
import signal
import socket
import time

import pytest
import torch

from balpoe import UserError
from balpoe.training.distributed import check_devices, gathered_rows, launch, led_by_first
from processes import ready_command

QUICK = ["train", "digits-lt", "--epochs", "2", "--threads", "1", "--device", "cpu", "--runs"]


def network():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def together(work, devices):
    return launch(work, network(), device="cpu", precision="32-true", devices=devices)


class Gather:
    """Each process brings its rows of tables of several lengths, and of more than a pipe holds."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __call__(self, fabric, network):
        network.bias.data.fill_(float(1 + fabric.global_rank))
        found = []
        for length in self.lengths:
            whole = torch.arange(2.0 * length).view(length, 2)
            found.append(gathered_rows(fabric, whole[fabric.global_rank :: fabric.world_size], length))
        return {"rank": fabric.global_rank, "tables": found}


@pytest.mark.slow
def test_rows_of_three_processes_come_back_in_order_and_once(ready_processes):
    lengths, ours = (100_000, 7, 3, 2, 1), network()
    result = launch(Gather(lengths), ours, device="cpu", precision="32-true", devices=3)
    assert result["rank"] == 0
    for length, table in zip(lengths, result["tables"], strict=True):
        assert torch.equal(table, torch.arange(2.0 * length).view(length, 2))
    assert ours.bias.tolist() == [1.0, 1.0]  # the first one's weights


def test_one_process_gathers_nothing_and_works_on_the_network_itself():
    ours = network()
    result = launch(Gather((3,)), ours, device="cpu", precision="32-true")
    assert torch.equal(result["tables"][0], torch.arange(6.0).view(3, 2))
    assert ours.bias.tolist() == [1.0, 1.0]


class Fail:
    """The second process fails while the first one waits for it."""

    def __init__(self, how):
        self.how = how

    def __call__(self, fabric, network):
        if fabric.global_rank == 1:
            if self.how == "mistake":
                raise UserError("row 7 is not a picture; look at it")
            if self.how == "bug":
                raise ZeroDivisionError("a bug of ours")
            os.kill(os.getpid(), signal.SIGKILL)
        fabric.barrier()
        return "never"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "error", "sentence"),
    [
        ("mistake", UserError, "^row 7 is not a picture; look at it$"),
        ("bug", Exception, r"(?s)Traceback.*ZeroDivisionError: a bug of ours"),
        ("killed", UserError, "ended from outside .process 1 terminated with signal SIGKILL.; run the same command"),
    ],
)
def test_a_process_that_dies_ends_all_and_its_error_is_shown(ready_processes, how, error, sentence):
    with pytest.raises(error, match=sentence):
        together(Fail(how), devices=2)


def test_what_cannot_be_had():
    for arguments, sentence in (
        (("cpu", 0), "devices must be at least 1"),
        (("cpu", 1, 0), "num_nodes must be at least 1"),
        (("cpu", 2, 2), "torchrun --nnodes 2 --nproc-per-node 2"),
        (("cpu", 2, 1, True), "sync_batchnorm works between GPUs alone, but there are none"),
    ):
        with pytest.raises(UserError, match=sentence):
            check_devices(*arguments)


def test_without_a_launcher_a_command_is_called_as_it_is():
    assert led_by_first(lambda: 7, device="cpu") == 7


def evaluation(runs):
    return json.loads((runs / "digits-lt-epochs-2" / "seed-0" / "evaluation.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process gives."""
    from balpoe.cli.main import main

    runs = tmp_path_factory.mktemp("alone")
    assert main([*QUICK, str(runs)]) == 0
    return runs


def same_run(runs, alone):
    """The same files, each written once, with the same numbers up to the order of sums."""
    for folder in (runs, alone):
        assert [path.name for path in folder.iterdir()] == ["digits-lt-epochs-2"]
    ours, theirs = ({path.name for path in (r / "digits-lt-epochs-2" / "seed-0").iterdir()} for r in (runs, alone))
    assert ours == theirs
    assert evaluation(runs)["accuracy"] == pytest.approx(evaluation(alone)["accuracy"], abs=0.01)
    assert evaluation(runs)["nll"] == pytest.approx(evaluation(alone)["nll"], abs=1e-3)


@pytest.mark.slow
def test_torchrun(tmp_path, alone, capsys):
    """Two processes, one table; the same command, now of one process, finds the run finished."""
    from balpoe.cli.main import main

    runs, command = tmp_path / "runs", ["--standalone", "--nproc-per-node", "2", "-m", "balpoe", *QUICK]
    process = ready_command([*command, str(runs)], tmp_path / "printed", module="torch.distributed.run")
    process.join(300)
    assert process.exitcode == 0, (tmp_path / "printed.err").read_text()
    out = (tmp_path / "printed.out").read_text()
    assert out.count("Next: ") == 1
    assert out.count("BalPoE │") == 1
    same_run(runs, alone)
    assert main([*QUICK, str(runs)]) == 0
    assert "is finished already" in capsys.readouterr().out


def free_port():
    """A port below those that the system gives to connections: one of these could take it before a task does."""
    first = 20_000 + 10 * (os.getpid() % 1_000)
    for port in range(first, first + 10):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def srun(arguments, tasks, folder):
    """Start what srun would start on one machine; each task prints to files of its number in the folder."""
    port = free_port()
    same = {
        "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "test", "SLURM_NODELIST": "localhost", "SLURM_NNODES": "1",
        "SLURM_NODEID": "0", "SLURM_NTASKS": str(tasks), "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(tasks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    return [
        ready_command(arguments, folder / str(rank), {**same, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
        for rank in range(tasks)
    ]


@pytest.mark.slow
def test_srun(tmp_path, alone):
    """Two processes, each with a part of the weights: the first one speaks and writes, the other ends quietly."""
    processes = srun([*QUICK, str(tmp_path / "runs"), "--shard"], 2, tmp_path)
    for process in processes:
        process.join(300)
    outputs = [(tmp_path / f"{rank}.{suffix}").read_text() for rank in (0, 1) for suffix in ("out", "err")]
    assert [process.exitcode for process in processes] == [0, 0], outputs
    assert outputs[0].count("Next: ") == 1
    assert all(line.startswith("[Gloo]") for line in outputs[2].splitlines())  # torch's own
    assert not outputs[3]
    same_run(tmp_path / "runs", alone)


@pytest.mark.slow
def test_a_task_of_srun_that_is_killed_ends_the_others(tmp_path):
    processes = srun([*QUICK[:3], "100000", *QUICK[4:], str(tmp_path), "--checkpoint-seconds", "0"], 2, tmp_path)
    try:
        while not (tmp_path / "digits-lt-epochs-100000" / "seed-0" / "checkpoint.pt").exists():
            ended = [rank for rank, process in enumerate(processes) if not process.is_alive()]
            assert not ended, [(tmp_path / f"{rank}.err").read_text() for rank in ended]
            time.sleep(0.05)
        processes[1].kill()
        processes[0].join(120)
        stderr = (tmp_path / "0.err").read_text()
        assert processes[0].exitcode == 2
        assert "balpoe: process 0 of the training has lost the others" in stderr
        assert "Traceback" not in stderr
    finally:
        for process in processes:
            process.kill()
            process.join()
