"""The report: its numbers are those of the runs, it needs nothing but itself, and nothing in it is executed."""

import html
import itertools
import json
import os
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import Predictions, evaluate, load_predictions
from balpoe.cli.main import main
from balpoe.data.long_tail import long_tailed_counts
from balpoe.evaluation.rival import adjusted_rival, paired_difference, verdict
from balpoe.evaluation.shifted_tests import full_evaluation
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import train_run
from balpoe.report.calibration import CALIBRATED, TOO_FEW, experts_section
from balpoe.report.classes import class_differences, classes_section
from balpoe.report.confusions import confused_pairs, confusions_section
from balpoe.report.images import SampleImages
from balpoe.report.inputs import Subject, read_subjects
from balpoe.report.render import Figure, Section, Table, html_page, markdown_page
from balpoe.report.write import report_sections
from gaussians import Gaussians
from made_predictions import HOSTILE, make


@pytest.fixture(autouse=True)
def _page_alone(no_figure_files):
    """All but `page`, which is made once and whole, do without the files beside it."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of BalPoE and one of cross-entropy on the digits, a few epochs each."""
    root = tmp_path_factory.mktemp("runs")
    base = updated(preset("digits-lt"), {"epochs": 3, "device": "cpu"})
    for name, changes in (("ours", {}), ("plain", {"lambdas": (1,), "mixup_alpha": 0.0})):
        for seed in (0, 1) if name == "ours" else (0,):
            recipe = updated(base, {**changes, "seed": seed})
            train_run(recipe, root / name / f"seed-{seed}", progress=False)
    return root


@pytest.fixture(scope="module")
def page(runs):
    """A page about both seeds, with the baseline."""
    out = runs / "report.html"
    arguments = [str(runs / "ours"), "--baseline", str(runs / "plain"), "--out", str(out)]
    assert main(["report", *arguments]) == 0
    return out


def save_npz(path, predictions, **changes):
    arrays = {
        "logits": predictions.expert_logits.numpy(),
        "targets": predictions.targets.numpy(),
        "class_counts": predictions.class_counts.numpy(),
        "lambdas": predictions.lambdas.numpy(),
        "class_names": np.array(predictions.class_names),
        **changes,
    }
    np.savez(path, **arrays)
    return str(path)


def opened(browser, path, **settings):
    """A tab with the page, what it complained about, and what it asked for."""
    context = browser.new_context(**settings)
    tab, complaints, requests = context.new_page(), [], []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(Path(path).as_uri())
    return tab, complaints, requests


def colours(picture):
    import io

    from PIL import Image

    return len(Image.open(io.BytesIO(picture)).convert("RGB").getcolors(1 << 24))


def test_numbers_are_those_of_the_runs(page, runs):
    text = page.read_text(encoding="utf-8")
    evaluations = [json.loads((runs / "ours" / f"seed-{seed}" / "evaluation.json").read_text()) for seed in (0, 1)]
    mean = sum(100 * evaluation["accuracy"] for evaluation in evaluations) / 2
    assert f"{mean:.1f} ±" in text
    balanced = sum(100 * evaluation["balanced_accuracy"] for evaluation in evaluations) / 2
    low, high = (100 * bound for bound in evaluations[0]["intervals"]["balanced_accuracy"])
    assert re.search(
        rf"Balanced accuracy is {balanced:.1f} ± [\d.]+ % \(95 % interval \(seed-0\) {low:.1f} to {high:.1f}\)", text
    )
    for evaluation in evaluations:
        assert f"{100 * evaluation['few']:.1f}</bdi>" in text
    assert "61,696" in text  # parameters
    assert "124 and 2" in text  # the largest and the smallest class
    assert "dataset = &quot;digits-lt&quot;" in text


def test_the_sections_come_in_order(page):
    titles = re.findall(r"<h2>(.*?)</h2>", page.read_text(encoding="utf-8"))
    assert titles == [
        "The result",
        "Class by class",
        "Can its confidence be trusted?",
        "Are the experts what the theory needs?",
        "What rare classes are taken for",
        "The most confident errors",
        "Where other classes are common",
        "Try another deployment prior",
        "Decide",
        "How the training samples are spread",
        "What was trained on what",
        "Seed by seed",
        "How to do it again",
    ]


