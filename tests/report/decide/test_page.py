"""The controls of "Decide" in a browser: their numbers are those of the deployment room for what the page holds."""

import math
from dataclasses import replace

import pytest
import torch

from balpoe.deployment.abstaining import abstained, risk_coverage_by_group
from balpoe.deployment.decisions import decide
from balpoe.deployment.posteriors import Posteriors, label_weights
from balpoe.deployment.taxonomy import Taxonomy, cifar100_taxonomy
from balpoe.evaluation.deployment_prior import target_prior
from balpoe.evaluation.evaluate import evaluate
from balpoe.report.decide.page import decide_assets, decide_controls
from balpoe.report.decide.sets import set_scores
from balpoe.report.decide.unknown import unknown_part
from balpoe.report.explorer.pack import explorer
from explorer_pages import page_holds, page_of
from made_predictions import HOSTILE, make


class Decide:
    """The controls of an opened page."""

    def __init__(self, opened, predictions, sets=(), taxonomy=None, unknown=None, **context):
        self.made = explorer(predictions)
        more = decide_controls(sets, taxonomy, unknown)
        self.opened = opened(page_of(self.made, more=more, assets=decide_assets()), **context)
        self.page = self.opened.page
        self.opened.wait(lambda: self.page.evaluate("window.balpoeDecide.moves") > 0)

    def set(self, name, value):
        """Set a control as a hand does, and wait until the numbers have followed."""
        change = """([name, value]) => {
            const control = document.querySelector(`[data-control="${name}"]`);
            control.value = value;
            control.dispatchEvent(new Event("input"));
        }"""
        self.settle(lambda: self.page.evaluate(change, [name, str(value)]))

    def settle(self, action):
        moves = self.page.evaluate("window.balpoeDecide.moves")
        action()
        self.opened.wait(lambda: self.page.evaluate("window.balpoeDecide.moves") > moves)

    def result(self, name):
        return self.page.evaluate(f"window.balpoeDecide.result.{name}")

    def cells(self, table):
        rows = self.page.locator(f'[data-table="{table}"] tbody tr').all()
        return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}


def agree(page, held, prior):
    """All numbers that follow a prior are Python's."""
    page.set("confidence", 55)
    curves = risk_coverage_by_group(held, target_prior=prior)
    rows = abstained(held, decide(held, abstain_cost=0.45, target_prior=prior), target_prior=prior)
    found = page.result("abstain.groups")
    assert [group["name"] for group in found] == [row.name for row in rows]
    for group, row in zip(found, rows, strict=True):
        assert group["coverage"] == pytest.approx(1 - row.abstained)
        assert group["risk"] == pytest.approx(row.error)
        assert group["area"] == pytest.approx(curves[row.name].area, abs=1e-6)
        shown = [float(cell) for cell in page.cells("abstain")[row.name]]
        exact = [row.abstained, row.error, float(curves[row.name].risk[-1]), curves[row.name].area]
        assert shown == pytest.approx([100 * value for value in exact], abs=0.051)
    weights = label_weights(held, prior)
    page.set("class", 3)
    for step, weight in ((0, 1), (10, 10), (20, 100)):
        page.set("weight", step)
        costs = torch.ones(held.num_classes)
        costs[3] = weight
        answers = decide(held, costs=costs, target_prior=prior)
        right, named, own = answers == held.targets, answers == 3, held.targets == 3
        after = page.result("cost.after")
        assert after["recall"] == pytest.approx(float(right[own].double().mean()))
        assert after["precision"] == pytest.approx(float(weights[right & named].sum() / weights[named].sum()))
        assert after["accuracy"] == pytest.approx(float(weights[right].sum() / weights.sum()))
        per_class = torch.stack([right[held.targets == label].double().mean() for label in range(held.num_classes)])
        assert after["balanced"] == pytest.approx(float(per_class.mean()))
        assert (after["hits"], after["taken"]) == (int((named & own).sum()), int((named & ~own).sum()))


def agree_tree(page, taxonomy, held, prior):
    page.set("level", 80)
    ((_, probabilities),) = Posteriors(held, prior).probabilities()
    weights = label_weights(held, prior)
    exact = taxonomy.scores(probabilities, held.targets, weights)
    deepest = taxonomy.decide(held, 0.8, target_prior=prior).scores(held.targets, weights)
    levels = page.result("tree.levels")
    for level, score in zip(levels, exact, strict=False):
        assert level["accuracy"] == pytest.approx(score.accuracy)
    for level, score in zip(levels, deepest, strict=True):
        assert level["name"] == score.level
        assert level["share"] == pytest.approx(score.share)
        right = math.nan if score.accuracy is None else score.accuracy
        assert level["right"] == pytest.approx(right, nan_ok=True)


