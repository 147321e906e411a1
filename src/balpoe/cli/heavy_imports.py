"""Imports of torch and what comes with it, without the garbage collector."""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["heavy_imports"]


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Let modules be imported without the garbage collector, and never be looked through by it later.

    They stay to the end of the process; but it would go through them again and again while they are made, and through
    all there is once more when Python ends, each of which takes a fifth of the time of such imports. Does nothing in a
    process that has torch already, of which some objects may be garbage.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    atexit.register(gc.freeze)  # what is garbage then goes with the process
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
