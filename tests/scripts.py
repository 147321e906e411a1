"""Scripts of benchmarks/ and examples/: as modules, without running them, or run for a shorter time."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def script(path: str) -> ModuleType:
    """A script as a module; it may import those beside it, as it does where it is run."""
    specification = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(specification)
    folder = str((ROOT / path).parent)
    sys.path.insert(0, folder)
    try:
        specification.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def in_few_epochs(source: str) -> str:
    """The same program, for a quarter of its epochs: that it runs is shown, not how well it learns in the end.

    >>> in_few_epochs("fit(network, epochs=20, lr=0.1)")
    'fit(network, epochs=5, lr=0.1)'
    """
    return re.sub(r"\b(\w*epochs)=(\d+)", lambda found: f"{found[1]}={max(1, int(found[2]) // 4)}", source)
