"""CUDA C++ as functions: what is compiled for which GPU, where it is kept, and where that is impossible."""

import contextlib

import pytest
import torch

from balpoe.networks.fused import nvrtc

HOPPER = (9, 0)


def is_present():
    try:
        nvrtc._nvrtc()
    except OSError:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not is_present(), reason="needs the NVRTC of a torch for GPUs")


@pytest.fixture
def made(monkeypatch, tmp_path):
    """What a compiler that stands for NVRTC was asked for; another process has nothing in memory."""
    asked = []

    def compiler(source, expression, architecture):
        asked.append((expression, architecture))
        return expression + b"_", b"code\nof " + architecture.encode()

    monkeypatch.setattr(nvrtc, "_compile", compiler)
    monkeypatch.setattr(nvrtc, "_version", lambda: (13, 0))
    monkeypatch.setattr(nvrtc, "_known_architectures", lambda: [75, 80, 86, 90, 100, 120])
    monkeypatch.setattr(nvrtc, "compiled", nvrtc.compiled.__wrapped__)
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))
    return asked


def test_a_kernel_is_compiled_once_for_each_gpu_and_compiler(made, monkeypatch):
    first = nvrtc.compiled("a<1>", HOPPER)
    assert first == (b"a<1>_", b"code\nof sm_90")
    assert nvrtc.compiled("a<1>", HOPPER) == first
    assert made == [(b"a<1>", "sm_90")]
    nvrtc.compiled("a<2>", HOPPER)
    nvrtc.compiled("a<1>", (8, 0))
    monkeypatch.setattr(nvrtc, "_version", lambda: (13, 1))
    nvrtc.compiled("a<1>", HOPPER)
    assert made[1:] == [(b"a<2>", "sm_90"), (b"a<1>", "sm_80"), (b"a<1>", "sm_90")]


@pytest.mark.parametrize(
    ("capability", "architecture"), [((8, 0), "sm_80"), ((8, 9), "sm_86"), ((10, 3), "sm_100"), ((12, 1), "sm_120")]
)
def test_a_newer_gpu_of_a_generation_runs_the_code_of_an_older_one(made, capability, architecture):
    nvrtc.compiled("a<1>", capability)
    assert made == [(b"a<1>", architecture)]


@pytest.mark.parametrize("capability", [(7, 0), (11, 0), (13, 0)])
def test_gpus_that_the_compiler_does_not_know(made, capability):
    major, minor = capability
    with pytest.raises(RuntimeError, match=f"NVRTC 13.0 does not know GPUs of compute capability {major}.{minor}"):
        nvrtc.compiled("a<1>", capability)


def test_a_cache_that_is_damaged_or_closed_is_passed_over(made, monkeypatch, tmp_path):
    expected = nvrtc.compiled("a<1>", HOPPER)
    (file,) = (tmp_path / "cache").rglob("*.cubin")
    file.write_bytes(b"")
    assert nvrtc.compiled("a<1>", HOPPER) == expected
    assert nvrtc.compiled("a<1>", HOPPER) == expected
    assert len(made) == 2  # and then it was whole again
    (tmp_path / "a file").touch()
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "a file"))  # no folder
    assert nvrtc.compiled("a<1>", HOPPER) == expected

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(nvrtc, "cache_folder", no_home)
    assert nvrtc.compiled("a<1>", HOPPER) == expected
    assert len(made) == 4


@pytest.mark.parametrize("problem", [None, OSError("there is no libnvrtc.so.13"), RuntimeError("CUDA's driver: no")])
def test_whether_kernels_can_be_launched_is_found_out_before(monkeypatch, problem):
    asked = []

    def function(expression, device, shared_memory):
        asked.append((expression, device, shared_memory))
        if problem:
            raise problem

    monkeypatch.setattr(nvrtc, "_function", function)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert nvrtc.can_launch(torch.device("cuda:1"), 1000) == (problem is None)
    assert asked == [("nothing<0>", 1, 1000)]


@needs_nvrtc
def test_kernels_are_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path))
    nvrtc.compiled.cache_clear()
    try:
        name, code = nvrtc.compiled("conv_forward<16, 32, 32, 1, 8, 1, 0, 4>", HOPPER)
        assert b"conv_forward" in name
        assert name in code
        assert code.startswith(b"\x7fELF")
        nvrtc.compiled.cache_clear()
        monkeypatch.setattr(nvrtc, "_compile", None)
        assert nvrtc.compiled("conv_forward<16, 32, 32, 1, 8, 1, 0, 4>", HOPPER) == (name, code)
    finally:
        nvrtc.compiled.cache_clear()


@needs_nvrtc
def test_what_cannot_be_compiled_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path))
    with pytest.raises(RuntimeError, match="whole products"):
        nvrtc.compiled("conv_forward<16, 32, 32, 1, 8, 1, 0, 5>", HOPPER)
    assert not list(tmp_path.rglob("*"))
