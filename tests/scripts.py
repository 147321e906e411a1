"""Scripts of benchmarks/ and examples/ as modules, without running them."""

import importlib.util
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