def test_every_figure_is_saved_and_has_its_words_and_numbers(page):
    subjects = read_subjects([str(page.parent / "ours"), str(page.parent / "plain")])
    figures = [block for part in report_sections(*subjects[:1]) for block in part.exhibits if isinstance(block, Figure)]
    assert len(figures) == 6
    for figure in figures:
        folder = page.with_name("report_figures")
        assert (folder / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (folder / f"{figure.name}.svg").read_bytes()
        assert len(figure.alt) > 30
        assert len(figure.table.rows) >= 1


def test_the_honest_rival_stands_beside_the_result(page, runs):
    """Cross-entropy adjusted to the same prior has its row, its difference with an interval, and a verdict."""
    text = page.read_text(encoding="utf-8")
    plain = load_predictions(runs / "plain" / "seed-0")
    rival = evaluate(plain, "uniform", shot_groups=(10, 50), num_resamples=0)
    assert f"<bdi>cross-entropy, adjusted</bdi></th><td><bdi>{100 * rival.balanced_accuracy:.1f}</bdi>" in text
    ours = [load_predictions(runs / "ours" / f"seed-{seed}") for seed in (0, 1)]
    found = paired_difference(ours, [adjusted_rival(plain)], shot_groups=(10, 50))
    assert verdict("BalPoE", "cross-entropy, adjusted", found) in text
    first = (
        text.index("<h2>The result"),
        text.index("Balanced accuracy is"),
        text.index("On these data BalPoE is"),
    )
    assert list(first) == sorted(first)
    assert first[-1] < text.index("<svg ") < text.index("<nav ")


def test_a_baseline_that_is_no_worse_is_said_to_be_so(tmp_path):
    """The same classifier as its own rival: no verdict inside the noise, in any place."""
    ours, theirs = make(300, 10, lambdas=(0,)), make(300, 10, lambdas=(1,))
    save_npz(tmp_path / "ours.npz", ours)
    save_npz(tmp_path / "theirs.npz", replace(theirs, expert_logits=theirs.expert_logits + 1e-4))
    arguments = ["--baseline", str(tmp_path / "theirs.npz"), "--out", str(tmp_path / "r.md")]
    assert main(["report", str(tmp_path / "ours.npz"), *arguments]) == 0
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert "On these data ours cannot be told from theirs (cross-entropy), adjusted" in text
    assert "which may be random" in text


def test_gains_and_losses_are_those_beyond_their_interval():
    """Against loops over the samples, two seeds of ours against one."""
    ours, theirs = [make(400, 8, noise=n, seed=5) for n in (0.2, 0.4)], make(400, 8, lambdas=(1,), seed=5)
    subjects = [Subject("a", tuple(ours), (), (20, 100)), Subject("b", (theirs,), (), (20, 100))]
    found = class_differences(*subjects)
    right = [(each.logits.argmax(1) == each.targets).tolist() for each in (*ours, theirs)]
    for label, (value, low, high) in enumerate(found):
        rows = [row for row in range(400) if int(theirs.targets[row]) == label]
        each = [(right[0][row] + right[1][row]) / 2 - right[2][row] for row in rows]
        n = len(rows) + 2  # Agresti and Min: half a sample in each cell, two of them the concordant ones
        variance = (sum(d * d for d in each) + 1 - sum(each) ** 2 / n) / n**2
        assert value == pytest.approx(sum(each) / len(rows))
        assert (low, high) == pytest.approx(
            (sum(each) / n - 1.96 * variance**0.5, sum(each) / n + 1.96 * variance**0.5)
        )
    one, other = (
        Subject(each.name, each.predictions[:1], (full_evaluation(each.predictions[0], (20, 100)),), (20, 100))
        for each in subjects
    )
    gained = {str(label) for label, (_, low, _) in enumerate(class_differences(one, other)) if low > 0}
    assert gained
    part = classes_section(one, [other])
    tables = {table.caption: {row[0] for row in table.rows} for table in part.exhibits if isinstance(table, Table)}
    assert tables["The classes that gained most"] == gained
    assert f"{len(gained)} of 8 classes gained" in part.sentences[1]


def test_classes_without_evidence_are_named_while_they_are_few():
    for classes, named in ((8, True), (40, False)):
        made = make(2 * classes, classes)
        (sentence,) = classes_section(Subject("p", (made,), (full_evaluation(made, (20, 100)),), (20, 100))).sentences[
            1:
        ]
        assert sentence.startswith("Too few test samples, below 4")
        assert f"{classes} of {classes}" in sentence
        assert ("7 (2)" in sentence) == named


def test_no_group_of_classes_without_a_class(tmp_path, browser):
    """Neither a column nor a row of the page, where all classes are medium-shot."""
    predictions = replace(make(500, 5), class_counts=torch.tensor([90, 80, 70, 60, 50]))
    path = save_npz(tmp_path / "p.npz", predictions)
    assert main(["report", path, "--out", str(tmp_path / "p.html")]) == 0
    tab, complaints, _ = opened(browser, tmp_path / "p.html")
    headings = tab.locator("#section-0 > .scroll th[scope=col]").all_inner_texts()
    assert "medium %" in headings
    assert not {"many %", "few %"} & set(headings)
    assert tab.locator("[data-metric=medium]").is_visible()
    assert not tab.locator("[data-metric=few], [data-metric=many]").first.is_visible()
    assert tab.locator("#section-0 svg").first.inner_html().count("rarest third") == 1
    assert complaints == []
    tab.context.close()


CONTRASTS = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0.05);
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0) return colour;
    }
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || !element.getClientRects().length || element.closest("script, style, .skip")) continue;
    const style = getComputedStyle(element), words = element.closest("svg") ? style.fill : style.color;
    const pair = [light(words), light(ground(element))];
    found.push([Math.max(...pair) / Math.min(...pair), text]);
  }
  return found;
}"""


@pytest.mark.parametrize("width", [360, 1920])
def test_the_page_in_a_browser(page, browser, width):
    """By night, and by day, that it turns into: loaded once, for that takes long."""
    tab, complaints, requests = opened(
        browser, page, color_scheme="dark", viewport={"width": width, "height": 800}, offline=True
    )
    for scheme in ("dark", "light"):
        tab.emulate_media(color_scheme=scheme)
        tab.evaluate("scrollTo(0, 0)")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert colours(tab.screenshot()) > 20
        tab.locator("#section-8").scroll_into_view_if_needed()
        assert colours(tab.screenshot()) > 20
        contrasts = tab.evaluate(CONTRASTS)
        assert len(contrasts) > 300
        assert min(contrasts)[0] >= 4.5, min(contrasts)  # of every word, those in figures included
        ours = tab.locator("#section-0 .drawing svg use[style*=blue]").first.evaluate("e => getComputedStyle(e).fill")
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground, ours) == {
            "light": ("rgb(255, 255, 255)", "rgb(0, 114, 178)"),
            "dark": ("rgb(20, 24, 30)", "rgb(86, 180, 233)"),
        }[scheme]
        if width == 1920:
            _a_wide_screen_is_used(tab)
    assert tab.locator(".explorer").inner_text().count("%") > 3
    images = tab.locator("img").evaluate_all("images => images.map(i => [i.naturalWidth, i.alt])")
    assert images
    assert all(size == 8 and "taken for" in alt for size, alt in images)
    assert complaints == []
    assert requests == [page.as_uri()]
    tab.context.close()


def _a_wide_screen_is_used(tab):
    """No part leaves the right half of a wide screen empty, and the numbers stand beside their figure."""
    ends = """all => all.map((part) => [part.getBoundingClientRect().y, Math.max(
      ...[...part.querySelectorAll("p, td, svg, pre, img")].map((each) => each.getBoundingClientRect().right))])"""
    rows = {}
    for top, end in tab.locator("main > section:has(table, svg, pre)").evaluate_all(ends):
        rows[top] = max(end, rows.get(top, 0))
    assert len(rows) > 6
    assert min(rows.values()) > 0.75 * 1920
    drawing, numbers = (tab.locator(f"#section-1 {each}").first.bounding_box() for each in (".drawing", "details"))
    assert numbers["x"] > drawing["x"] + drawing["width"]


def test_in_print(page, browser):
    """On a sheet of A4: nothing is cut off, and what can only be clicked is left out."""
    tab, _, _ = opened(browser, page, viewport={"width": 794, "height": 1123})
    tab.emulate_media(media="print")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 794
    assert not tab.locator("button.copy").first.is_visible()
    assert tab.pdf(format="A4").startswith(b"%PDF")
    tab.context.close()


def test_with_a_keyboard_and_a_screen_reader(page, browser):
    tab, _, _ = opened(browser, page)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    # Every drawing says what it shows, every table has headings, every control has a name.
    assert tab.locator("[role=img]").count() >= 6
    assert all(tab.locator("[role=img]").evaluate_all("all => all.map(e => e.getAttribute('aria-label').length > 30)"))
    assert tab.locator("table:not(:has(th[scope=col]))").count() == 0
    names = "all => all.map(e => (e.labels && e.labels.length) || e.ariaLabel || e.textContent.trim().length > 0)"
    assert all(tab.locator("input, textarea, button").evaluate_all(names))
    levels = tab.locator("h1, h2, h3, h4").evaluate_all("all => all.map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    button = tab.locator("button.copy").first
    button.click()
    tab.wait_for_timeout(200)
    assert button.inner_text() != "Copy"
    tab.context.close()


def test_hostile_class_names_are_text(browser, tmp_path, capsys):
    predictions = make(300, 10)
    names = (*HOSTILE, *predictions.class_names[len(HOSTILE) :])
    arrays = {"class_names": np.array(names)}
    path = save_npz(tmp_path / "other's <b>predictions.npz", predictions, **arrays)
    assert main(["report", path, "--out", str(tmp_path / "page.html")]) == 0
    tab, complaints, _ = opened(browser, tmp_path / "page.html")
    assert complaints == []
    assert tab.evaluate("window.broken") is None
    tab.locator("details").evaluate_all("all => all.forEach(e => { e.open = true; })")
    text = tab.locator("main").inner_text()
    for name in HOSTILE:
        assert " ".join(name.replace("\u2028", " ").split()) in " ".join(text.replace("\u2028", " ").split())
    tab.context.close()
    assert main(["report", path, "--format", "md", "--out", str(tmp_path / "page.md")]) == 0
    markdown = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "<script>" not in markdown.replace("\\<", "")
    assert "\\<img src=x" in markdown


def test_anybody_s_classifier(tmp_path, no_drawings):
    """Logits of a plain classifier: the page says what moving them would give, which evaluate confirms."""
    predictions = make(2000, 10, lambdas=(1,), noise=0.1)
    path = save_npz(tmp_path / "plain.npz", predictions, logits=predictions.expert_logits[:, 0].numpy())
    assert main(["report", path, "--out", str(tmp_path / "plain.html")]) == 0
    text = (tmp_path / "plain.html").read_text(encoding="utf-8")
    before, after = (evaluate(predictions, prior, num_resamples=0).balanced_accuracy for prior in (None, "uniform"))
    assert after > before + 0.01
    assert f"balanced accuracy {100 * after:.1f} % instead of {100 * before:.1f} %" in text
    assert "the class frequencies of the training set" in text
    assert "Is it calibrated for its own class frequencies?" in text
    assert 'class="panel explorer"' in text
    log_probabilities = predictions.expert_logits[:, 0].log_softmax(dim=1).numpy()
    arrays = dict(np.load(path))
    del arrays["logits"]
    np.savez(tmp_path / "log.npz", log_probabilities=log_probabilities, **arrays)
    assert main(["report", str(tmp_path / "log.npz"), "--format", "md", "--out", str(tmp_path / "log.md")]) == 0
    assert f"{100 * after:.1f} % instead of {100 * before:.1f} %" in (tmp_path / "log.md").read_text(encoding="utf-8")


def test_logits_that_are_no_posterior_are_said_to_be_so(tmp_path, capsys, no_drawings):
    """In every place where something would be adjusted: tables, page and explorer; the experts' part is absent."""
    predictions = make(600, 6)
    free = Predictions(predictions.expert_logits, predictions.targets, predictions.class_counts)
    (sentence,) = free.caveats
    free.save(tmp_path / "free")
    for arguments in ([], ["--prior", "forward-10"]):
        assert main(["evaluate", str(tmp_path / "free"), *arguments]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert sentence in printed
        assert "as trained" in printed.replace(sentence, "")
        assert "adjusted" not in printed.replace(sentence, "")
    arguments = ["--prior", "forward-10", "--out", str(tmp_path / "free.md")]
    assert main(["report", str(tmp_path / "free"), *arguments]) == 0
    words = (tmp_path / "free.md").read_text(encoding="utf-8").replace(sentence, "")
    assert "| as trained |" in words
    assert "| test set | samples | as trained % (95 % interval) |" in words
    assert not re.search("adjust", words, re.IGNORECASE)
    arguments = ["--prior", "forward-10", "--out", str(tmp_path / "free.html")]
    assert main(["report", str(tmp_path / "free"), *arguments]) == 0
    text = (tmp_path / "free.html").read_text(encoding="utf-8")
    assert html.unescape(text).count(sentence) >= 4
    assert "Are the experts what the theory needs?" not in text
    assert '"source":null' in text


def test_two_of_one_name_are_told_apart(tmp_path):
    """Each with its own numbers, and the difference between the two."""
    scores = []
    for folder, noise in (("a", 0.1), ("b", 3.0)):
        (tmp_path / folder).mkdir()
        predictions = make(1000, 10, noise=noise)
        save_npz(tmp_path / folder / "p.npz", predictions)
        scores.append(100 * evaluate(predictions, num_resamples=0).accuracy)
    paths = [str(tmp_path / folder / "p.npz") for folder in "ab"]
    arguments = ["--baseline", paths[1], "--format", "md", "--out", str(tmp_path / "r.md")]
    assert main(["report", paths[0], *arguments]) == 0
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    for folder, score in zip("ab", scores, strict=True):
        assert re.search(rf"\| {folder}/p.npz \| [\d.]+ \| {score:.1f} \|", text)
    assert f"| accuracy | {scores[0] - scores[1]:+.1f} (" in text


def test_experts_with_one_lambda_and_a_class_without_test_samples(tmp_path, browser, no_drawings):
    predictions = make(1000, 10, lambdas=(1, 1))
    predictions = predictions.subset(predictions.targets != 9)
    path = save_npz(tmp_path / "p.npz", predictions)
    assert main(["report", path, "--out", str(tmp_path / "p.html")]) == 0
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "expert 1, lambda 1" in text
    assert "expert 2, lambda 1" in text
    assert "That is the mean over 9 classes" in text
    assert "unknown: a class has no test sample" in text
    tab, complaints, _ = opened(browser, tmp_path / "p.html")
    assert complaints == []
    assert "Under forward-10, accuracy is" in tab.locator(".explorer").inner_text()
    tab.context.close()


@pytest.mark.parametrize("experts", [1, 3])
def test_exact_experts_are_called_calibrated_also_on_few_samples(experts):
    """The check knows what chance does: exact posteriors, a few hundred test samples."""
    lambdas = (1, 0, -1)[:experts]
    for samples, seed in ((500, 0), (500, 1), (4000, 2)):
        problem = Gaussians(10, separation=0.7, seed=seed)
        targets = torch.arange(samples) % 10
        counts = torch.as_tensor(long_tailed_counts(10, 500, 50))
        likelihood = problem.log_likelihood(problem.sample_of(targets))
        log_prior = (counts / counts.sum()).double().log()
        logits = torch.stack([likelihood + value * log_prior for value in lambdas], dim=1)
        exact = Predictions(logits, targets, counts, torch.tensor(lambdas, dtype=torch.float64))
        wrong = Predictions(3 * logits, targets, counts, torch.tensor(lambdas, dtype=torch.float64))
        for predictions, calibrated in ((exact, True), (wrong, False)):
            evaluation = full_evaluation(predictions, (20, 100))
            part = experts_section(Subject("x", (predictions,), (evaluation,), (20, 100)))
            verdicts = [row[-1] for row in part.exhibits[1].rows]
            assert all(verdict in (CALIBRATED, TOO_FEW) for verdict in verdicts) == calibrated, verdicts


def test_seeds_that_do_not_belong_together(runs, tmp_path, capsys):
    for seed, name in enumerate(("ours", "plain")):
        shutil.copytree(runs / name / "seed-0", tmp_path / "mixed" / f"seed-{seed}")
    assert main(["report", str(tmp_path / "mixed"), "--out", str(tmp_path / "r.html")]) == 2
    assert "has other classes or experts than" in capsys.readouterr().err


def test_half_a_character_in_a_name(tmp_path):
    predictions = make(200, 5)
    names = np.array(["a\ud800", "b", "c", "d", "e"])
    path = save_npz(tmp_path / "p.npz", predictions, class_names=names)
    assert main(["report", path, "--out", str(tmp_path / "p.html")]) == 0
    assert "a?" in (tmp_path / "p.html").read_text(encoding="utf-8")


def test_the_deployment_prior(runs, tmp_path):
    run = runs / "ours" / "seed-0"
    arguments = ["--prior", "backward-50", "--format", "md", "--out", str(tmp_path / "r.md")]
    assert main(["report", str(run), *arguments]) == 0
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    predictions = load_predictions(run)
    for name, adjust in (("as trained", False), ("adjusted", True)):
        scores = evaluate(predictions, "backward-50", adjust=adjust, shot_groups=(10, 50), num_resamples=0)
        assert f"| {name} | {100 * scores.accuracy:.1f} | {100 * scores.balanced_accuracy:.1f} |" in text
    assert f"samples are worth {scores.effective_samples:,.0f}" in text


def test_markdown_has_the_tables(runs, tmp_path):
    assert main(["report", str(runs / "ours" / "seed-0"), "--out", str(tmp_path / "r.md")]) == 0
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert text.startswith("# Report on ours/seed-0\n")
    assert "| class | training samples | group |" in text
    assert not (tmp_path / "r_figures").exists()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    blocks = re.split(r"\n\n", text)
    for block in blocks:
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) <= 1
    assert len(rows) > 50


