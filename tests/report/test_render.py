"""The page on a phone and on a desk: what a reader sees of 400 classes, and what answers a finger or a mouse."""

import itertools
import re
from dataclasses import replace

import pytest

from balpoe.cli.main import main
from explorer_pages import wait_until
from made_predictions import make

NAMES = tuple(f"species {label}, of the family with a long name" for label in range(400))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    for name, lambdas in (("ours", (1, 0, -1)), ("plain", (1,))):
        replace(make(800, 400, lambdas=lambdas, noise=0.1), class_names=NAMES).save(folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("balpoe.report.write.figure_bytes", lambda *_: b"")
        lines = ["class;family", *(f"{name};family {label // 10}" for label, name in enumerate(NAMES))]
        (folder / "tree.csv").write_text("\n".join(lines))
        files = {"baseline": "plain", "taxonomy": "tree.csv", "out": "r.html"}
        flags = [word for flag, name in files.items() for word in (f"--{flag}", str(folder / name))]
        assert main(["report", str(folder / "ours"), *flags]) == 0
    return folder / "r.html"


@pytest.fixture(params=[390, 1280], ids=["phone", "desk"])
def tab(request, page, browser):
    context = browser.new_context(viewport={"width": request.param, "height": 850}, has_touch=request.param < 500)
    tab, complaints = context.new_page(), []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(page.as_uri())
    yield tab
    assert complaints == []
    context.close()


def boxes(tab, selector):
    """Where each element is, None for one that is not shown; all in one question, for a question takes its time."""
    return tab.locator(selector).evaluate_all(
        """all => all.map(each => {
            const { x, y, width, height } = each.getBoundingClientRect();
            return width || height ? { x, y, width, height } : null;
        })"""
    )


def apart(first, second):
    return (
        first["x"] + first["width"] <= second["x"] + 0.5
        or second["x"] + second["width"] <= first["x"] + 0.5
        or first["y"] + first["height"] <= second["y"] + 0.5
        or second["y"] + second["height"] <= first["y"] + 0.5
    )


def test_what_a_reader_sees_and_does(tab):
    width = tab.viewport_size["width"]
    _it_fits(tab, width)
    _captions_and_headings_can_be_read(tab, width)
    _entries_do_not_collide(tab)
    _search_finds_a_class(tab)
    _a_point_has_a_name(tab, width)
    _the_slider_follows_the_buttons(tab)
    _decisions_follow_the_keys(tab)


def _it_fits(tab, width):
    """Nothing is wider than the screen but what scrolls, and that says so."""
    tab.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")
    tab.wait_for_timeout(100)  # observers answer before the next frame
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes(tab, ".drawing svg"))
    scrolling = tab.locator(".scroll").evaluate_all(
        """all => all.map(box => {
            const pane = box.querySelector('.pane'), sign = box.querySelector('.sign');
            const over = [pane.scrollWidth - pane.clientWidth > 2, pane.scrollHeight - pane.clientHeight > 2];
            return [over, sign.checkVisibility({ visibilityProperty: true }), sign.innerText];
        })"""
    )
    assert scrolling
    for over, shown, says in scrolling:
        assert shown == any(over)
        if any(over):
            assert ["sideways" in says, "down" in says] == over
    wide = sum(over[0] for over, *_ in scrolling)
    assert wide > 2 or width > 500
    first = tab.locator(".scroll:has(.pane)").filter(has_text="adjusted").first
    first.locator(".pane").evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    tab.wait_for_timeout(100)
    assert "sideways" not in first.locator(".sign").inner_text()
    # A heading of each row stays in sight while the row scrolls.
    assert first.locator("tbody th").first.bounding_box()["x"] >= 0


def _captions_and_headings_can_be_read(tab, width):
    """A caption ends where the screen does, however wide its table; a heading is no tower of single words."""
    seen = [box for box in boxes(tab, "caption bdi") if box]
    assert seen
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in seen)
    heights = [box["height"] for box in boxes(tab, "thead") if box]
    assert max(heights) <= 110


