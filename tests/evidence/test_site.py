"""The site: it builds without a warning, fits a phone, is dark where wanted, fetches nothing, and finds a word."""

import dataclasses
import io
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

import balpoe
from balpoe.cli.main import COMMANDS, main
from balpoe.experiments.recipe import FIELDS, Recipe
from balpoe.report.look import DARK, LIGHT
from processes import ready_command
from scripts import script

pytest.importorskip("sphinx")
ROOT = Path(__file__).parents[2]
THEMES = {"light": LIGHT, "dark": DARK}
SCREENS = ({"width": 390, "height": 800}, {"width": 1280, "height": 800})
MADE = ("_build", "generated", "gallery", "__pycache__")
PAGES = (
    "index",
    "which",
    "how-to",
    "tutorials/photos",
    "tune",
    "priors",
    "explanation/label-shift",
    "results",
    "reference/generated/command-line",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built pages, of a copy of the sources; the gallery's scripts have their own tests and are not executed."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns(*MADE))
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns(*MADE[-1:]))
    for name in ("results", "src", "models", "benchmarks", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        os.symlink(ROOT / name, folder / name)
    words = ["-W", "--keep-going", "-q", "-D", "plot_gallery=0", str(folder / "docs"), str(folder / "html")]
    process = ready_command(words, folder / "build", module="sphinx.cmd.build")
    process.join()
    assert process.exitcode == 0, text_of(folder / "build.err")
    return folder / "html"


def text_of(page):
    return page.read_text(encoding="utf-8")


def test_every_page_is_in_the_contents(site):
    """Sphinx warns of a page that no table of contents has; here: nothing was left out before it could warn."""
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix(".html")
        if not set(name.parts) & set(MADE):
            assert (site / name).is_file(), name


def test_public_names_are_in_the_reference(site):
    found = "".join(text_of(page) for page in (site / "reference" / "generated").glob("api-*.html"))
    for name in balpoe.__all__:
        assert name.startswith("_") or f'id="balpoe.{name}"' in found, name


def test_a_sentence_about_an_attribute_keeps_what_stands_before_its_colon(site):
    page = text_of(site / "reference" / "generated" / "api-deployment.html")
    assert "Least probability with which each class is answered, (classes,); 2: never." in page


def test_a_build_without_scripts_leaves_the_gallery_no_placeholders(tmp_path):
    thumbnails = tmp_path / "gallery" / "images" / "thumb"
    thumbnails.mkdir(parents=True)
    for name in ("a_thumb.png", "a_thumb.svg"):
        (thumbnails / name).touch()
    script("docs/_ext/gallery_look.py").forget_placeholders(SimpleNamespace(srcdir=str(tmp_path)))
    assert [path.name for path in thumbnails.iterdir()] == ["a_thumb.svg"]


def test_every_verb_and_flag_is_in_the_reference(site, capsys):
    page = text_of(site / "reference" / "generated" / "command-line.html")
    for verb in COMMANDS:
        assert re.search(rf"<h2>balpoe {verb}<", page), verb
        assert main([verb, "--help"]) == 0
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", capsys.readouterr().out):
            assert flag == "--help" or flag in page, flag


def test_every_field_is_in_the_reference_with_its_default(site):
    page = text_of(site / "reference" / "generated" / "recipe-fields.html")
    rows = {cells[0]: cells[1:] for cells in table_cells(page)}
    for name, item in FIELDS.items():
        default, meaning = rows[name]
        value = getattr(Recipe(), name)
        assert item.metadata["doc"][1:].split(";")[0] in meaning.replace("\u2019", "'"), name
        if value not in ("", (), {}):
            words = value if isinstance(value, tuple) else (value,)
            assert [str(word).lower() for word in words] == default.lower().split(","), name
    assert set(rows) >= {item.name for item in dataclasses.fields(Recipe)}


def table_cells(page):
    """Rows of all tables of a page, as plain text."""
    for row in re.findall(r"<tr.*?</tr>", page, flags=re.DOTALL):
        cells = re.findall(r"<td.*?</td>", row, flags=re.DOTALL)
        plain = [re.sub(r"<[^>]+>", "", cell).strip() for cell in cells]
        if plain:
            yield plain


def test_a_number_and_its_deviation_stay_on_one_line(site):
    page = text_of(site / "results.html")
    cells = [cell for row in table_cells(page) for cell in row if "±" in cell]
    assert len(cells) >= 100
    assert not [cell for cell in cells if " ±" in cell or "± " in cell]


def pages_of(site):
    return [page for page in site.rglob("*.html") if "_static" not in page.parts]


def test_links_of_pages_lead_to_pages_and_files_of_the_site(site):
    for page in pages_of(site):
        for target in re.findall(r'(?:href|src)="([^"#?]+)', text_of(page)):
            if "://" not in target and not target.startswith(("data:", "mailto:")):
                assert (page.parent / target).exists(), (page.name, target)


def test_nothing_is_fetched_from_elsewhere(site):
    for page in pages_of(site):
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//[^"]+', text_of(page)), page.name


THEME = "document.documentElement.dataset.theme"


@pytest.fixture
def page(browser):
    context = browser.new_context()
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    yield page
    assert complaints == []
    context.close()


def test_in_a_browser(site, page):
    """By night and by day, on a phone and on a desk that it turns into: loaded once, for that takes long."""
    for name in PAGES:
        page.set_viewport_size(SCREENS[0])
        page.emulate_media(color_scheme="dark")
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate(THEME) == "dark", name
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_function(f"{THEME} === '{scheme}'")
            for screen in SCREENS:
                page.set_viewport_size(screen)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= screen["width"], name  # a wide table moves, not the page
                assert page.evaluate(THEME) == scheme, name
                assert page.locator("h1").first.is_visible()


@pytest.mark.parametrize("screen", SCREENS, ids=["phone", "desk"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_follow_the_page(site, page, scheme, screen):
    """A figure is dark on a dark page, and light where the reader has switched the page to light."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(screen)
    page.goto((site / "which.html").as_uri())
    assert page.evaluate(THEME) == scheme
    figure = page.locator(".wide-figure img")
    for theme, colours in {scheme: THEMES[scheme], "light": LIGHT, "dark": DARK}.items():
        page.evaluate(f"theme => {{ {THEME} = theme; }}", theme)
        image = Image.open(io.BytesIO(figure.screenshot())).convert("RGB")
        assert "#{:02x}{:02x}{:02x}".format(*image.getpixel((30, 30))) == colours["paper"], theme


def test_search_finds_a_page(site, browser):
    context = browser.new_context()  # without complaints: it cannot fetch the found pages' words from a folder
    page = context.new_page()
    page.goto((site / "search.html").as_uri() + "?q=temperature")
    page.wait_for_selector("#search-results li a", timeout=20_000)
    assert page.locator("#search-results li a").count() >= 3
    context.close()
