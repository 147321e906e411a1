"""What `balpoe doctor` looks at: each check returns one line of its table, and none of them changes anything."""

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from rich.table import Table

import balpoe
from balpoe.files import cache_folder
from balpoe.report.console import console

__all__ = ["Finding", "all_findings", "print_findings"]

PYTHONS = (3, 11), (3, 14)
USES = {
    "data": "tables in .parquet files",
    "heic": "photos of iPhones",
    "track": "TensorBoard and Weights & Biases",
    "tune": "searches for settings, balpoe compare --tune",
    "onnx": "ONNX files",
    "serve": "a server",
    "hub": "model cards and the hub",
    "docs": "building this documentation",
}
FOLDERS = {
    "cifar-10-batches-py": "cifar10-lt",
    "cifar-100-python": "cifar100-lt",
    "tiny-imagenet-200": "tiny-imagenet-lt",
}


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    part: str
    state: str
    """"works"; "missing", what one can do without; "broken", what one cannot."""
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Requirement:
    """A package that is asked for, by the metadata of this one."""

    name: str
    least: tuple[int, ...]
    extra: str = ""

    def problem(self) -> str:
        """Return what is wrong with the installed package, or nothing.

        >>> Requirement("numpy", (1,)).problem(), Requirement("numpy-of-tomorrow", ()).problem()
        ('', 'numpy-of-tomorrow is missing')
        """
        try:
            installed = version(self.name)
        except PackageNotFoundError:
            return f"{self.name} is missing"
        wanted = ".".join(map(str, self.least))
        return "" if _numbers(installed) >= self.least else f"{self.name} is {installed}, older than {wanted}"


def all_findings() -> Iterator[Finding]:
    """Yield what each check found, in the order in which a newcomer needs them."""
    needed = list(_requirements(requires("balpoe") or ())) if _installed() else []
    yield python_finding(sys.version_info[:2])
    yield package_finding([each for each in needed if not each.extra])
    yield torch_finding()
    yield gpu_finding()
    yield triton_finding()
    yield data_finding(os.environ.get("BALPOE_DATA", ""))
    yield cache_finding(cache_folder())
    yield weights_finding()
    for extra in sorted({each.extra for each in needed} & set(USES)):
        yield extra_finding(extra, [each for each in needed if each.extra == extra])