@given(st.integers(0, 1000))
def test_confused_pairs_against_a_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(60, 2, 5, generator=generator)
    targets = torch.randint(5, (60,), generator=generator)
    predictions = Predictions(logits, targets, torch.tensor([9, 8, 3, 2, 1]), torch.tensor([0.0, 0.0]))
    rare = predictions.class_counts < 5
    answers = logits.mean(dim=1).argmax(dim=1).tolist()
    counted = Counter(
        (true, answer) for true, answer in zip(targets.tolist(), answers, strict=True) if true != answer and rare[true]
    )
    found = confused_pairs(predictions, rare, most=100)
    assert {(true, answer): len(rows) for true, answer, rows in found} == counted
    assert [len(rows) for _, _, rows in found] == sorted(counted.values(), reverse=True)
    for true, answer, rows in found:
        assert all(targets[row] == true and answers[row] == answer for row in rows.tolist())


def test_without_few_shot_classes_the_rarest_third_of_the_score_is_looked_at():
    """Four of ten classes, as in the metric of that name."""
    predictions = make(1000, 10)
    predictions = replace(predictions, class_counts=predictions.class_counts + 20)  # at least 25 each
    part = confusions_section(Subject("many", (predictions,), (), (20, 100)), SampleImages())
    assert "the rarest third of the classes" in part.sentences[0]
    assert {row[0] for row in part.exhibits[0].rows} == {"6", "7", "8", "9"}


