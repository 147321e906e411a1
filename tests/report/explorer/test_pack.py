"""The prior explorer, without a browser and in one: what it shows is what `evaluate` computes."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import stdtrit

from balpoe.errors import UserError
from balpoe.evaluation.deployment_prior import target_prior
from balpoe.evaluation.evaluate import evaluate
from balpoe.evaluation.predictions import Predictions
from balpoe.method.intervals import effective_counts, mean_difference_interval, mean_interval
from balpoe.report.explorer.pack import MEASURED, explorer, explorer_assets
from explorer_pages import METRICS, data_of, page_holds, page_of
from made_predictions import HOSTILE, make


def expected(evaluation):
    return {name: getattr(evaluation, name) for name in METRICS}


def agree(page, predictions, held, prior):
    """The page's numbers are `evaluate`'s: to the last digit for what the page holds, and near for the predictions."""
    result, shown = page.state("result"), page.shown()
    for kind, adjust in (("adjusted", True), ("asTrained", False)):
        exact = expected(evaluate(predictions, prior, adjust=adjust, num_resamples=0))
        for name, value in expected(evaluate(held, prior, adjust=adjust, num_resamples=0)).items():
            if value is None:
                assert shown[kind][name] == "-"
                continue
            assert result[kind][name] == pytest.approx(value, abs=1e-9), (kind, name)
            assert abs(float(shown[kind][name]) - 100 * result[kind][name]) <= 0.05 + 1e-9
            # One sample that rounding carries into a bin of few changes the largest gap of all bins.
            assert name == "mce" or abs(100 * (result[kind][name] - exact[name])) <= 0.3, (kind, name)
    effective = evaluate(predictions, prior, num_resamples=0).effective_samples
    assert result["effective"] == pytest.approx(effective, rel=1e-6)
    assert f"worth {round(effective):,} equally" in page.text(".explorer-effective")


# ---- without a browser ----


def test_the_data_are_held_whole_and_near():
    predictions = make()
    made = explorer(predictions)
    assert (made.approximate, made.rows) == (False, 3000)
    assert made.error <= 0.3
    assert len(data_of(made)["codes"]) == 2 * 4 * 3000 * 20 / 3  # a small set in 16 bits
    assert "Accuracy agrees with <code>balpoe evaluate</code>" in made.html


@pytest.mark.parametrize("lambdas", [(1, 0, -1), (1,), (0.5, -1)])
@pytest.mark.parametrize("bits", [16, 8])
def test_the_stated_error_is_that_of_the_pages_arithmetic(monkeypatch, lambdas, bits):
    """The codes of a page, in 16 or 8 bits, decoded here by the formula, against `evaluate`."""
    predictions = make(3000, lambdas=lambdas)
    monkeypatch.setattr("balpoe.report.explorer.pack.FINE_VALUES", 60_000 if bits == 16 else 59_999)
    made = explorer(predictions)
    held = page_holds(made, predictions)
    worst = 0.0
    for word in MEASURED:
        prior = target_prior(word, predictions)
        for adjust in (True, False):
            page, exact = (evaluate(each, prior, adjust=adjust, num_resamples=0) for each in (held, predictions))
            worst = max(worst, 100 * abs(page.accuracy - exact.accuracy))
    assert made.error == pytest.approx(worst, abs=1e-9)
    assert made.error <= 0.3


@pytest.fixture(scope="module")
def of_cifar():
    return explorer(make(10_000, 100))


def test_the_size_of_a_cifar_page(of_cifar):
    made = of_cifar
    assert not made.approximate
    assert len(made.html.encode()) < 1_600_000
    assert len("".join(explorer_assets())) < 40_000


def test_a_large_table_is_read_in_blocks(tmp_path, monkeypatch):
    predictions = make(3000, 1000, noise=0.1)
    predictions.save(tmp_path)
    mapped = Predictions.load(tmp_path)
    monkeypatch.setattr("balpoe.evaluation.predictions.BLOCK_VALUES", 300_000)
    largest = []

    def watched(expert_logits, _):
        largest.append(len(expert_logits))
        return expert_logits.mean(dim=1)

    monkeypatch.setattr("balpoe.evaluation.predictions.product_of_experts", watched)
    made = explorer(mapped)
    assert max(largest) == 100
    assert sum(largest) == 2 * 3000  # packed, and then compared with
    assert made.approximate
    assert made.rows == 3000
    assert "<strong>Approximate:</strong> computed from 3,000 of 3,000 test samples and the 20 most" in made.html
    assert len(made.html) < 500_000


def test_a_part_of_many_samples_has_all_classes(monkeypatch):
    monkeypatch.setattr("balpoe.report.explorer.pack.MOST_SAMPLES", 50)
    monkeypatch.setattr("balpoe.report.explorer.pack.MOST_VALUES", 100)
    targets = torch.tensor([0] * 300 + [1] * 30 + [2] * 3)
    logits = torch.nn.functional.one_hot(targets, 3)[:, None] * 4.0
    made = explorer(Predictions(logits, targets, torch.tensor([90, 10, 1]), torch.tensor([0.0])))
    assert (made.rows, made.error) == (50, pytest.approx(0))
    kept = np.frombuffer(base64.b64decode(data_of(made)["targets"]), np.uint16)
    assert np.bincount(kept).tolist() == [24, 23, 3]


def test_class_names_cannot_leave_the_data():
    made = explorer(replace(make(100, 5), class_names=HOSTILE))
    assert made.html.count("</script>") == 1
    assert "<img" not in made.html
    assert made.html.isascii()


def test_mistakes_have_a_sentence():
    predictions = make(40, 4)
    with pytest.raises(UserError, match="no test sample to explore"):
        explorer(predictions.subset(torch.zeros(0, dtype=torch.long)))
    with pytest.raises(UserError, match="shot groups want thresholds"):
        explorer(predictions, shot_groups=(100, 20))
    predictions.expert_logits[7, 1, 2] = torch.nan
    with pytest.raises(UserError, match="logits of sample 7 are not numbers"):
        explorer(predictions)


def test_a_class_without_test_samples_and_an_excluded_one():
    logits = torch.tensor([[[3.0, 0.0, -torch.inf]], [[0.0, 2.0, -torch.inf]]])
    predictions = Predictions(logits, torch.tensor([0, 1]), torch.tensor([50, 10, 5]), torch.tensor([0.0]))
    assert explorer(predictions).error == pytest.approx(0)


# ---- in a browser ----


def test_the_numbers_are_those_of_evaluate(opened):
    predictions = make(3000, 20)
    made = explorer(predictions)
    page, held = opened(page_of(made)), page_holds(made, predictions)
    assert page.state("result.prior") == "forward-10"
    agree(page, predictions, held, target_prior("forward-10", predictions))
    for word in ("forward-50", "forward-2", "uniform", "backward-25", "backward-100"):
        page.slide_to(word)
        agree(page, predictions, held, target_prior(word, predictions))
        assert f"Under {word}, accuracy is {page.shown()['adjusted']['accuracy']} % adjusted" in page.text(
            ".explorer-summary"
        )
    page.move(lambda: page.page.get_by_role("button", name="Training prior").click())
    agree(page, predictions, held, target_prior("train", predictions))
    page.move(lambda: page.page.get_by_role("button", name="Uniform").click())
    agree(page, predictions, held, target_prior("uniform", predictions))


def test_no_verdict_inside_the_noise(opened):
    """What adjusting brings has the interval of method/intervals.py, where all classes weigh the same, and no more."""
    few, many = make(60, 20, lambdas=(0.2,), separation=0.5), make(3000, 20, lambdas=(1,))
    for predictions, words in ((few, "which may be random"), (many, "adjusting gains")):
        page = opened(page_of(explorer(predictions)))
        page.slide_to("uniform")
        right = predictions.answers([target_prior("uniform", predictions)]) == predictions.targets
        low, high = mean_difference_interval(right[1].double() - right[0].double(), predictions.targets)
        assert page.state("result.gainError") == pytest.approx((high - low) / 2, rel=1e-4)
        low, high = mean_interval(right[1].double(), predictions.targets)
        assert page.state("result.error") == pytest.approx((high - low) / 2, rel=1e-4)
        assert f"± {50 * (high - low):.1f} points" in page.text(".explorer-effective")
        assert words in page.text(".explorer-summary")


def test_groups_of_samples_are_worth_less_than_so_many_samples(opened):
    predictions = make(600, 6, lambdas=(1,))
    tracks = replace(predictions, groups=torch.arange(600) // 60 * 6 + predictions.targets)  # each of one class
    assert len(tracks.groups.unique()) == 60
    page = opened(page_of(explorer(tracks)))
    page.slide_to("uniform")
    right = tracks.answers([target_prior("uniform", tracks)])[1] == tracks.targets
    shares = torch.bincount(tracks.targets, right.double()) / torch.bincount(tracks.targets)
    worth = effective_counts(tracks.targets, 6, tracks.groups)
    smooth = (worth * shares + 1) / (worth + 2)
    spread = smooth * (1 - smooth) / worth / 36
    freedom = float(spread.sum() ** 2 / (spread**2 / (worth + 1)).sum())
    assert page.state("result.error") == pytest.approx(stdtrit(freedom, 0.975) * float(spread.sum()) ** 0.5, rel=1e-3)


def test_logits_that_are_no_posterior_are_shown_as_trained_only(opened):
    made = make(600, 6)
    free = Predictions(made.expert_logits, made.targets, made.class_counts)
    page = opened(page_of(explorer(free)))
    (sentence,) = free.caveats
    for word in ("backward-25", "uniform"):
        page.slide_to(word)
        exact = f"{100 * evaluate(free, word, num_resamples=0).accuracy:.1f}"
        assert page.page.locator('[data-metric="accuracy"] td').all_inner_texts() == [exact]
        assert page.text(".explorer-summary") == f"Under {word}, accuracy is {exact} %."
        assert page.page.locator(".explorer svg").count() == 1
        page.page.locator("figure details").evaluate("each => { each.open = true }")
        text = page.text(".explorer-body")
        assert sentence in text
        assert not re.search("adjust|change", text.replace(sentence, ""), re.IGNORECASE)
    assert {row.count("<td") for row in page.page.locator(".explorer-bins tbody").inner_html().split("</tr>")[:-1]} == {
        3
    }
    assert page.page.get_by_role("button", name="Uniform").get_attribute("aria-pressed") == "true"


def test_every_ratio_of_the_field_is_on_the_slider(opened):
    page = opened(page_of(explorer(make(200, 5))))
    page.page.locator("input[type=range]").focus()
    page.move(lambda: page.page.keyboard.press("Home"))
    steps = (page.move(lambda: page.page.keyboard.press("ArrowRight")) for _ in range(40))
    reached = [page.state("result.prior"), *(step.state("result.prior") for step in steps)]
    assert {f"{side}-{ratio}" for side in ("forward", "backward") for ratio in (2, 5, 10, 25, 50, 100)} < set(reached)
    assert reached[20] == "uniform"
    assert page.slider_words() == (
        "Backward-100: the rarest training class is 100 times as frequent as the most common"
    )


def test_weights_of_ones_own(opened):
    names = ("ant", "bee", "cat", "dog", "cow, the")
    predictions = replace(make(2000, 5), class_names=names)
    made = explorer(predictions)
    page, held = opened(page_of(made)), page_holds(made, predictions)
    weights = (5, 1, 0, 2.5, 1e-1)
    lines = [f"{name}, {weight}" for name, weight in zip(names, weights, strict=True)]
    quoted = ["class,weight", *lines[:4], '"cow, the",0.1']
    texts = ["\n".join(reversed(lines)), "\n".join(line.replace(", ", "\t") for line in lines[:4]) + "\ncow, the\t.1"]
    texts += ["\r\n".join(map(str, weights)) + "\n\n", "\n".join(quoted)]
    for text in texts:
        page.move(lambda: page.page.get_by_role("button", name="Uniform").click())
        page.move(lambda text=text: page.paste(text))
        assert page.text(".explorer-mistake") == ""
        assert page.text(".explorer-prior") == "Your own weights"
        agree(page, predictions, held, target_prior(weights, predictions))
    before = page.state("result.adjusted.accuracy")
    page.page.get_by_role("button", name="Write the current ones here").click()
    page.move(lambda: page.page.get_by_role("button", name="Use these weights").click())
    assert page.state("result.adjusted.accuracy") == pytest.approx(before, abs=1e-5)


def test_mistakes_in_the_box(opened):
    predictions = replace(make(200, 5), class_names=("ant", "bee", "cat", "dog", "<b>elk"))
    page = opened(page_of(explorer(predictions)))
    moves = page.state("moves")
    good = "ant,1\nbee,1\ncat,1\ndog,1\n<b>elk,"
    assert page.mistake("") == "The box is empty; give a weight for each class."
    assert page.mistake("1\n2") == "There are 2 numbers for 5 classes; give one for each, in order."
    assert page.mistake("ant,1\nbea,2") == "Line 2: no class is called “bea”."
    assert page.mistake("ant,1\nbee") == "Line 2 has no comma or tab; write a name, a comma and a weight."
    assert page.mistake("ant,1\nant,2") == "Line 2: the class “ant” has a weight already."
    assert page.mistake("ant,1\ndog,2") == "No weight for “bee”, “cat”, “<b>elk”; give 0 to leave a class out."
    assert page.mistake("ant,1") == "No weight for “bee”, “cat”, “dog” and 1 more; give 0 to leave a class out."
    assert page.mistake(good + "-1") == "Line 5: the weight -1 is negative; give 0 or more."
    assert page.mistake(good + "0x10") == "Line 5: “0x10” is not a number; write a weight such as 0.25."
    assert page.mistake(good + "1e999") == "Line 5: the weight 1e999 is too large; weights need not sum to 1."
    assert page.mistake("alert(1)\n" * 5).startswith("Line 1: “alert(1)” is not a number")
    assert page.mistake("0\n" * 5) == "All weights are 0; give at least one class more."
    assert page.state("moves") == moves
    page.move(lambda: page.paste("1e308\n" * 5))
    assert page.text(".explorer-mistake") == ""
    assert page.shown()["adjusted"]["accuracy"] != "-"


def test_classes_of_the_same_name_want_numbers(opened):
    page = opened(page_of(explorer(replace(make(100, 3), class_names=("a", "a", "b")))))
    assert page.mistake("a,1\na,2\nb,3") == "Several classes are called “a”; give one number for each class, in order."


def test_hostile_names_are_text(opened):
    page = opened(page_of(explorer(replace(make(1000, 5, separation=0.3), class_names=HOSTILE))))
    page.slide_to("backward-100")
    shown = page.page.locator(".explorer-changes tbody bdi").all_text_contents()
    assert sorted(shown) == sorted(HOSTILE)
    page.page.locator(".explorer-own summary").click()
    page.page.get_by_role("button", name="Write the current ones here").click()
    assert page.mistake(f"{HOSTILE[1]}, x").startswith("Line 1: “x” is not a number")
    assert page.page.evaluate("window.broken") is None
    assert page.page.locator("img").count() == 0


def test_a_class_without_test_samples(opened):
    predictions = make(2000, 5)
    predictions = predictions.subset(predictions.targets != 3)
    made = explorer(replace(predictions, class_names=("a", "b", "c", "<i>", "e")))
    page, held = opened(page_of(made)), page_holds(made, predictions)
    problem = re.sub("[\u2068\u2069]", "", page.text(".explorer-problem"))
    assert problem == "Without a test sample, and left out here: “<i>”."
    prior = target_prior("forward-10", predictions) * torch.tensor([1, 1, 1, 0, 1])
    agree(page, predictions, held, prior / prior.sum())
    page.move(lambda: page.paste("2\n1\n1\n1\n1"))
    problem = re.sub("[\u2068\u2069]", "", page.text(".explorer-problem"))
    assert problem == "The test set has no sample of “<i>”, so nothing can be said about this prior."
    assert set(page.shown()["adjusted"].values()) == {"-"}
    page.move(lambda: page.paste("2\n1\n1\n0\n1"))
    prior = target_prior((2, 1, 1, 0, 1), predictions)
    agree(page, predictions, held, prior)


def test_an_approximate_page_is_marked_and_near(opened):
    predictions = make(2100, 1000, noise=0.1)
    made = explorer(predictions)
    page = opened(page_of(made))
    assert page.text(".explorer-note").startswith("Approximate: computed from 2,100 of 2,100 test samples")
    for word in ("forward-50", "backward-10"):
        page.slide_to(word)
        evaluation = evaluate(predictions, target_prior(word, predictions), num_resamples=0)
        adjusted = page.state("result.adjusted")
        assert abs(100 * (adjusted["accuracy"] - evaluation.accuracy)) <= made.error + 1e-6
        assert abs(100 * (adjusted["ece"] - evaluation.ece)) <= 1.0
        assert page.state("result.effective") == pytest.approx(evaluation.effective_samples)


def test_two_explorers_share_a_page(opened):
    page = opened(page_of(explorer(make(200, 5)), explorer(make(200, 5, seed=1))))
    summaries = page.page.locator(".explorer-summary").all_inner_texts()
    assert len(set(summaries)) == 2
    page.slide = page.page.locator("input[type=range]").nth(1)
    page.slide.focus()
    page.move(lambda: page.page.keyboard.press("End"))
    assert page.page.locator(".explorer-prior").first.inner_text().startswith("Forward-10")
    assert page.page.locator(".explorer-prior").nth(1).inner_text().startswith("Backward-100")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1100])
def test_it_can_be_seen(opened, scheme, width):
    names = tuple(f"a class with a rather long name, number {label}" for label in range(20))
    made = explorer(replace(make(1000, 20), class_names=names))
    page = opened(page_of(made), color_scheme=scheme, viewport={"width": width, "height": 740})
    page.page.locator(".explorer-own summary").click()
    page.page.locator("figure summary").click()
    assert page.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    picture = Image.open(io.BytesIO(page.page.locator(".explorer").screenshot())).convert("RGB")
    colours = picture.getcolors(maxcolors=1_000_000)
    assert len(colours) > 50
    background = max(colours)[1]
    assert (sum(background) > 600) == (scheme == "light")
    bars = page.page.locator('[data-diagram="adjusted"] rect').count()
    assert bars >= 10
    assert page.page.locator(".explorer-bins tbody tr").count() == 15


def test_in_print_the_numbers_stay(opened):
    page = opened(page_of(explorer(make(200, 5))))
    page.page.emulate_media(media="print")
    assert page.page.locator("input[type=range]").is_hidden()
    assert page.page.locator(".explorer-results").is_visible()


def test_without_javascript_a_sentence(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page_of(explorer(make(200, 5))), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert "needs JavaScript" in page.locator(".explorer").inner_text()
    assert page.locator("input").is_hidden()
    context.close()


MANY_MOVES = """() => new Promise((done) => {
  const slider = document.querySelector("input[type=range]");
  for (let step = 0; step < 8; step++) {
    slider.stepDown();
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  }
  requestAnimationFrame(() => requestAnimationFrame(done));
})"""


def test_of_moves_that_come_at_once_the_last_is_computed(opened, of_cifar):
    """A slider that is dragged tells of more places than are drawn; docs/report.md says how long a move takes."""
    page = opened(page_of(of_cifar))
    before, begin = page.state("moves"), page.page.locator(".explorer-prior").inner_text()
    page.page.evaluate(MANY_MOVES)
    assert page.state("moves") == before + 1
    shown = page.page.locator(".explorer-prior").inner_text()
    assert shown != begin
    assert shown.lower() == page.page.locator("input[type=range]").get_attribute("aria-valuetext").lower()
