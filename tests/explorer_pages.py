"""Pages with the prior explorer, opened in a browser, and the predictions as they hold them."""

import base64
import json
import re
import time
from dataclasses import replace

import numpy as np
import torch

from balpoe.report.explorer.pack import explorer_assets
from balpoe.report.look import css_variables

RATIOS = (1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.5, 8, 10, 13, 16, 20, 25, 32, 40, 50, 65, 80, 100)  # from the middle on
METRICS = ("accuracy", "balanced_accuracy", "many", "medium", "few", "ece", "mce")


def page_of(*explorers, more="", assets=("", "")):
    """A page as a report makes it, with what else is on it: nothing from outside, nothing evaluated."""
    css, js = map("".join, zip(explorer_assets(), assets, strict=True))
    fragments = "".join(each.html for each in explorers) + more
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return f"""<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Page</title>
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{css_variables()}{css}</style></head>
<body><main>{fragments}</main><script>{js}</script></body></html>"""


def wait_until(condition):
    """Wait here, not in the page: reports forbid the `eval` of Playwright's `wait_for_function` once it has to wait."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Opened:
    """A page in a browser, and the controls of its first explorer."""

    def __init__(self, browser, tmp_path, html, **context):
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.complaints = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.complaints.append(request.url))
        self.page.goto(path.as_uri())
        self.complaints.remove(path.as_uri())
        wait_until(lambda: self.state("moves") > 0)

    def state(self, name):
        return self.page.evaluate(f"window.balpoeExplorer.{name}")

    def move(self, action):
        """Do something that changes the prior, and wait until the numbers have followed."""
        moves = self.state("moves")
        action()
        wait_until(lambda: self.state("moves") > moves)
        return self

    def text(self, selector):
        return self.page.locator(selector).first.inner_text()

    def slide_to(self, name):
        """Pull the slider to a prior; that its keys reach each step is shown once, in the tests of the explorer."""
        side, _, ratio = name.partition("-")
        step = RATIOS.index(float(ratio or 1)) * (-1 if side == "forward" else 1)
        self.move(lambda: self.page.locator(".explorer input[type=range]").first.fill(str(step)))
        assert self.state("result.prior") == name
        assert self.text(".explorer-prior") == self.slider_words()
        return self

    def slider_words(self):
        words = self.page.locator(".explorer input[type=range]").get_attribute("aria-valuetext")
        return words[0].upper() + words[1:]

    def paste(self, text):
        if self.page.locator("textarea").is_hidden():
            self.page.locator(".explorer-own summary").click()
        self.page.locator("textarea").fill(text)
        self.page.get_by_role("button", name="Use these weights").click()

    def mistake(self, text):
        self.paste(text)
        return re.sub("[\u2068\u2069]", "", self.text(".explorer-mistake"))

    def shown(self):
        """The numbers of the table: {"adjusted": {metric: text}, "asTrained": {...}}."""
        cells = """names => names.map(name =>
            [...document.querySelectorAll(`[data-metric="${name}"] td`)].map(each => each.innerText))"""
        rows = dict(zip(METRICS, self.page.evaluate(cells, list(METRICS)), strict=True))
        return {
            kind: {name: row[place] for name, row in rows.items()}
            for place, kind in enumerate(("asTrained", "adjusted"))
        }


def data_of(made):
    return json.loads(re.search(r'class="explorer-data">(.*?)</script>', made.html, re.DOTALL)[1])


def page_holds(made, predictions):
    """The predictions as a page holds them, one expert with the prior of the ensemble."""
    data = data_of(made)
    codes = np.frombuffer(base64.b64decode(data["codes"]), np.uint8 if data["levels"] == 255 else np.uint16)
    logits = torch.from_numpy(-20 * (codes / data["levels"]) ** 2).view(len(predictions), 1, -1)
    return replace(predictions, expert_logits=logits, lambdas=predictions.lambdas.mean(dim=0, keepdim=True))