def test_a_long_table_is_cut_and_says_so():
    table = Table(["a", "b"], [[str(row), "x"] for row in range(1000)])
    text = html_page("long", [Section("all", ["words"], [table])])
    assert "And 700 more rows" in text
    assert markdown_page("long", [Section("all", [], [table])]).count("| x |") == 1000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{runs}/nowhere"], "is neither a run nor a folder with runs"),
        (["{runs}/unfinished/seed-0"], "is a run that is not finished"),
        (["{runs}/ours/seed-0", "{tmp}/other.npz"], "tell different classes apart"),
        (["{runs}/ours/seed-0", "--out", "{tmp}/file/report.html"], "cannot write"),
        (["{tmp}/garbage.npz"], "garbage.npz"),
        (["{tmp}/other.npz", "--out", "."], "is a folder"),
        (["{tmp}/other.npz", "--out", "{tmp}/report.pdf"], "end it with .html or .md"),
        (["{tmp}/other.html", "--out", "{tmp}/other.html"], "is also read, and would be lost"),
        (["{tmp}/other.npz", "--out", "{tmp}/page.html"], "but that is a file"),
        (["{tmp}/other.npz", "--out", "{tmp}/pipe"], "is not an ordinary file"),
        (["{runs}/ours/seed-0", "--prior", "estimate"], "give --validation"),
        (["{runs}/ours/seed-0", "--prior", "{tmp}/prior.csv"], "prior.csv"),
        ([], "required"),
    ],
)
def test_bad_input_is_one_sentence(runs, tmp_path, capsys, no_drawings, arguments, sentence):
    unfinished = runs / "unfinished" / "seed-0"
    unfinished.mkdir(parents=True, exist_ok=True)
    (unfinished / "recipe.toml").write_text((runs / "ours" / "seed-0" / "recipe.toml").read_text())
    save_npz(tmp_path / "other.npz", make(100, 5))
    (tmp_path / "file").write_text("a file, not a folder")
    (tmp_path / "garbage.npz").write_bytes(b"garbage")
    (tmp_path / "other.html").write_text("not predictions, but somebody's")
    (tmp_path / "page_figures").write_text("a file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "prior.csv").write_text("0,1\nnobody,2\n")
    capsys.readouterr()
    texts = [argument.format(runs=runs, tmp=tmp_path) for argument in arguments]
    out = [] if "--out" in texts else ["--out", str(tmp_path / "report.html")]
    assert main(["report", *texts, *out]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "report.html").exists()
    assert not list(tmp_path.rglob(".*.part"))
