"""A GPU made ready early: where there is one to use, and nowhere else."""

import threading

import pytest
import torch

from balpoe.training import early_gpu
from balpoe.training.cuda_graphs import AT_WORK
from balpoe.training.early_gpu import wake_gpu
from balpoe.training.launchers import Launcher


@pytest.fixture
def a_gpu(monkeypatch):
    """As if there were one, whose first kernels tell in which thread they ran, and whether a capture could."""
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(early_gpu, "_first_kernels", lambda: seen.append(threading.current_thread().name))
    return seen


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_in_a_thread_of_its_own(a_gpu, device):
    wake_gpu(device, 1).join()
    assert a_gpu == ["wake-gpu"]


@pytest.mark.parametrize(("device", "devices"), [("cpu", 1), ("mps", 1), ("auto", 2)])
def test_not_where_no_single_gpu_is_used(a_gpu, device, devices):
    assert wake_gpu(device, devices) is None
    assert not a_gpu


def test_not_in_one_of_several_processes(a_gpu, monkeypatch):
    """All of them would make a context on the first GPU."""
    monkeypatch.setattr(early_gpu, "launcher", lambda: Launcher("torchrun", 1, 2, 1))
    assert wake_gpu("auto", 1) is None
    assert not a_gpu


def test_what_fails_is_left_to_the_training(monkeypatch, recwarn):
    def busy(*_, **__):
        assert AT_WORK[threading.get_ident()] == 1  # no graph is captured meanwhile
        raise torch.OutOfMemoryError("somebody else has it")

    monkeypatch.setattr(torch, "zeros", busy)
    early_gpu._first_kernels()
    assert not recwarn.list
    assert not AT_WORK[threading.get_ident()]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_real_one():
    thread = wake_gpu("auto", 1)
    thread.join()
    assert torch.cuda.is_initialized()
