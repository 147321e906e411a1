"""Processes that share images: as one process, byte for byte, whoever is killed."""

import json
import os

import pytest

from balpoe import UserError
from balpoe.cli import predict_processes
from balpoe.cli.main import main
from commands import sentence
from processes import READY, ready_command

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
SRUN = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "OMP_NUM_THREADS": "1"}
SITES = ("north", "south", "nowhere")


@pytest.fixture
def listed(forest, tmp_path):
    """A run, and a table of 400 images of some places, one of which is no image."""
    files = sorted(map(str, (forest / "trees").rglob("*.png")))
    (tmp_path / "bad.png").write_text("no image")
    rows = [f"{files[index % len(files)]},{SITES[index % 3]}" for index in range(399)]
    (tmp_path / "list.csv").write_text("\n".join(["path,site", *rows[:200], f"bad.png,{SITES[0]}", *rows[200:]]) + "\n")
    (tmp_path / "table.csv").write_text("site,ash,birch,cedar\nnorth,9,1,2\nsouth,1,30,7\n")
    return str(forest / "runs" / "trees" / "seed-0"), str(tmp_path / "list.csv")


@pytest.fixture
def ready_processes(monkeypatch):
    """Have other processes forked from one that has imported everything, instead of started anew."""
    monkeypatch.setattr(predict_processes, "START_METHOD", READY.get_start_method())


def together(arguments, folder, variables=TORCHRUN, dying=None):
    """Run two processes as a launcher does; return exit codes, what they printed, and the parts that they wrote."""
    log = folder / "written"
    log.write_text("")
    processes = []
    for rank in (0, 1):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        death = {"PARTS_BEFORE_DEATH": "1"} if rank == dying else {}
        own = {**variables, **ranks, **death, "PARTS_WRITTEN": str(log)}
        processes.append(ready_command(arguments, folder / f"printed-{rank}", own, module="small_parts"))
    for process in processes:
        process.join(120)
    printed = [(folder / f"printed-{rank}.{name}").read_text() for rank in (0, 1) for name in ("out", "err")]
    return [process.exitcode for process in processes], "".join(printed), sorted(log.read_text().split())


@pytest.mark.slow
def test_two_processes_one_of_them_killed_write_what_one_writes(listed, tmp_path, capsys):
    run, table = listed
    flags = ["--top", "2", "--prior-table", str(tmp_path / "table.csv"), "--keys", "site"]
    command = ["predict", run, table, "--device", "cpu", *flags, "--out"]
    assert main([*command, str(tmp_path / "one.csv")]) == 1
    notes = [line for line in capsys.readouterr().err.splitlines() if "lacks" in line]
    assert len(notes) == 1

    codes, printed, written = together([*command, str(tmp_path / "two.csv")], tmp_path, dying=1)
    assert codes == [0, -9]
    assert "this process has done its parts of" in printed
    assert [int(name.split("-")[1]) for name in written] == [0, 1, 2, 4, 6]
    assert not (tmp_path / "two.csv").exists()
    for part in (tmp_path / "two.csv.parts").glob("part-*"):
        counts, *rows = part.read_text().splitlines()
        assert json.loads(counts)["rows"] == len(rows) - (part.name == written[0])

    codes, printed, written = together([*command, str(tmp_path / "two.csv")], tmp_path)
    assert sorted(codes) == [0, 1]  # of the one that merged, for the bad image
    assert [int(name.split("-")[1]) for name in written] == [3, 5]
    assert "1 of 400 images could not be read" in printed
    assert [line for line in printed.splitlines() if "lacks" in line] == notes
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert not (tmp_path / "two.csv.parts").exists()


@pytest.mark.slow
def test_two_tasks_of_slurm_write_json_lines_with_decisions(listed, tmp_path):
    run, table = listed
    flags = ["--experts", "--sets", "0.2", "--prior", "train"]
    command = ["predict", run, table, "--device", "cpu", *flags, "--out"]
    assert main([*command, str(tmp_path / "one.jsonl")]) == 1
    codes, _, written = together([*command, str(tmp_path / "two.jsonl")], tmp_path, SRUN)
    assert sorted(codes) == [0, 1]
    assert len(written) == 7
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


