"""The table of `balpoe doctor`: a healthy machine, and each way in which one can be ill."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from balpoe.cli import doctor_checks
from balpoe.cli.doctor import print_findings
from balpoe.cli.doctor_checks import (
    Finding,
    Requirement,
    cache_finding,
    data_finding,
    extra_finding,
    gpu_finding,
    package_finding,
    python_finding,
    torch_finding,
    triton_finding,
    weights_finding,
)


def test_on_this_machine(run, tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BALPOE_DATA", str(tmp_path))
    made(tmp_path, "cifar100-lt")
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    rows = dict(re.findall(r"^(\S+) +(works|missing|broken) ", out, flags=re.MULTILINE))
    assert rows["Python"] == rows["packages"] == rows["torch"] == rows["data"] == rows["cache"] == "works"
    assert rows["weights"] == "missing"  # of a new cache
    assert f"torch {torch.__version__}" in out
    assert "cifar100-lt" in out
    assert not (tmp_path / "cache").exists()  # nothing is changed


def made(root, name):
    """The files of a benchmark, all empty."""
    folder, files = doctor_checks.BENCHMARKS[name]
    (root / folder).mkdir()
    for each in files:
        (root / folder / each).touch()


def test_a_machine_where_nothing_works(tmp_path):
    """Packages that do not load, a folder that is none, a home that is not there: still the whole table."""
    broken = tmp_path / "packages"
    broken.mkdir()
    for name in ("torch", "torchvision", "rich", "numpy", "timm"):
        (broken / f"{name}.py").write_text(f"raise OSError('{name}.so is no library\\nand more')")
    path = os.pathsep.join([str(broken), *filter(None, [str(Path(doctor_checks.__file__).parents[2])])])
    environment = {"PYTHONPATH": path, "BALPOE_DATA": "x" * 5000, "BALPOE_CACHE": os.devnull, "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-m", "balpoe", "doctor"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "")
    rows = dict(re.findall(r"^(\S+) +(works|missing|broken) ", done.stdout, flags=re.MULTILINE))
    for part in ("torch", "GPU", "Triton", "data", "cache", "weights"):
        assert rows[part] == "broken", done.stdout
    assert rows["Python"] == "works"
    assert "torch.so is no library" in done.stdout
    assert "and more" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Broken: torch, GPU, Triton, data, cache, weights;")


def test_extras_and_pythons_are_those_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) - {"dev", "docs", "all"} == set(doctor_checks.USES)
    assert set(re.findall(r"\w+", project["optional-dependencies"]["all"][0])) == {"balpoe", *doctor_checks.USES}
    page = (Path(__file__).parents[2] / "docs" / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `pip install 'balpoe\[(\w+)\]'`", page, flags=re.MULTILINE)) == set(doctor_checks.USES)
    low, high = (".".join(map(str, each)) for each in doctor_checks.PYTHONS)
    assert project["requires-python"] == f">={low},<{high}"


@pytest.mark.parametrize(
    ("found", "state"), [((3, 10), "broken"), ((3, 11), "works"), ((3, 13), "works"), ((3, 14), "broken")]
)
def test_pythons(found, state):
    assert python_finding(found).state == state


def test_packages_that_are_missing_or_old():
    old, absent = Requirement("torch", (99,)), Requirement("no-such-package", (1,), "tune")
    found = package_finding([Requirement("numpy", (1,)), old])
    assert found.state == "broken"
    assert found.found == f"torch is {version('torch')}, but torch>=99 is needed"
    assert found.advice == "pip install 'torch>=99'"
    assert package_finding([]).state == "missing"  # sources that are not installed
    assert extra_finding("tune", [absent]) == Finding(
        "[tune]",
        "missing",
        "not installed: no-such-package",
        "for searches for settings, balpoe compare --tune: pip install 'balpoe[tune]'",
    )
    assert extra_finding("tune", [Requirement("numpy", (1,), "tune")]).state == "works"


@pytest.mark.parametrize("name", ["torch", "torchvision"])
def test_a_torch_that_does_not_load(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    found = torch_finding()
    assert found.state == "broken"
    assert name in found.found


def fake_gpu(monkeypatch, *, fails=False, compiler=True):
    """A GPU that torch finds, and that may fail when it is used."""
    about = SimpleNamespace(name="Some GPU", total_memory=80 * 2**30)
    ones = torch.ones

    def used(*size, device="cpu"):
        if fails:
            raise RuntimeError("no kernel image is available\nand more")
        return ones(*size)

    monkeypatch.setattr(torch, "ones", used)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)
    monkeypatch.setattr(doctor_checks.shutil, "which", lambda name: "/usr/bin/gcc" if compiler else None)


def test_a_gpu(monkeypatch):
    fake_gpu(monkeypatch)
    assert gpu_finding() == Finding("GPU", "works", "Some GPU, 80 GiB, and 1 more")
    monkeypatch.setattr(doctor_checks, "find_spec", lambda _: None)
    assert triton_finding() == Finding("Triton", "missing", "not installed", "pip install triton: faster training")


def test_triton_under_another_name(monkeypatch):
    def version_of(name):
        raise PackageNotFoundError(name)

    fake_gpu(monkeypatch)
    monkeypatch.setattr(doctor_checks, "find_spec", lambda name: name)
    monkeypatch.setattr(doctor_checks, "version", version_of)
    assert triton_finding() == Finding("Triton", "works", "triton")


def test_a_gpu_that_fails(monkeypatch):
    fake_gpu(monkeypatch, fails=True)
    found = gpu_finding()
    assert (found.state, found.found) == ("broken", "no kernel image is available")


def test_triton_without_a_compiler(monkeypatch):
    pytest.importorskip("triton")
    fake_gpu(monkeypatch, compiler=False)
    assert triton_finding().state == "broken"


def test_no_gpu_or_one_that_torch_cannot_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(doctor_checks.shutil, "which", lambda _: None)
    assert gpu_finding().state == "missing"
    monkeypatch.setattr(doctor_checks.shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    assert gpu_finding().state == "broken"
    monkeypatch.setattr(doctor_checks, "find_spec", lambda _: None)
    assert triton_finding().state == "missing"


def test_data(tmp_path):
    assert data_finding(str(tmp_path)).state == "missing"
    assert data_finding(str(tmp_path / "nothing")).state == "broken"
    made(tmp_path, "cifar10-lt")
    assert data_finding(str(tmp_path)) == Finding("data", "works", f"{tmp_path}: cifar10-lt")
    batches = tmp_path / "cifar-10-batches-py"
    (batches / "data_batch_3").unlink()
    found = data_finding(str(tmp_path))
    assert (found.state, found.found) == ("broken", f"{batches} lacks data_batch_3")
    assert "balpoe data cifar10-lt" in found.advice


@pytest.mark.parametrize("name", ["cifar10-lt", "cifar100-lt"])
def test_the_files_are_those_that_are_read(name):
    from torchvision import datasets

    from balpoe.data.cifar import CIFAR_FILES

    kind = getattr(datasets, CIFAR_FILES[name].title)
    read = {file for file, _ in [*kind.train_list, *kind.test_list]} | {kind.meta["filename"]}
    folder, files = doctor_checks.BENCHMARKS[name]
    assert (folder, set(files)) == (kind.base_folder, read)


def test_a_cache_that_is_full_or_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "features.npy").write_bytes(bytes(3_000_000))
    assert "3 MB used" in cache_finding(tmp_path).found
    monkeypatch.setattr(doctor_checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert cache_finding(tmp_path).state == "broken"

    def refused(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor_checks.tempfile, "TemporaryFile", refused)
    assert cache_finding(tmp_path).found == f"{tmp_path} cannot be written: permission denied"


def test_weights_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path))
    monkeypatch.setattr("balpoe.networks.weight_files.at_hand", lambda _: False)
    default = "tf_efficientnet_lite0.in1k"
    assert weights_finding().found == f"not {default}, the default"
    (tmp_path / "weights").mkdir()
    for name in "abcde":
        (tmp_path / "weights" / f"{name}.safetensors").touch()
    found = weights_finding()
    assert (found.state, found.found) == ("missing", f"a, b, c and 2 more; not {default}, the default")
    assert found.advice.endswith(f"balpoe weights get {default}")
    (tmp_path / "weights" / f"{default}.safetensors").touch()
    assert weights_finding() == Finding("weights", "works", "a, b, c and 3 more")


def test_what_is_broken_is_the_exit_code(capsys):
    assert print_findings([Finding("Python", "works", "3.12"), Finding("data", "missing", "none", "fetch some")]) == 0
    assert print_findings([Finding("cache", "broken", "full", "make room")]) == 1
    out = capsys.readouterr().out
    assert "make room" in out
    assert out.endswith("Broken: cache; the last column says what to do.\n")


@pytest.mark.parametrize("columns", [30, 100, 200])
def test_the_table_fits_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    print_findings([Finding("data", "missing", "none of the files " * 9, "fetch them " * 9)])
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert max(map(len, lines)) <= max(columns, 61)
    words = " ".join(line[19:] for line in lines).split()
    assert words.count("files") == words.count("fetch") == 9
