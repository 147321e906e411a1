"""The controls of "Decide" in a browser: their numbers are those of the deployment room for what the page holds."""

import base64
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from balpoe.deployment.abstaining import abstained, risk_coverage_by_group
from balpoe.deployment.conformal import ConformalSets
from balpoe.deployment.decisions import decide
from balpoe.deployment.posteriors import Posteriors, label_weights
from balpoe.deployment.taxonomy import Taxonomy, cifar100_taxonomy
from balpoe.evaluation.deployment_prior import target_prior
from balpoe.evaluation.evaluate import evaluate
from balpoe.method.intervals import wilson_interval
from balpoe.report.decide.page import decide_assets, decide_controls
from balpoe.report.decide.set_rows import set_rows
from balpoe.report.decide.unknown import unknown_part
from balpoe.report.explorer.pack import explorer
from explorer_pages import page_holds, page_of, wait_until
from made_predictions import HOSTILE, make


class Decide:
    """The controls of an opened page."""

    def __init__(self, opened, predictions, sets=None, taxonomy=None, unknown=None, **context):
        self.made = explorer(predictions)
        more = decide_controls(sets, taxonomy, unknown)
        self.opened = opened(page_of(self.made, more=more, assets=decide_assets()), **context)
        self.page = self.opened.page
        wait_until(lambda: self.page.evaluate("window.balpoeDecide.moves") > 0)

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
        wait_until(lambda: self.page.evaluate("window.balpoeDecide.moves") > moves)

    def result(self, name):
        return self.page.evaluate(f"window.balpoeDecide.result.{name}")

    def cells(self, table):
        rows = "all => all.map(row => [...row.cells].map(each => each.innerText))"  # in one question to the browser
        found = self.page.locator(f'[data-table="{table}"] tbody tr').evaluate_all(rows)
        return {name: texts for name, *texts in found}


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


def decoded(raw, like):
    """Rows of sets as a page holds them, one expert with the prior of the ensemble."""
    codes = np.frombuffer(base64.b64decode(raw["codes"]), np.uint8 if raw["levels"] == 255 else np.uint16)
    targets = torch.from_numpy(np.frombuffer(base64.b64decode(raw["targets"]), np.uint16).astype(np.int64))
    logits = torch.from_numpy(-raw["deepest"] * (codes / raw["levels"]) ** 2).view(len(targets), 1, -1)
    lambdas = like.lambdas.mean(dim=0, keepdim=True)
    return replace(like, expert_logits=logits, targets=targets, lambdas=lambdas, calibration=None)


def agree_sets(page, validation, test, prior, within=1e-6):
    """Coverage and sizes of the page are those of the sets that Python fits for that prior."""
    weights = label_weights(test, prior)
    alike = label_weights(test, (prior > 0).double() / (prior > 0).sum())
    for method in ("marginal", "per-class"):
        page.set("method", method)
        for place, alpha in enumerate((0.05, 0.1, 0.3)):
            page.set("alpha", place)
            sets = ConformalSets.fit(validation, alpha=alpha, method=method, target_prior=prior)
            found = sets.predict(test)
            held, sizes = found[torch.arange(len(test)), test.targets].double(), found.sum(dim=1).double()
            groups = {each["name"]: each for each in page.result("sets.groups")}
            for name, each in (("all", weights), ("alike", alike)):
                assert groups[name]["coverage"] == pytest.approx(float(each @ held / each.sum()), abs=within)
                assert groups[name]["size"] == pytest.approx(float(each @ sizes / each.sum()), abs=within, rel=within)
            effective = weights.sum() ** 2 / weights.square().sum()
            low, high = wilson_interval(groups["all"]["coverage"] * effective, effective).tolist()
            assert groups["all"]["interval"] == pytest.approx([low, high], abs=1e-6)
            cells = page.cells("sets")["all, under this prior"]
            assert cells[0] == f"{100 * groups['all']['coverage']:.1f}"
            assert cells[1] == f"{100 * low:.1f} to {100 * high:.1f}"
            assert cells[2] == f"{groups['all']['size']:.2f}"
            if not sets.always_included:
                least = re.search(r"at least (\S+) %\.", sets.guarantee)
                promise = page.page.locator(".decide-promise").inner_text()
                shown = re.search(r"at least (\S+) %\.", promise)
                assert promise.partition("Whatever")[0] == sets.guarantee.partition("Whatever")[0]
                assert (shown is None) == (least is None)
                assert shown is None or float(shown[1]) == pytest.approx(float(least[1]), abs=0.051)


