"""What `balpoe doctor` looks at: each check returns one row of its table, and none of them changes anything.

What may be broken is imported inside the check that looks at it.
"""

import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

import balpoe
from balpoe.files import cache_folder

__all__ = ["Finding", "all_findings"]

PYTHONS = (3, 11), (3, 14)
USES = {
    "data": "tables in .parquet files",
    "images": "photos of iPhones, .heic",
    "track": "TensorBoard and Weights & Biases",
    "tune": "searches for settings, balpoe compare --tune",
    "onnx": "ONNX files",
    "serve": "a server",
    "hub": "model cards and the hub",
}
"""Extras, and what each is for; those for working on balpoe itself are left out."""
BENCHMARKS = {
    "cifar10-lt": (
        "cifar-10-batches-py",
        (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"),
    ),
    "cifar100-lt": ("cifar-100-python", ("train", "test", "meta")),
    "tiny-imagenet-lt": ("tiny-imagenet-200", ("wnids.txt", "train", "val")),
}
"""Data sets by name: their folder, and what is in it."""


@dataclass(frozen=True)
class Finding:
    """One row of the table."""

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

    @property
    def words(self) -> str:
        """What pip is asked for.

        >>> Requirement("torch", (2, 8)).words
        'torch>=2.8'
        """
        return f"{self.name}>={'.'.join(map(str, self.least))}" if self.least else self.name

    @property
    def installed(self) -> str:
        """Which version is there, or nothing."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            return ""

    @property
    def met(self) -> bool:
        """Whether it is there, and new enough."""
        return bool(self.installed) and _numbers(self.installed) >= self.least


def all_findings() -> Iterator[Finding]:
    """Yield what each check found, in the order in which a newcomer needs them."""
    needed = list(_requirements(requires("balpoe") or ())) if _installed() else []
    yield python_finding(sys.version_info[:2])
    yield package_finding([each for each in needed if not each.extra])
    yield torch_finding()
    yield _surely("GPU", gpu_finding)
    yield _surely("Triton", triton_finding)
    yield _surely("data", lambda: data_finding(os.environ.get("BALPOE_DATA", "")))
    yield _surely("cache", lambda: cache_finding(cache_folder()))
    yield _surely("weights", weights_finding)
    for extra in sorted({each.extra for each in needed} & set(USES)):
        yield extra_finding(extra, [each for each in needed if each.extra == extra])


def _surely(part: str, check: Callable[[], Finding]) -> Finding:
    """What a check found, or that it failed: the other rows are wanted all the same.

    >>> _surely("data", lambda: data_finding(9 * "long name" * 99)).state
    'broken'
    """
    try:
        return check()
    except Exception as error:  # of somebody else's package, or of a disk
        return Finding(part, "broken", _reason(error), "first do what the rows above say")


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
    if problems := _problems(needed):
        return Finding(
            "packages", "broken", problems, f"pip install {shlex.join(each.words for each in needed if not each.met)}"
        )
    return Finding("packages", "works", f"balpoe {balpoe.__version__}, all {len(needed)} packages that it needs")


def torch_finding() -> Finding:
    """Return whether torch and torchvision load, and torch computes."""
    again = "pip install --force-reinstall torch torchvision: the two must fit together"
    try:
        import torch

        torchvision = import_module("torchvision")  # nothing of it is used here
        if float(torch.ones(64, 64).matmul(torch.ones(64, 64)).sum()) != 64**3:
            return Finding("torch", "broken", f"torch {torch.__version__} multiplies wrongly", again)
        threads = torch.get_num_threads()
    except Exception as error:  # a library that does not load can fail in any way
        return Finding("torch", "broken", _reason(error), again)
    cores = f"{threads} thread{'s' * (threads > 1)}, {os.cpu_count()} processors"
    return Finding("torch", "works", f"torch {torch.__version__}, torchvision {torchvision.__version__}, {cores}")


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
    return Finding("GPU", "missing", "none: the processor is used", "nothing, for tables and frozen backbones")


def triton_finding() -> Finding:
    """Return whether our own GPU kernels can be compiled."""
    import torch

    used = torch.cuda.is_available()
    if find_spec("triton") is None:
        advice = "pip install triton: faster training" if used else "nothing: it is for NVIDIA GPUs"
        return Finding("Triton", "missing", "not installed", advice)
    try:
        found = f"triton {version('triton')}"
    except PackageNotFoundError:  # nightly builds of torch bring it along under another name
        found = "triton"
    if not used:
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
        advice = "nothing, for your own data; for benchmarks set BALPOE_DATA, and balpoe data cifar100-lt --download"
        return Finding("data", "missing", "BALPOE_DATA is not set; digits-lt is bundled", advice)
    if not Path(root).is_dir():
        advice = "a path from / on that exists, or unset it"
        return Finding("data", "broken", f"BALPOE_DATA is {root}, which is no folder", advice)
    there = {name: Path(root, folder) for name, (folder, _) in BENCHMARKS.items() if Path(root, folder).is_dir()}
    lacking = {name: [each for each in BENCHMARKS[name][1] if not (path / each).exists()]
               for name, path in there.items()}  # fmt: skip
    for name, files in lacking.items():
        if files:
            found = f"{there[name]} lacks {', '.join(files)}"
            return Finding("data", "broken", found, f"fetch it again; balpoe data {name} checks it")
    if not there:
        return Finding("data", "missing", f"{root}: no CIFAR files", "balpoe data cifar100-lt --download fetches them")
    return Finding("data", "works", f"{root}: {', '.join(there)}")


def cache_finding(folder: Path) -> Finding:
    """Return whether the cache can be written, and how much room there is."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        advice = "set BALPOE_CACHE to a folder that can be written"
        return Finding(
            "cache", "broken", f"{folder} cannot be written: {(error.strerror or str(error)).lower()}", advice
        )
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(there).free
    found = f"{folder}: {used / 1e6:,.0f} MB used, {free / 1e9:,.0f} GB free"
    if free < 2e9:
        return Finding("cache", "broken", found, "make room: features of images are kept there")
    return Finding("cache", "works", found)


def weights_finding() -> Finding:
    """Return which pretrained weights are on this machine, and whether images can be trained on without a network."""
    from balpoe.networks.efficientnet_lite0 import NAME
    from balpoe.networks.weight_files import at_hand, kept_files

    names = [path.stem for path in kept_files()]
    found = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    if NAME in names or at_hand(NAME):
        return Finding("weights", "works", found or NAME)
    advice = f"fetched when first needed; before going offline: balpoe weights get {NAME}"
    return Finding("weights", "missing", f"{f'{found}; not ' if found else 'not '}{NAME}, the default", advice)


def extra_finding(extra: str, needed: Sequence[Requirement]) -> Finding:
    """Return whether the packages of an extra are there."""
    if problems := _problems(needed):
        return Finding(f"[{extra}]", "missing", problems, f"for {USES[extra]}: pip install 'balpoe[{extra}]'")
    return Finding(f"[{extra}]", "works", USES[extra])


def _problems(needed: Iterable[Requirement]) -> str:
    """What is wrong with the packages of a list, or nothing.

    >>> _problems([Requirement("numpy", (1,)), Requirement("numpy-of-tomorrow", ()), Requirement("numpy-of-today", ())])
    'not installed: numpy-of-tomorrow, numpy-of-today'
    """
    unmet = [each for each in needed if not each.met]
    absent = ", ".join(each.name for each in unmet if not each.installed)
    old = [f"{each.name} is {each.installed}, but {each.words} is needed" for each in unmet if each.installed]
    return "; ".join([f"not installed: {absent}"] * bool(absent) + old)


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
    """The first line of what an error says, cut where a terminal would be full of it."""
    return textwrap.shorten(str(error).strip().partition("\n")[0], 200) or type(error).__name__
