"""Kernels in CUDA C++ on a CPU: compiled by a C++ compiler, with what CUDA gives them from `cuda_on_cpu.h`."""

import ctypes
import re
import subprocess
from pathlib import Path

import torch

from balpoe.networks.fused import nvrtc

ROOM_OF_H200 = 227 * 1024
"""Bytes of shared memory that a kernel can have there."""


class OnCpu:
    """Takes the place of `nvrtc.launch`; compiles several kernels at once."""

    def __init__(self, folder, expressions):
        self.numbers = {expression: number for number, expression in enumerate(expressions)}
        self.launched = []
        runs = "\n".join(_run(expression, number) for expression, number in self.numbers.items())
        code, library = folder / "kernels.cpp", folder / "kernels.so"
        code.write_text(f'#include "{Path(__file__).with_suffix(".h")}"\n#include "{nvrtc.SOURCE}"\n{runs}\n')
        options = ("-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-shared", "-fPIC")
        subprocess.run(["g++", *options, str(code), "-o", str(library)], check=True)
        self.library = ctypes.CDLL(str(library))

    def __call__(self, expression, grid, threads, shared_memory, arguments):
        self.launched.append(expression)
        types = _parameters(expression)
        given = [_as_wanted(each, wanted) for each, wanted in zip(arguments, types, strict=True)]
        values = list(map(nvrtc.as_argument, given))
        run = getattr(self.library, f"run{self.numbers[expression]}")
        assert run(*grid, threads, shared_memory, *values) == 0, "it wrote behind its shared memory"
        for before, now, wanted in zip(arguments, given, types, strict=True):
            if now is not before and "const" not in wanted:
                before.copy_(now)


def _as_wanted(argument, wanted):
    """Numbers that Triton's interpreter, which has no bfloat16, keeps as float32."""
    return argument.bfloat16() if "bf16*" in wanted and argument.dtype is torch.float32 else argument


def _parameters(expression):
    name = expression.partition("<")[0]
    return re.search(rf"__global__[^;{{]*\b{name}\(([^)]*)\)", nvrtc.SOURCE.read_text())[1].split(",")


def _run(expression, number):
    """A function that launches a kernel, with the parameters that it has in the source."""
    parameters = _parameters(expression)
    names = ", ".join(parameter.split()[-1] for parameter in parameters)
    call = f"cpu::launch(wide, tall, threads, bytes, [=]{{ {expression}({names}); }})"
    head = f"unsigned wide, unsigned tall, unsigned threads, unsigned bytes, {','.join(parameters)}"
    return f'extern "C" int run{number}({head}) {{ return {call}; }}'
