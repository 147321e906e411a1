"""What all tests share."""

import os
import shutil
from pathlib import Path

import pytest
import torch
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


def pytest_collection_modifyitems(items):
    """Mark the tests of slow places and those of the CIFAR files; elsewhere slow ones are marked one by one."""
    places = {Path(__file__).parent / place for place in SLOW}
    for item in items:
        if not places.isdisjoint([item.path, *item.path.parents]) or item.get_closest_marker("data"):
            item.add_marker("slow")


def pytest_sessionstart():
    """Also what is made for several tests is made before the first of them."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread():
    """Bit equality between two runs wants a fixed number of threads, and the tests run side by side."""
    torch.set_num_threads(1)


@pytest.fixture
def cifar_root() -> Path:
    """The folder with the official CIFAR files."""
    root = os.environ.get("BALPOE_DATA")
    if not root:
        pytest.skip("BALPOE_DATA does not point at the official CIFAR files")
    return Path(root)


@pytest.fixture
def no_figure_files(monkeypatch):
    """Reports without the files beside a page, each of which is drawn anew; the page's own drawings stay."""
    monkeypatch.setattr("balpoe.report.write.figure_bytes", lambda *_: b"")


@pytest.fixture
def no_drawings(no_figure_files, monkeypatch):
    """Reports whose figures are drawn, but laid out and saved as nothing: for tests of what else is on a page."""
    from matplotlib.figure import Figure

    def unsaved(draw, size, kind):
        figure = Figure(figsize=size)
        draw(figure)
        return figure, b"<svg ></svg>"

    monkeypatch.setattr("balpoe.report.plots._drawn", unsaved)


@pytest.fixture
def ready_processes(monkeypatch):
    """Have the processes of a training forked from one that has imported everything, instead of started anew."""
    from lightning_fabric.strategies.launchers.multiprocessing import _MultiProcessingLauncher

    import processes  # which says what is imported

    start, ready = _MultiProcessingLauncher.__init__, processes.READY.get_start_method()
    monkeypatch.setattr(_MultiProcessingLauncher, "__init__", lambda self, strategy, **_: start(self, strategy, ready))


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