def print_findings(findings: Iterable[Finding]) -> int:
    """Print the table; return 1 if something is broken, else 0."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("part", "state", "what was found", "what to do"):
        table.add_column(heading, overflow="fold")
    states = set()
    for each in findings:
        states.add(each.state)
        table.add_row(each.part, each.state, each.found, each.advice)
    out = console()
    out.print(table)
    if "broken" in states:
        out.print("Something that is needed does not work: see the last column.")
        return 1
    out.print("All that is needed works; what is missing is optional. balpoe demo shows it at work, in a minute.")
    return 0


def python_finding(found: tuple[int, int]) -> Finding:
    """Return whether this Python is one of those that are supported.

    >>> python_finding((3, 9)).state
    'broken'
    """
    words = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if PYTHONS[0] <= found < PYTHONS[1]:
        return Finding("Python", "works", words)
    return Finding("Python", "broken", words, "install Python 3.11, 3.12 or 3.13, and balpoe anew in it")


def package_finding(needed: Sequence[Requirement]) -> Finding:
    """Return whether the packages that are always needed are there, and new enough."""
    if not needed:
        found = f"balpoe {balpoe.__version__}, from sources that are not installed"
        return Finding("packages", "missing", found, "pip install . in the repository, if something cannot be imported")
    problems = [problem for each in needed if (problem := each.problem())]
    if problems:
        return Finding("packages", "broken", "; ".join(problems), "pip install --upgrade balpoe")
    return Finding("packages", "works", f"balpoe {balpoe.__version__}, all {len(needed)} packages that it needs")


def torch_finding() -> Finding:
    """Return whether torch can be imported and computes."""
    try:
        import torch

        if float(torch.ones(64, 64).matmul(torch.ones(64, 64)).sum()) != 64**3:
            return Finding("torch", "broken", f"torch {torch.__version__} multiplies wrongly", "install torch anew")
        threads = torch.get_num_threads()
    except Exception as error:  # a library that does not load can fail in any way
        return Finding("torch", "broken", _reason(error), "install torch anew: pip install --force-reinstall torch")
    cores = f"{threads} thread{'s' * (threads > 1)}, {os.cpu_count()} processors"
    return Finding("torch", "works", f"torch {torch.__version__}, {cores}")


def gpu_finding() -> Finding:
    """Return which accelerator is used, after having used it once."""
    import torch

    if torch.cuda.is_available():
        try:
            torch.ones(8, 8, device="cuda").sum().item()
        except Exception as error:  # a driver that is too old, a GPU that somebody else holds
            return Finding("GPU", "broken", _reason(error), "update the driver, or train with --device cpu")
        about = torch.cuda.get_device_properties(0)
        more = f", and {torch.cuda.device_count() - 1} more" if torch.cuda.device_count() > 1 else ""
        return Finding("GPU", "works", f"{about.name}, {about.total_memory / 2**30:.0f} GiB{more}")
    if torch.backends.mps.is_available():
        return Finding("GPU", "works", "Apple's, by --device mps")
    if shutil.which("nvidia-smi"):
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        return Finding("GPU", "broken", f"the machine has one, but torch (with {build}) does not find it",
                       "install a build of torch for your driver, or train with --device cpu")  # fmt: skip
    return Finding("GPU", "missing", "none: the processor is used", "fine for tables and frozen backbones")


def triton_finding() -> Finding:
    """Return whether our own GPU kernels can be compiled."""
    import torch

    if find_spec("triton") is None:
        return Finding("Triton", "missing", "not installed", "pip install triton: faster training on NVIDIA GPUs")
    found = f"triton {version('triton')}"
    if not torch.cuda.is_available():
        return Finding("Triton", "works", f"{found}; not used without a GPU")
    if not any(map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang"))):
        return Finding("Triton", "broken", f"{found}, but no C compiler", "install gcc, or train with --step captured")
    return Finding("Triton", "works", found)


def data_finding(root: str) -> Finding:
    """Return which benchmark files are in the folder of data sets.

    >>> data_finding("").state, data_finding("/nowhere").state
    ('missing', 'broken')
    """
    if not root:
        advice = "only for benchmarks: set BALPOE_DATA, or give --data-root; --download fetches CIFAR"
        return Finding("data", "missing", "BALPOE_DATA is not set; digits-lt is bundled", advice)
    if not Path(root).is_dir():
        return Finding("data", "broken", f"BALPOE_DATA is {root}, which is no folder", "correct it, or make the folder")
    there = [name for folder, name in FOLDERS.items() if (Path(root) / folder).is_dir()]
    advice = "" if there else "balpoe data cifar100-lt --download fetches CIFAR-100"
    return Finding("data", "works" if there else "missing", f"{root}: {', '.join(there) or 'no CIFAR files'}", advice)


def cache_finding(folder: Path) -> Finding:
    """Return whether the cache can be written, and how much room there is."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        advice = "set BALPOE_CACHE to a folder that can be written"
        return Finding("cache", "broken", f"{folder}: {(error.strerror or str(error)).lower()}", advice)
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(there).free
    found = f"{folder}: {used / 1e6:,.0f} MB used, {free / 1e9:,.0f} GB free"
    if free < 2e9:
        return Finding("cache", "broken", found, "make room: features of images are kept there")
    return Finding("cache", "works", found)


def weights_finding() -> Finding:
    """Return which pretrained weights are kept."""
    from balpoe.networks.weight_files import kept_files

    names = [path.stem for path in kept_files()]
    if not names:
        return Finding("weights", "missing", "none are kept", "fetched when needed; offline: balpoe weights get NAME")
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return Finding("weights", "works", ", ".join(names[:3]) + more)


def extra_finding(extra: str, needed: Sequence[Requirement]) -> Finding:
    """Return whether the packages of an extra are there."""
    problems = [problem for each in needed if (problem := each.problem())]
    if problems:
        return Finding(
            f"[{extra}]", "missing", "; ".join(problems), f"for {USES[extra]}: pip install 'balpoe[{extra}]'"
        )
    return Finding(f"[{extra}]", "works", USES[extra])


def _installed() -> bool:
    try:
        return bool(version("balpoe"))
    except PackageNotFoundError:
        return False


def _requirements(lines: Iterable[str]) -> Iterator[Requirement]:
    """What metadata ask for; packages for other systems are left out.

    >>> list(_requirements(["torch>=2.8", 'optuna>=4; extra == "tune"', "pywin32>=300; platform_system == 'Windows'"]))
    [Requirement(name='torch', least=(2, 8), extra=''), Requirement(name='optuna', least=(4,), extra='tune')]
    """
    for line in lines:
        wanted, _, marker = line.partition(";")
        found = re.match(r"\s*([\w.-]+)\s*(?:>=\s*([\d.]+))?", wanted)
        if found is not None and "platform_system" not in marker:
            extra = re.search(r"""extra == ['"](\w+)['"]""", marker)
            yield Requirement(found[1], _numbers(found[2] or ""), extra[1] if extra else "")


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers of a version, up to the first part that is none.

    >>> _numbers("2.11.0+cu128"), _numbers("1.0rc1")
    ((2, 11, 0), (1, 0))
    """
    return tuple(int(part) for part in re.match(r"[\d.]*", text)[0].split(".") if part)  # type: ignore[index]


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