@pytest.mark.parametrize("classes", [4, 25])
def test_sets_follow_the_prior_as_python_fits_them(opened, classes):
    predictions = make(2000, classes)
    share = torch.where(predictions.targets < classes // 2, 0.6, 0.15)  # some classes have few
    chosen = torch.rand(2000, generator=torch.Generator().manual_seed(0)) < share
    validation, test = predictions.subset(chosen), predictions.subset(~chosen)
    rows = set_rows(validation, test, (0.001, 0.05, 0.1, 0.3))
    assert rows["alphas"] == [0.05, 0.1, 0.3]
    page = Decide(opened, test, rows)
    held = [decoded(rows[name], like) for name, like in (("validation", validation), ("test", test))]
    assert page.result("sets.alpha") == 0.1
    agree_sets(page, *held, target_prior("forward-10", predictions))
    agree_sets(page, validation, test, target_prior("forward-10", predictions), within=0.01)  # before it was packed
    page.settle(lambda: page.page.get_by_role("button", name="Uniform").click())
    agree_sets(page, *held, target_prior("uniform", predictions))
    own = torch.arange(1, classes + 1).double()
    own[0] = 0
    page.settle(lambda: page.opened.paste("\n".join(str(int(weight)) for weight in own)))
    agree_sets(page, *held, own / own.sum())
    setting = page.page.locator('[data-setting="alpha"]').inner_text()
    assert setting == "Wanted: 70 % of the sets hold the class (alpha 0.3)."


def test_the_arrow_keys_move_sets_and_their_prior(opened):
    predictions = make(800, 10)
    page = Decide(opened, predictions, set_rows(predictions, predictions))
    before = page.result("sets")
    page.page.locator('[data-control="alpha"]').focus()
    page.settle(lambda: page.page.keyboard.press("ArrowRight"))
    after = page.result("sets")
    assert after["alpha"] > before["alpha"]
    assert after["groups"][0]["size"] < before["groups"][0]["size"]
    page.page.get_by_role("button", name="Change it above").click()
    page.settle(lambda: page.page.keyboard.press("End"))
    assert page.page.locator(".decide-prior").inner_text().startswith("backward-100")
    assert page.result("sets")["limit"] != after["limit"]
    text = page.page.locator('[data-summary="sets"]').inner_text()
    assert f"{100 * page.result('sets')['groups'][0]['coverage']:.1f} % of the test samples\u2019 sets" in text


def test_sets_of_many_classes_are_near(opened, monkeypatch):
    """The page holds 80 of 100 classes of each test sample, the own one among them, and how the rest is spread."""
    predictions = make(3000, 100)
    validation, test = predictions.subset(torch.arange(1500)), predictions.subset(torch.arange(1500, 3000))
    monkeypatch.setattr("balpoe.report.decide.set_rows.WHOLE_VALUES", 1000)
    rows = set_rows(validation, test, (0.05, 0.1, 0.3))
    assert (rows["part"], rows["test"]["kept"]) == (True, 80)
    page = Decide(opened, test, rows)
    assert "holds a part of the samples" in page.page.locator(".decide").inner_text()
    agree_sets(page, validation, test, target_prior("forward-10", predictions), within=0.02)


def test_a_class_without_held_out_samples_is_in_every_set(opened):
    predictions = replace(make(900, 5), class_names=HOSTILE)
    chosen = torch.arange(900) < 400
    rows = set_rows(predictions.subset(chosen & (predictions.targets != 1)), predictions.subset(~chosen))
    page = Decide(opened, predictions.subset(~chosen), rows)
    assert page.result("sets.always") == [1]
    promise = page.page.locator(".decide-promise").inner_text()
    assert "In every set, as too few held-out samples say when to leave it out" in promise
    assert HOSTILE[1] in promise
    assert page.page.evaluate("window.broken") is None


def test_a_promise_that_is_approximate_is_called_so(opened):
    predictions = make(600, 5)
    page = Decide(opened, predictions, set_rows(predictions, predictions, cross_fitted=True))
    promise = page.page.locator(".decide-promise").inner_text()
    assert promise.startswith("Approximate: about 90 %")
    assert "Whatever those shares" not in promise
    assert set_rows(predictions.subset(torch.arange(2)), predictions) is None


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
    part, phone = unknown_part(predictions, predictions, (20, 100)), {"width": 390, "height": 740}
    sets = set_rows(predictions, predictions)
    page = Decide(opened, predictions, sets, taxonomy, part, color_scheme=scheme, viewport=phone)
    assert page.page.locator('[data-table="unknown"]').is_visible()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    page.page.emulate_media(media="print")
    assert page.page.locator('[data-control="confidence"]').is_hidden()
    assert page.page.locator('[data-table="abstain"]').is_visible()


def test_the_page_hardly_grows():
    predictions = make(6000, 100)
    part = unknown_part(predictions, predictions, (20, 100))
    assert len(decide_controls(None, cifar100_taxonomy(), part)) + sum(map(len, decide_assets())) < 53_000
    sets = set_rows(predictions.subset(torch.arange(500)), predictions)
    assert len(decide_controls(sets)) < 850_000  # 5,000 test samples a byte a class, 500 held-out ones two
    many = make(6000, 300)
    assert len(decide_controls(set_rows(many, many))) < 1_350_000


def test_without_javascript_a_sentence(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page_of(explorer(make(100, 5)), more=decide_controls(), assets=decide_assets()), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert "The tables below do without it" in page.locator(".decide").inner_text()
    assert page.locator(".decide input").first.is_hidden()
    context.close()