def _entries_do_not_collide(tab):
    entries = boxes(tab, "nav li")
    assert len(entries) > 8
    assert all(apart(*pair) for pair in itertools.combinations(entries, 2))
    assert all(apart(*pair) for pair in itertools.combinations(boxes(tab, "nav a"), 2))
    assert tab.locator("#section-0 svg").first.bounding_box()["y"] < entries[0]["y"]


def _search_finds_a_class(tab):
    """Also one that is not among the 300 rows that are shown at first."""
    field, part = tab.get_by_label("Find a class"), tab.locator("#section-1")
    rows = part.locator("details tbody tr")
    assert rows.count() == 300
    assert "400 of 400, of which 300 are shown" in part.locator("output").inner_text()
    field.fill("SPECIES 399,")
    assert rows.count() == 1
    assert "species 399, of the family" in rows.first.inner_text()
    assert part.locator("output").inner_text() == "1 of 400"
    field.fill("no such class")
    assert rows.count() == 0
    field.fill("")
    assert rows.count() == 300


def _a_point_has_a_name(tab, width):
    drawing = tab.locator("#section-1 .drawing")
    points = drawing.locator("script.points").evaluate("e => JSON.parse(e.textContent)")
    assert len(points) == 800
    x, y, text = points[123]
    drawing.scroll_into_view_if_needed()
    frame = drawing.locator("svg").bounding_box()
    view = [float(size) for size in drawing.locator("svg").get_attribute("viewBox").split()]
    place = frame["x"] + x * frame["width"] / view[2], frame["y"] + y * frame["height"] / view[3]
    tip = drawing.locator(".tip")
    assert not tip.is_visible()
    tab.touchscreen.tap(*place) if width < 500 else tab.mouse.move(*place)
    assert tip.is_visible()
    assert text.startswith("species 123, of the family")
    assert text in tip.inner_text() or "more" in tip.inner_text()
    inside = tip.bounding_box()
    assert inside["x"] >= 0
    assert inside["x"] + inside["width"] <= width
    tab.mouse.move(frame["x"] + 1, frame["y"] + 1)  # where no point is near
    assert not tip.is_visible()


def _the_slider_follows_the_buttons(tab):
    slider, value = tab.locator(".explorer input[type=range]"), "e => Number(e.value)"
    assert slider.evaluate(value) == -10
    tab.get_by_role("button", name="Uniform").click()
    assert slider.evaluate(value) == 0
    tab.get_by_role("button", name="Training prior").click()
    assert slider.evaluate(value) == -20  # a long tail of 100, as forward-100 is
    tab.locator("textarea").fill("\n".join(str(1.01**label) for label in range(400)))
    tab.get_by_role("button", name="Use these weights").click()
    assert slider.evaluate(value) > 15
    assert re.search(r"not from this slider", slider.get_attribute("aria-valuetext"))


def _decisions_follow_the_keys(tab):
    """From the explorer's slider and back, without a mouse; what a control is set to is said in words."""
    decide = tab.locator(".decide")
    decide.get_by_role("button", name="Change it above").press("Enter")
    assert tab.evaluate("document.activeElement === document.querySelector('.explorer input')")
    for name, least in (("confidence", "0"), ("weight", "0"), ("level", "50")):
        control = decide.locator(f'[data-control="{name}"]')
        assert control.evaluate("e => e.labels.length") == 1
        control.press("Home")
        assert control.input_value() == least
        setting = decide.locator(f'[data-setting="{name}"]')
        before = setting.inner_text()
        control.press("ArrowRight")
        wait_until(lambda setting=setting, before=before: setting.inner_text() != before)
        assert control.get_attribute("aria-valuetext") == setting.inner_text()
    choice = decide.get_by_role("combobox", name="Class")
    choice.focus()
    tab.keyboard.type("species 17,")
    wait_until(lambda: tab.evaluate("window.balpoeDecide.result.cost.chosen === 17"))
    assert "species 17, of the family" in decide.locator('[data-setting="weight"]').inner_text()
    assert decide.locator('[data-table="tree"] tbody th').all_inner_texts() == ["class", "family", "none"]