@pytest.mark.parametrize("classes", [10, 100])
def test_the_numbers_are_those_of_the_deployment_room(opened, classes):
    predictions = make(2000, classes)
    rows = [(str(label), "" if label == 4 else f"pair {label // 2}", f"side {label % 2}") for label in range(classes)]
    rows = [(name, pair and f"{pair}, {side}", side) for name, pair, side in rows]
    taxonomy = Taxonomy.from_rows(rows, levels=("class", "pair", "side"))
    page = Decide(opened, predictions, taxonomy=taxonomy)
    held = page_holds(page.made, predictions)
    assert page.page.locator(".decide-prior").inner_text().startswith("forward-10")
    prior = target_prior("forward-10", predictions)
    agree(page, held, prior)
    agree_tree(page, taxonomy, held, prior)
    page.settle(lambda: page.page.get_by_role("button", name="Uniform").click())
    prior = target_prior("uniform", predictions)
    agree(page, held, prior)
    agree_tree(page, taxonomy, held, prior)
    accuracy = evaluate(held, "uniform", num_resamples=0).accuracy
    page.set("weight", 0)
    assert page.result("cost.after.accuracy") == pytest.approx(accuracy)


def test_sets_are_as_python_counted_them(opened):
    predictions = make(1200, 10)
    chosen = torch.arange(1200) < 400
    scores = set_scores(predictions.subset(chosen), predictions.subset(~chosen), (20, 100), (0.05, 0.1, 0.2))
    page = Decide(opened, predictions.subset(~chosen), scores)
    assert page.result("sets.alpha") == 0.1
    for each in scores:
        page.set("method", each.method)
        page.set("alpha", (0.05, 0.1, 0.2).index(each.alpha))
        assert (page.result("sets.method"), page.result("sets.alpha")) == (each.method, each.alpha)
        cells = page.cells("sets")
        for name, row in (("all alike", "all, each class alike"), ("few", "few-shot")):
            group = each.groups[name]
            low, high = (f"{100 * end:.1f}" for end in group.interval)
            assert cells[row] == [f"{100 * group.coverage:.1f}", f"{low} to {high}", f"{group.size:.2f}"]
        assert page.page.locator(".decide-promise").inner_text() == each.promise
        assert f"Promised: {100 - 100 * each.alpha:g} %" in page.page.locator('[data-setting="alpha"]').inner_text()


def test_unknown_is_as_python_counted_it_and_follows_the_keys(opened):
    predictions = make(1200, 10)
    held = torch.arange(1200) < 400
    part = unknown_part(predictions.subset(held & (predictions.targets != 9)), predictions.subset(~held), (20, 100))
    page = Decide(opened, predictions.subset(~held), unknown=part)
    slider = page.page.locator('[data-control="keep"]')
    assert page.page.evaluate("window.balpoeUnknown.keep") == 0.95
    slider.press("Home")
    for each in part.scores:
        assert page.page.evaluate("window.balpoeUnknown.keep") == each.keep
        assert f"Keep {100 * each.keep:g} %" in slider.get_attribute("aria-valuetext")
        cells = page.cells("unknown")
        assert list(cells) == ["all, class mix of the held-out samples", "many-shot", "medium-shot", "few-shot"]
        for row, name in zip(cells.values(), each.groups, strict=True):
            assert row == ["-" if share is None else f"{100 * share:.1f}" for share in each.groups[name]]
        line = page.page.locator(".unknown-threshold").get_attribute("d")
        assert float(line[1:].split()[0]) == pytest.approx(44 + 300 * each.threshold, abs=0.06)
        slider.press("ArrowRight")
    assert "No held-out sample of '9' set the threshold" in page.page.locator(".unknown-notes").inner_text()
    assert page.page.locator(".unknown-right, .unknown-wrong").count() == 4  # two lines, and what they are
    page.settle(lambda: page.page.get_by_role("button", name="Uniform").click())  # a prior changes nothing here
    assert page.page.evaluate("window.balpoeUnknown.keep") == 0.99


def test_names_in_notes_of_unknown_are_text(opened):
    predictions = replace(make(600, 5), class_names=HOSTILE)
    part = unknown_part(predictions.subset(predictions.targets != 1), predictions, (20, 100))
    page = Decide(opened, predictions, unknown=part)
    assert "<img src=x" in page.page.locator(".unknown-notes").inner_text()
    assert page.page.evaluate("window.broken") is None