@pytest.mark.slow
def test_devices_starts_the_others_and_merges(listed, tmp_path, capsys, monkeypatch, ready_processes):
    """With parts of the usual size, of which a doubled list has two."""
    run, table = listed
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["predict", run, table, table, "--device", "cpu", "--format", "jsonl", "--out"]
    assert main([*command, str(tmp_path / "one")]) == 1
    assert main([*command, str(tmp_path / "two"), "--devices", "2"]) == 1
    assert capsys.readouterr().err.count("2 of 800 images could not be read") == 2
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert not (tmp_path / "two.parts").exists()


def test_one_process_writes_parts_too_where_devices_are_named(listed, tmp_path, capsys):
    run, table = listed
    command = ["predict", run, table, "--device", "cpu", "--out"]
    assert main([*command, str(tmp_path / "one")]) == 1
    assert main([*command, str(tmp_path / "two"), "--devices", "1"]) == 1
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def test_torchrun_with_one_process_writes_where_it_is_told(listed, capsys, monkeypatch):
    """As without it: nothing is shared."""
    run, table = listed
    alone = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    assert main(["predict", run, table, "--device", "cpu"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 401


def test_what_cannot_be_shared_is_refused(listed, tmp_path, capsys):
    run, table = listed
    out = ["--out", str(tmp_path / "two.csv")]
    for flags, words in (
        (["--devices", "2"], "give --out FILE"),
        ([*out, "--devices", "0"], "devices must be at least 1, but is 0"),
        ([*out, "--devices", "two"], "argument --devices: invalid int value: 'two'"),
        ([*out, "--devices", "2", "--track-prior", "s.npz", "--half-life", "9"], "processes cannot share them"),
        ([*out, "--devices", "2", "--prior", "estimate"], "prior 'estimate'"),
        ([*out, "--devices", "2", "--top", "7"], "--top must be 1 to 3"),
        ([*out, "--devices", "2", "--device", "cuda"], "torch sees no GPU here"),
    ):
        assert main(["predict", run, table, *flags]) == 2
        assert words in sentence(capsys.readouterr().err)
    assert not os.path.exists(tmp_path / "two.csv.parts")


def test_another_model_or_prior_is_another_command(listed, tmp_path):
    run, table = listed
    (tmp_path / "prior.json").write_text('{"ash": 1, "birch": 1, "cedar": 1}')
    settings = {"run": run, "inputs": [table], "out": "x.csv", "device": "cpu", "top": 1, "table": None}
    settings |= {"decisions": None, "prior": str(tmp_path / "prior.json")}
    before = predict_processes._described(settings)
    assert predict_processes._described({**settings, "out": "y.csv", "device": "cuda"}) == before
    (tmp_path / "prior.json").write_text('{"ash": 2, "birch": 1, "cedar": 1}')
    assert predict_processes._described(settings) != before
    assert predict_processes._described({**settings, "top": 2}) != before


@pytest.mark.slow
def test_a_process_that_dies_is_told_in_a_sentence(monkeypatch, ready_processes):
    monkeypatch.setattr(predict_processes, "_other", _killed)
    others = predict_processes._others({"device": "cpu"}, 2)
    with pytest.raises(UserError, match=r"process 1 of 2 ended with exit code 7, .* the same command goes on"), others:
        pass


@pytest.mark.slow
def test_a_mistake_in_another_process_is_told_as_its_own(monkeypatch, ready_processes):
    monkeypatch.setattr(predict_processes, "_other", _mistaken)
    with (
        pytest.raises(UserError, match=r"^row 7 is empty; fill it in$"),
        predict_processes._others({"device": "cpu"}, 2),
    ):
        pass


def _mistaken(settings, rank, devices, threads, sentences):
    sentences.put("row 7 is empty; fill it in")


def _killed(*_):
    os._exit(7)
