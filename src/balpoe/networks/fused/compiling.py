"""All kernels of a step compiled in threads, before the first of them is launched."""

import ast
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from balpoe.networks.fused import nvrtc
from balpoe.networks.fused.direct import DirectKernel
from balpoe.networks.fused.forward import FusedForward, body_kernels, fused_backward, fused_forward
from balpoe.networks.fused.head import cosine_backward, cosine_forward, head_kernels

__all__ = ["compile_kernels"]


def compile_kernels(fused: FusedForward, images: Tensor) -> None:
    """Compile all that images of this shape take, in threads: the compiler works outside Python's lock.

    What cannot be compiled is left to the launch, which says why.
    """
    mode = _compile_mode()
    kernels = vars(body_kernels()) | {name: getattr(head_kernels(), name) for name in head_kernels().__all__}
    wanted: set[str] = set()
    dry = SimpleNamespace(**{name: _Dry(kernel, wanted, mode is not None) for name, kernel in kernels.items()})
    with _one_parse_at_a_time(), ThreadPoolExecutor() as pool, (mode or nullcontext)(pool), torch.no_grad():
        passed = fused_forward(fused, images, dry)
        fused_backward(fused, passed, passed.features, dry)
        if (cosine := fused.cosine) is not None:
            logits = cosine_forward(passed.features, cosine.weight, cosine.scale, dry)
            cosine_backward(logits, passed.features, cosine.weight, cosine.scale, dry)
        for expression in wanted:
            pool.submit(nvrtc.compiled, expression, torch.cuda.get_device_capability(images.device))


@contextmanager
def _one_parse_at_a_time() -> Iterator[None]:
    """Let threads parse kernels one by one: two at once can break each other (SystemError, seen in Python 3.11)."""
    parse, lock = ast.parse, threading.Lock()

    def parse_alone(*arguments: Any, **settings: Any) -> Any:
        with lock:
            return parse(*arguments, **settings)

    ast.parse = parse_alone
    try:
        yield
    finally:
        ast.parse = parse


def _compile_mode() -> Any:
    """Triton's way to compile in threads; None before 3.6, of which 3.5 cannot leave errors to the launch."""
    import triton

    mode = getattr(triton, "AsyncCompileMode", None)
    if mode is None or "ignore_errors" not in inspect.signature(mode).parameters:
        return None
    return functools.partial(mode, ignore_errors=True)


class _Dry:
    """A kernel that is compiled where it would be launched; one that is not Triton's is noted.

    Where Triton cannot compile `in_threads`, its kernels are left to the launch.
    """

    def __init__(self, kernel: Any, wanted: set[str], in_threads: bool) -> None:
        self.kernel, self.wanted, self.in_threads = kernel, wanted, in_threads

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        if isinstance(self.kernel, DirectKernel):
            return self._note
        return functools.partial(self.kernel.warmup, grid=grid) if self.in_threads else _leave

    def _note(self, *_: object, **settings: int) -> None:
        self.wanted.add(self.kernel.expression(settings))


def _leave(*_: object, **settings: object) -> None:
    pass
