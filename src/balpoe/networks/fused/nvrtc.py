"""CUDA C++ as functions: NVRTC, which comes with torch, compiles it, and CUDA's driver launches it.

Torch has a way to do both, which is private, and wants the header files of a CUDA toolkit.
"""

import contextlib
import ctypes
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.files import cache_folder, write_file

__all__ = ["as_argument", "can_launch", "compiled", "launch"]

SOURCE = Path(__file__).with_name("direct_kernels.cu")
MAX_DYNAMIC_SHARED_MEMORY = 8  # the driver's number of this attribute of a function


def can_launch(device: torch.device, shared_memory: int) -> bool:
    """Whether kernels can be compiled for a GPU, loaded, and given so much shared memory: found out with an empty one.

    An old NVRTC does not know a new GPU, and of a damaged installation anything may be missing.
    """
    try:
        with torch.cuda.device(device):
            _function("nothing<0>", torch.cuda.current_device(), shared_memory)
    except (OSError, RuntimeError):
        return False
    return True


@functools.cache
def compiled(expression: str, capability: tuple[int, int]) -> tuple[bytes, bytes]:
    """Return a kernel's name and its code for GPUs of such a capability; compile it if nobody has before.

    Args:
        expression: The kernel with its constants, such as `conv_forward<16, 32, 32, 1, 8, 1, 0, 4>`.
        capability: What `torch.cuda.get_device_capability` says.
    """
    source, architecture = SOURCE.read_bytes(), _architecture(capability)
    said = (source, expression.encode(), architecture.encode(), str(_version()).encode())
    file = Path("kernels", f"{hashlib.sha256(b'|'.join(said)).hexdigest()[:32]}.cubin")
    # A folder of somebody else, no home, a damaged file: then it is compiled, each time.
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        name, code = (cache_folder() / file).read_bytes().split(b"\n", 1)
        return name, code
    name, code = _compile(source, expression.encode(), architecture)
    with contextlib.suppress(UserError, RuntimeError):
        write_file(cache_folder() / file, lambda stream: stream.write(name + b"\n" + code))
    return name, code


def launch(
    expression: str, grid: tuple[int, int], threads: int, shared_memory: int, arguments: Sequence[Tensor | float]
) -> None:
    """Launch a kernel on the current stream of the current GPU."""
    values = list(map(as_argument, arguments))
    places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    function = _function(expression, torch.cuda.current_device(), shared_memory)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _check(_driver().cuLaunchKernel(function, *grid, 1, threads, 1, 1, shared_memory, stream, places, None))


def as_argument(value: Tensor | float) -> Any:
    """Return a kernel's argument as C has it: the place of a tensor, an int or a float."""
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_float(value)


@functools.cache
def _function(expression: str, device: int, shared_memory: int) -> ctypes.c_void_p:
    """The kernel on a GPU, allowed so much shared memory."""
    name, code = compiled(expression, torch.cuda.get_device_capability(device))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), code))
    _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name))
    _check(_driver().cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_MEMORY, shared_memory))
    return function


def _architecture(capability: tuple[int, int]) -> str:
    """The newest that NVRTC knows of those whose code such a GPU runs: of its generation, and not newer than it."""
    major, minor = capability
    fitting = [each for each in _known_architectures() if each // 10 == major and each % 10 <= minor]
    if not fitting:
        raise RuntimeError(
            f"NVRTC {_version()[0]}.{_version()[1]} does not know GPUs of compute capability {major}.{minor}"
        )
    return f"sm_{max(fitting)}"


def _known_architectures() -> list[int]:
    """Compute capabilities for which NVRTC compiles, times ten."""
    number = ctypes.c_int()
    _succeed(_nvrtc().nvrtcGetNumSupportedArchs(ctypes.byref(number)))
    found = (ctypes.c_int * number.value)()
    _succeed(_nvrtc().nvrtcGetSupportedArchs(found))
    return list(found)


def _compile(source: bytes, expression: bytes, architecture: str) -> tuple[bytes, bytes]:
    nvrtc, program, name = _nvrtc(), ctypes.c_void_p(), ctypes.c_char_p()
    _succeed(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, SOURCE.name.encode(), 0, None, None))
    try:
        _succeed(nvrtc.nvrtcAddNameExpression(program, expression))
        options = (f"--gpu-architecture={architecture}".encode(), b"--std=c++17")
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if failed:
            log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace")
            first = next((line for line in log.split("\n") if "error" in line), log)
            raise RuntimeError(f"{SOURCE.name} could not be compiled: {first.strip(chr(0)).strip()}")
        if nvrtc.nvrtcGetLoweredName(program, expression, ctypes.byref(name)) or name.value is None:
            raise RuntimeError(f"{SOURCE.name} has no kernel {expression.decode()}")
        return name.value, _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size_of: Any, text_of: Any, program: ctypes.c_void_p) -> bytes:
    """What NVRTC says of a program, by two functions: how long it is, and the text."""
    size = ctypes.c_size_t()
    _succeed(size_of(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _succeed(text_of(program, text))
    return text.raw


def _succeed(result: int) -> None:
    """Of NVRTC; CUDA's driver has numbers of its own."""
    if result:
        raise RuntimeError(f"NVRTC: error {result}")


def _check(result: int) -> None:
    if result:
        said = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(said))
        raise RuntimeError(f"CUDA's driver: {(said.value or b'unknown error').decode()}")


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    """That of torch, which mostly has loaded it; another might not know the same GPUs."""
    name = f"libnvrtc.so.{(torch.version.cuda or '0').partition('.')[0]}"
    beside = Path(torch.__file__).parents[1].glob(f"nvidia/*/lib/{name}")  # where wheels have it
    for place in (name, *map(str, beside)):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(place)
    raise OSError(f"there is no {name}")


def _version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _succeed(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