def test_what_is_not_there_is_left_out(opened):
    page = Decide(opened, make(200, 5))
    assert page.page.locator('[data-control="alpha"], [data-control="level"], [data-control="keep"]').count() == 0
    assert page.page.locator('[data-control="confidence"]').is_visible()


def test_an_approximate_page_is_near(opened, monkeypatch):
    """Of 100 classes it holds the 20 most probable, and how the rest is spread."""
    predictions = replace(make(2000, 100), class_names=cifar100_taxonomy().class_names)
    monkeypatch.setattr("balpoe.report.explorer.pack.MOST_VALUES", 1000)
    taxonomy = cifar100_taxonomy()
    page = Decide(opened, predictions, taxonomy=taxonomy)
    assert page.made.approximate
    prior = target_prior("forward-10", predictions)
    page.set("confidence", 40)
    rows = abstained(predictions, decide(predictions, abstain_cost=0.6, target_prior=prior), target_prior=prior)
    assert page.result("abstain.groups")[0]["risk"] == pytest.approx(rows[0].error, abs=0.02)
    for group, row in zip(page.result("abstain.groups"), rows, strict=True):
        assert group["coverage"] == pytest.approx(1 - row.abstained, abs=0.02)
    page.set("level", 50)
    exact = taxonomy.decide(predictions, 0.5, target_prior=prior).scores(
        predictions.targets, label_weights(predictions, prior)
    )
    for level, score in zip(page.result("tree.levels"), exact, strict=True):
        assert level["share"] == pytest.approx(score.share, abs=0.005)


def test_a_prior_that_cannot_be_measured_and_one_that_excludes_a_class(opened):
    predictions = make(500, 5)
    page = Decide(opened, predictions.subset(predictions.targets != 3))
    assert page.page.locator(".decide-live").is_visible()
    page.opened.move(lambda: page.opened.paste("1\n1\n1\n1\n1"))
    assert page.page.locator(".decide-live").is_hidden()
    assert "nothing can be said" in page.page.locator(".decide .explorer-problem").inner_text()
    page.settle(lambda: page.opened.paste("1\n1\n0\n0\n1"))
    assert page.page.locator(".decide-live").is_visible()
    page.set("class", 2)
    assert "does not occur under this prior" in page.page.locator('[data-summary="cost"]').inner_text()


def test_nothing_is_answered(opened):
    page = Decide(opened, make(300, 6, separation=0.01, noise=0.01))
    page.set("confidence", 99)
    assert page.page.locator('[data-summary="abstain"]').inner_text() == "Nothing is answered."
    assert page.cells("abstain")["all"][:2] == ["100.0", "-"]


def test_hostile_names_are_text(opened):
    page = Decide(opened, replace(make(200, 5), class_names=HOSTILE))
    options = page.page.locator('[data-control="class"] option').all_text_contents()
    assert options == list(HOSTILE)
    page.set("class", 1)
    assert "<img src=x" in page.page.locator('[data-setting="weight"]').inner_text()
    assert page.page.evaluate("window.broken") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(opened, scheme):
    predictions = make(600, 10)
    taxonomy = Taxonomy.from_rows(
        [(str(label), f"{label % 2}{'long' * 20}") for label in range(10)], ("class", "w" * 40)
    )
    scores = set_scores(predictions, predictions, (20, 100), (0.1,))
    part, phone = unknown_part(predictions, predictions, (20, 100)), {"width": 390, "height": 740}
    page = Decide(opened, predictions, scores, taxonomy, part, color_scheme=scheme, viewport=phone)
    assert page.page.locator('[data-table="unknown"]').is_visible()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    page.page.emulate_media(media="print")
    assert page.page.locator('[data-control="confidence"]').is_hidden()
    assert page.page.locator('[data-table="abstain"]').is_visible()


def test_the_page_hardly_grows():
    predictions = make(1000, 100)
    scores = set_scores(predictions, predictions, (20, 100))
    part = unknown_part(predictions, predictions, (20, 100))
    assert len(decide_controls(scores, cifar100_taxonomy(), part)) + sum(map(len, decide_assets())) < 48_000


def test_without_javascript_a_sentence(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page_of(explorer(make(100, 5)), more=decide_controls(), assets=decide_assets()), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert "The tables below do without it" in page.locator(".decide").inner_text()
    assert page.locator(".decide input").first.is_hidden()
    context.close()
