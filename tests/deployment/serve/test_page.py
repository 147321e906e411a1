"""The page in a real browser: by mouse, by keys, on a phone, with a token, and with features."""

import pytest

from balpoe import PriorTable
from balpoe.report.look import DARK
from served import (
    CLASSES,
    FEATURES,
    Gaussian,
    feature_model,
    held_out,
    image_bytes,
    image_model,
    labelled_rows,
    running,
    service_of,
)

pytestmark = pytest.mark.slow
REFUSED = "Failed to load resource: the server responded with a status of 4"  # what each browser notes of it
TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def address():
    with running(service_of(image_model())) as url:
        yield url


@pytest.fixture
def opened(browser):
    """Opens pages, and sees that nothing was complained of and nothing was asked for elsewhere."""
    contexts, complaints, asked = [], [], []

    def open_page(url, **context):
        contexts.append(browser.new_context(**context))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [each for each in complaints if not each.startswith(REFUSED)] == []
    assert {each.split("/")[2].split(":")[0] for each in asked if each.startswith("http")} == {"127.0.0.1"}


def image_file(seed=0):
    return {"name": "a.png", "mimeType": "image/png", "buffer": image_bytes(seed=seed)}


def answered(page, words):
    page.wait_for_function("words => document.getElementById('status').textContent.includes(words)", arg=words)
    return page.locator("#status").inner_text()


def shares(page):
    """Per cent of each class that is shown."""
    names, texts = (page.locator(f"#top .{kind}").all_inner_texts() for kind in ("name", "share"))
    return {name: float(text.split()[0]) for name, text in zip(names, texts, strict=True)}


def test_an_image_is_answered_with_each_expert_and_the_prior_moves_by_keys(opened, address):
    page = opened(address)
    page.wait_for_selector("#ask:not([hidden])")
    page.locator("#file").set_input_files(image_file())
    answered(page, "(prior: as trained)")
    shown = page.locator("#top .name").all_inner_texts()
    assert sorted(shown) == sorted(CLASSES)
    assert len(page.locator("#experts li").all()) == 3
    page.locator("#slider").focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    answered(page, "(prior: backward-10)")
    assert not page.locator("#assumed").is_checked()
    assert "rarest class of training is now 10 times" in page.locator("#slider").get_attribute("aria-valuetext")
    assert "by-server" not in page.locator("#prior").get_attribute("class")
    share = shares(page)
    page.keyboard.press("Home")
    answered(page, "(prior: forward-100)")
    other = shares(page)
    assert share["elm"] > other["elm"]  # the rarest class of training
    page.locator("#assumed").check()
    answered(page, "(prior: as trained)")


def test_an_image_is_dropped_and_a_wrong_file_gets_a_sentence(opened, address):
    page = opened(address)
    page.wait_for_selector("#ask:not([hidden])")
    drop = """([bytes, kind]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "a", { type: kind }));
        document.getElementById("images").dispatchEvent(
            new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    page.evaluate(drop, [list(image_bytes()), "image/png"])
    answered(page, "(prior: as trained)")
    assert page.locator("#shown").is_visible()
    page.evaluate(drop, [list(b"no image"), "image/png"])
    assert "is not a whole image" in answered(page, "not a whole image")
    assert page.locator("#answer").is_hidden()


def test_by_keys_alone(opened, address):
    page = opened(address)
    page.on("filechooser", lambda _: None)  # choosers are caught from here on: asked at the key, it can come too late
    page.wait_for_selector("#ask:not([hidden])")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "file"
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files([image_file()])
    answered(page, "(prior: as trained)")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "assumed"
    page.keyboard.press("Space")
    answered(page, "(prior: uniform)")


def test_on_a_phone_nothing_is_wider_than_the_screen(opened, address):
    phone = {"viewport": {"width": 320, "height": 640}, "has_touch": True, "is_mobile": True, "color_scheme": "dark"}
    page = opened(address, **phone)
    page.wait_for_selector("#ask:not([hidden])")
    page.locator("#file").set_input_files(image_file())
    answered(page, "prior")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    for name in ("#drop", "#slider", "#assumed"):
        box = page.locator(name).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 320
    assert page.locator("#slider").bounding_box()["height"] >= 32  # a finger's target
    colours = "e => { const s = getComputedStyle(e); return [s.color, s.backgroundColor]; }"
    look = [tuple(bytes.fromhex(DARK[name][1:])) for name in ("ink", "paper")]
    shown = page.locator("body").evaluate(colours)[0], page.locator("#drop").evaluate(colours)[1]
    assert shown == tuple(f"rgb{colour}" for colour in look)


def test_a_token_is_asked_for(opened):
    with running(service_of(feature_model()), TOKEN) as url:
        page = opened(url)
        page.wait_for_selector("#token-form:not([hidden])")
        assert page.locator("#ask").is_hidden()
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("#ask:not([hidden])")
        assert page.locator("#token-form").is_hidden()
        page.locator("#row").fill("1, 2 3;4")
        page.get_by_role("button", name="Ask").click()
        answered(page, "(prior: as trained)")
        page.locator("#row").fill("1, 2")
        page.get_by_role("button", name="Ask").click()
        assert f"takes {FEATURES}" in answered(page, "takes")


def test_places_and_the_class_mix_of_late(opened):
    counts = {"north": {"oak": 30, "ash": 10, "elm": 1}, "south": {"oak": 1, "ash": 10, "elm": 60}}
    table = PriorTable.read(counts, CLASSES, ["site"], strength=1.0)
    service = service_of(Gaussian(), table=table, reference=held_out().predictions, window=300)
    rows, _ = labelled_rows(300, (1, 1, 8), seed=9)
    service.drift.add(Gaussian().expert_logits(rows).mean(dim=1))
    with running(service) as url:
        page = opened(url)
        page.wait_for_selector("#drift:not([hidden])")
        assert "another class mix" in page.locator("#drift-sentence").inner_text()
        assert page.locator("#drift-state").inner_text() == "another than assumed"
        assert page.locator("#drift-rows .chart .estimated").count() == len(CLASSES)
        assert set(page.locator("#drift-rows th").all_inner_texts()) == set(CLASSES)
        page.locator("#row").fill("0 0 0 0")
        page.locator("#place").select_option(label="south")
        answered(page, "(prior: south)")
        assert page.locator("#top .name").first.inner_text() == "elm"
