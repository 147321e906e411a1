"""What all tests share."""

import functools
import gc
import hashlib
import itertools
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("balpoe", deadline=None, derandomize=True, max_examples=40, print_blob=False)
settings.load_profile("balpoe")


SLOW = (  # folders and files whose tests train, compile, draw or open a browser
    "cli",
    "estimator",
    "evaluation/test_prior_estimate.py",
    "evidence",
    "networks/test_timm_backbones.py",
    "paper",
    "report",
    "training/test_step.py",
    "training/test_weight_averaging.py",
)

LONG = (  # the longest tests, longest first, of those that share nothing with others of their file
    "test_the_demo_as_a_newcomer_sees_it",
    "test_in_tritons_interpreter",
    "test_its_steps_install_a_command_that_serves",
    "test_a_killed_worker_is_replaced_strangers_are_answered_and_a_stop_finishes_what_was_accepted",
    "test_what_a_copy_writes_is_fenced_before_tensor_cores_read_it",
    "test_ctrl_c_on_the_command_line",
    "test_a_run_continues_with_another_number_of_processes_and_says_so",
    "test_every_table_is_made_from_the_records",
    "test_the_published_model_gives_its_published_numbers",
    "test_a_bare_folder_trains_both_methods_and_says_what_to_type_next",
    "test_rare_classes_are_found",
    "test_in_another_process",
    "test_kernels_are_compiled_in_threads",
    "test_the_scripts_run",
    "test_a_transformer_whose_experts_have_adapters_of_their_own",
)

WHOLE = (  # files whose tests share something that takes long to make
    "evidence/test_site.py",
    "report/test_write.py",
    "report/test_render.py",
    "evidence/test_package.py",
)


def pytest_collection_modifyitems(items):
    """Mark slow tests, and put the longest first."""
    _mark_slow(items)
    _begin_with_long(items)


def _begin_with_long(items):
    """Let both halves, with which the two workers of `make test` begin, begin with long tests.

    Otherwise the worker that happens to get one last is waited for. What a worker takes from the other is at the end of
    a half: at the beginning a file stays whole, and what its tests share is made once.
    """
    whole = (Path(__file__).parent / name for name in WHOLE)
    places = {each: place for place, each in enumerate((*LONG, *whole))}
    groups = {}
    for item in items:
        name = getattr(item, "originalname", None)
        if name in places:
            groups.setdefault((places[name], item.nodeid), []).append(item)
        elif item.path in places:
            groups.setdefault((places[item.path], ""), []).append(item)
    long = [groups[key] for key in sorted(groups)]
    first, second = (list(itertools.chain.from_iterable(long[start::2])) for start in (0, 1))
    taken = {id(item) for item in (*first, *second)}
    rest = [item for item in items if id(item) not in taken]
    half = max(0, len(items) // 2 - len(first))
    items[:] = [*first, *rest[:half], *second, *rest[half:]]


def _mark_slow(items):
    """Mark the tests of slow places and those of the CIFAR files; elsewhere slow ones are marked one by one."""
    places = {Path(__file__).parent / place for place in SLOW}
    for item in items:
        if not places.isdisjoint([item.path, *item.path.parents]) or item.get_closest_marker("data"):
            item.add_marker("slow")


def pytest_sessionstart(session):
    """Also what is made for several tests is made before the first of them."""
    if session.config.getoption("numprocesses", None):  # it has workers, and needs none of what they import
        return
    import torch
    from lightning_fabric.utilities import registry
    from torch._export import utils as exports
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    torch.set_num_threads(1)
    gc.disable()
    os.fsync = lambda descriptor: None  # of what a test writes nothing must survive a power cut, and disks take long
    registry.entry_points = functools.cache(registry.entry_points)  # which every training looks for in all packages
    once = functools.cache(ONNXRegistry.from_torchlib)  # a third of the time that the export of a small network takes
    ONNXRegistry.from_torchlib = staticmethod(once)
    exports._materialize_cpp_cia_ops = functools.cache(exports._materialize_cpp_cia_ops)  # called fifty times a trace
    if hasattr(session.config, "workerinput"):
        import processes

        processes.start_forkserver()


def pytest_collection_finish():
    """All modules are there: the garbage collector need not look through them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)  # instead of 700: an export makes many objects and few circles
    gc.enable()


@pytest.fixture(autouse=True)
def _one_thread():
    """Bit equality between two runs wants a fixed number of threads, and the tests run side by side."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def eight_layers(monkeypatch):
    """A `resnet32` of as many: a block of each kind, where a test is not about the network."""
    monkeypatch.setattr("balpoe.networks.resnet_cifar.BLOCKS_PER_STAGE", 1)


@pytest.fixture
def cifar_root(monkeypatch) -> Path:
    """The folder with the official CIFAR files, whose check sums are computed once."""
    root = os.environ.get("BALPOE_DATA")
    if not root:
        pytest.skip("BALPOE_DATA does not point at the official CIFAR files")
    monkeypatch.setattr("balpoe.data.cifar._md5", _md5)
    return Path(root)


def _md5(path: str | Path, *_: bytes) -> str:
    """A file's check sum, remembered as long as its size and time are the same."""
    status = os.stat(path)
    return _md5_of(str(path), status.st_size, status.st_mtime_ns)


@functools.cache
def _md5_of(path: str, *_: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


@pytest.fixture
def no_figure_files(monkeypatch):
    """Reports without the files beside a page, each of which is drawn anew; the page's own drawings stay."""
    monkeypatch.setattr("balpoe.report.write.figure_bytes", lambda *_: b"")


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made, but no files of them, which take the time."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, stream, **_: stream.write(b""))


@pytest.fixture
def no_drawings(no_figure_files, monkeypatch):
    """Reports whose figures are drawn, but laid out and saved as nothing: for tests of what else is on a page."""
    from matplotlib.figure import Figure

    def unsaved(draw, size, kind):
        figure = Figure(figsize=size)
        draw(figure)
        return figure, b"\x89PNG" if kind == "png" else b"<svg ></svg>"

    monkeypatch.setattr("balpoe.report.drawing._drawn", unsaved)


@pytest.fixture
def ready_processes(monkeypatch):
    """Have the processes of a training forked from one that has imported everything, instead of started anew."""
    from lightning_fabric.strategies.launchers.multiprocessing import _MultiProcessingLauncher

    import processes  # which says what is imported

    start, ready = _MultiProcessingLauncher.__init__, processes.READY.get_start_method()

    def start_ready(self, strategy, start_method):
        assert start_method == "spawn"  # forked from this one, they would share what CUDA has begun
        start(self, strategy, ready)

    monkeypatch.setattr(_MultiProcessingLauncher, "__init__", start_ready)


@pytest.fixture(scope="session")
def browser():
    """A Chromium that is installed on this machine; none is downloaded."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium on the path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
