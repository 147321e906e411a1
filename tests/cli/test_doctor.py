"""The table of `balpoe doctor`: a healthy machine, and each way in which one can be ill."""

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from balpoe.cli import doctor_checks
from balpoe.cli.doctor_checks import (
    Finding,
    Requirement,
    cache_finding,
    data_finding,
    extra_finding,
    gpu_finding,
    package_finding,
    print_findings,
    python_finding,
    torch_finding,
    triton_finding,
    weights_finding,
)


def test_on_this_machine(run, tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BALPOE_DATA", str(tmp_path))
    (tmp_path / "cifar-100-python").mkdir()
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    rows = dict(re.findall(r"^(\S+) +(works|missing|broken) ", out, flags=re.MULTILINE))
    assert rows["Python"] == rows["packages"] == rows["torch"] == rows["data"] == rows["cache"] == "works"
    assert rows["weights"] == "missing"  # of a new cache
    assert f"torch {torch.__version__}" in out
    assert "cifar100-lt" in out
    assert not (tmp_path / "cache").exists()  # nothing is changed


def test_extras_and_pythons_are_those_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) - {"dev"} == set(doctor_checks.USES)
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
    assert found.found == f"torch is {version('torch')}, older than 99"
    assert package_finding([]).state == "missing"  # sources that are not installed
    assert extra_finding("tune", [absent]) == Finding(
        "[tune]",
        "missing",
        "no-such-package is missing",
        "for searches for settings, balpoe compare --tune: pip install 'balpoe[tune]'",
    )
    assert extra_finding("tune", [Requirement("numpy", (1,), "tune")]).state == "works"


def test_a_torch_that_does_not_load(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found = torch_finding()
    assert found.state == "broken"
    assert "torch" in found.found


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
    assert triton_finding().state in ("works", "missing")


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
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert data_finding(str(tmp_path)).found == f"{tmp_path}: cifar10-lt"


def test_a_cache_that_is_full_or_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "features.npy").write_bytes(bytes(3_000_000))
    assert "3 MB used" in cache_finding(tmp_path).found
    monkeypatch.setattr(doctor_checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert cache_finding(tmp_path).state == "broken"

    def refused(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor_checks.tempfile, "TemporaryFile", refused)
    assert cache_finding(tmp_path).found == f"{tmp_path}: permission denied"


def test_weights_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path))
    (tmp_path / "weights").mkdir()
    for name in "abcde":
        (tmp_path / "weights" / f"{name}.safetensors").touch()
    assert weights_finding() == Finding("weights", "works", "a, b, c and 2 more")


def test_what_is_broken_is_the_exit_code(capsys):
    assert print_findings([Finding("Python", "works", "3.12"), Finding("data", "missing", "none", "fetch some")]) == 0
    assert print_findings([Finding("cache", "broken", "full", "make room")]) == 1
    assert "make room" in capsys.readouterr().out
