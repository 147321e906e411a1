"""Imports without the garbage collector: in a new process, and not where torch is there already."""

import gc
import subprocess
import sys

from balpoe.cli.heavy_imports import heavy_imports

PROGRAM = """
import gc, sys
from balpoe.cli.heavy_imports import heavy_imports

seen = []
gc.callbacks.append(lambda phase, info: seen.append(phase))
sys.modules.pop("torch", None)
try:
    with heavy_imports():
        assert not gc.isenabled()
        circles = [[] for _ in range(100_000)]
        for circle in circles:
            circle.append(circle)
        assert not seen
        raise ImportError
except ImportError:
    pass
assert gc.isenabled()
assert gc.get_freeze_count() > 100_000
"""


def test_nothing_is_collected_meanwhile_and_what_was_made_is_not_looked_at_again():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_not_where_torch_is_there_already():
    import torch

    assert torch.__name__ in sys.modules
    before = gc.get_freeze_count()
    with heavy_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == before
