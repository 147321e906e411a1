"""Photograph the example report for README.md and report.md, light and dark: python docs/report_images.py.

Chromium has to be installed. The report itself: see report.md.
"""

import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

HERE = Path(__file__).parent
PARTS = {"report": ("section:has(.explorer)", ".explorer-flow"), "report-decide": (".decide-body", ".decide-live")}
"""Of each image: what is shown, and where it ends."""


def photograph(browser: Browser, scheme: str) -> None:
    """Save each part, with the deployment prior moved to where rare classes dominate."""
    for name, (selector, end) in PARTS.items():
        context = browser.new_context(viewport={"width": 1280, "height": 1600}, color_scheme=scheme)
        page = context.new_page()
        page.goto((HERE / "example-report.html").as_uri())
        page.locator(".explorer input[type=range]").fill("17")
        page.wait_for_function("document.querySelector('.explorer-prior').textContent.startsWith('Backward-50')")
        page.evaluate(
            "document.activeElement.blur(); for (const each of document.querySelectorAll('details')) each.open = false"
        )
        page.evaluate("scrollTo(0, 0)")
        box, last = page.locator(selector).bounding_box(), page.locator(end).bounding_box()
        assert box is not None
        assert last is not None
        tall = last["y"] + last["height"] - box["y"] + 8
        frame = {"x": box["x"] - 16, "y": box["y"], "width": box["width"] + 32, "height": tall}
        image = Image.open(io.BytesIO(page.screenshot(full_page=True, clip=frame)))  # type: ignore[arg-type]
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)  # a third of the size, and none sees it
        few.save(HERE / "images" / f"{name}{'-dark' * (scheme == 'dark')}.png", optimize=True)
        context.close()


if __name__ == "__main__":
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for each in ("light", "dark"):
            photograph(chromium, each)
        chromium.close()
