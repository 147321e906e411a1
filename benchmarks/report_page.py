"""The report page: time and memory of making it, at CIFAR-100's and iNaturalist's size, and the time of a move.

    python benchmarks/report_page.py [--sizes 10000x100,24000x8142] [--out results/report_page.json]

Predictions are made up and lie on disk, mapped, as those of a run. Memory is what the process holds of its own (the
mapped predictions not counted), at its peak. A move is the explorer's own time for one new prior, in Chromium.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import balpoe
from balpoe.data.long_tail import long_tailed_counts
from balpoe.files import write_json

MAKE = """
import sys, threading, time
from pathlib import Path
peak, done = 0, False
def watch():
    global peak
    while not done:
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = max(peak, int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))))
        time.sleep(0.01)
thread = threading.Thread(target=watch); thread.start()
from balpoe.report.write import write_report
start = time.perf_counter()
write_report([sys.argv[1]], Path(sys.argv[2]))
seconds, done = time.perf_counter() - start, True
thread.join()
print(seconds, peak / 1024)
"""


def predictions(samples: int, classes: int, folder: Path) -> None:
    """Three experts that know something, a long tail in training, a balanced test set."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(samples) % classes
    logits = torch.empty(samples, 3, classes, dtype=torch.float16)
    for rows in torch.arange(samples).split(2000):
        block = 2 * torch.randn(len(rows), 3, classes, generator=generator)
        block[torch.arange(len(rows)), :, targets[rows]] += 6
        logits[rows] = block.half()
    counts = torch.tensor(long_tailed_counts(classes, 500, 100))
    balpoe.Predictions(logits, targets, counts, torch.tensor([1.0, 0.0, -1.0])).save(folder)


def moves(page: Path) -> list[float]:
    """Milliseconds of twenty moves of the slider."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(page.as_uri())
        slider = tab.locator(".explorer input[type=range]")
        slider.focus()
        times = []
        for number in range(20):
            tab.keyboard.press("ArrowRight" if number < 10 else "ArrowLeft")
            tab.wait_for_timeout(300)
            times.append(float(tab.evaluate("window.balpoeExplorer.lastMilliseconds")))
        browser.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="10000x100,24000x8142")
    parser.add_argument("--out", type=Path, default=Path("results/report_page.json"))
    arguments = parser.parse_args()
    rows = []
    print(f"{'samples':>8} {'classes':>8} {'seconds':>8} {'MiB':>7} {'page MB':>8} {'ms a move':>10}")
    for size in arguments.sizes.split(","):
        samples, classes = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            predictions(samples, classes, folder / "predictions")
            command = [sys.executable, "-c", MAKE, str(folder / "predictions"), str(folder / "report.html")]
            found = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
            seconds, mebibytes = map(float, found.stdout.split())
            page = folder / "report.html"
            row = {
                "samples": samples,
                "classes": classes,
                "seconds": seconds,
                "mib": mebibytes,
                "page_mb": page.stat().st_size / 1e6,
                "ms_a_move": statistics.median(moves(page)),
            }
        rows.append(row)
        print(
            f"{samples:8} {classes:8} {seconds:8.1f} {mebibytes:7.0f} {row['page_mb']:8.2f} {row['ms_a_move']:10.1f}",
            flush=True,
        )
    write_json(arguments.out, {"made": time.strftime("%Y-%m-%d"), "rows": rows})
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
