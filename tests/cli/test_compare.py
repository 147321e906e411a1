"""balpoe compare: from several methods to a table, a page and a choice; nothing twice, mistakes before trainings."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import balpoe.training.loop
from balpoe.cli.compare_methods import Asked, _jobs
from balpoe.cli.main import main
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.comparison import Comparison
from balpoe.experiments.method_fit import DataFacts
from balpoe.experiments.recipe import Recipe, recipe_toml, updated
from balpoe.experiments.run_folder import Run
from commands import sentence
from images import picture_folder

METHODS = "cross-entropy,logit-adjustment-after,ldam-drw,balpoe"
QUICK = ["compare", "digits-lt", "--epochs", "2", "--width", "8", "--threads", "1", "--methods", METHODS]
FOLDER = Path("runs/digits-lt-compare-width-8-epochs-2")


@pytest.fixture(autouse=True)
def _undrawn(no_drawings):
    """All but the page of `place`, which is made once and whole, do without drawings and the files beside it."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a whole comparison, two seeds each."""
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*QUICK, "--seeds", "1,2", "--out", "page.html"]) == 0
    return folder


@pytest.fixture
def at(place, monkeypatch, capsys):
    """Run a command where everything is compared already."""
    monkeypatch.chdir(place)

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def features(path, *, samples=(40, 20, 8), seed=0, test_labels=None, separation=2.0):
    """Made features of a few classes, with a test part."""
    generator = np.random.default_rng(seed)
    labels, test = np.repeat(np.arange(len(samples)), samples), np.repeat(np.arange(len(samples)), 12)
    middle = separation * generator.normal(size=(len(samples), 5))
    arrays = {
        "features": (middle[labels] + generator.normal(size=(len(labels), 5))).astype(np.float32),
        "test_features": (middle[test] + generator.normal(size=(len(test), 5))).astype(np.float32),
        "labels": labels,
        "test_labels": test if test_labels is None else test_labels,
    }
    np.savez(path, **arrays)
    return path


def test_each_method_and_seed_is_a_run_like_any_other(place, at):
    for name in ("cross-entropy", "ldam-drw", "balpoe"):
        for seed in (1, 2):
            run = Run(FOLDER / name / f"seed-{seed}")
            assert run.finished
            assert run.recipe().calibrate
            assert run.predictions().calibration is not None  # scores that are no posterior, too
    assert not (FOLDER / "logit-adjustment-after").exists()
    assert at("evaluate", FOLDER / "balpoe", "--baseline", FOLDER / "ldam-drw")[0] == 0
    code, out, _ = at("runs", "--runs", FOLDER)
    assert code == 0
    assert "LDAM-DRW" in out


def test_nothing_is_trained_twice_and_the_table_is_that_of_the_runs(place, at, monkeypatch):
    monkeypatch.setattr("balpoe.experiments.run_folder.Run.seconds", lambda run: 7.0)
    monkeypatch.setattr("balpoe.cli.compare_trainings.train_run_by_step", None)
    code, out, _ = at(*QUICK, "--seeds", "1,2")
    assert code == 0
    assert "6 of 6 trainings are finished already" in out
    found = Comparison.load(FOLDER / "comparison.json")
    assert {row.method for row in found.rows} == set(METHODS.split(","))
    for row in found.rows:
        if row.method != "logit-adjustment-after":
            evaluations = [Run(FOLDER / row.folder / f"seed-{seed}").evaluation() for seed in (1, 2)]
            assert row.scores["balanced_accuracy"] == tuple(each["balanced_accuracy"] for each in evaluations)
            assert row.scores["ece_as_trained"] == tuple(each["calibration"]["before"]["ece"] for each in evaluations)
            assert f"{100 * row.mean('balanced_accuracy'):.1f}" in out


def test_the_table_fits_a_hundred_columns(place, at):
    lines = at(*QUICK, "--seeds", "1,2")[1].splitlines()
    first = next(number for number, line in enumerate(lines) if "balanced %" in line)
    last = next(number for number, line in enumerate(lines) if "highest balanced accuracy" in line)
    assert max(len(line.rstrip()) for line in lines[first - 1 : last]) <= 100


def test_a_further_seed_and_method_are_added(place, at, monkeypatch):
    trained = []
    step = balpoe.cli.compare_trainings.train_run_by_step
    monkeypatch.setattr(
        "balpoe.cli.compare_trainings.train_run_by_step",
        lambda recipe, *rest, **more: trained.append((recipe.method, recipe.seed)) or step(recipe, *rest, **more),
    )
    methods = [*QUICK[:-1], "balpoe,mixup"]
    assert at(*methods, "--seeds", "1,2", "--out", "other.html")[0] == 0
    assert trained == [("mixup", 1), ("mixup", 2)]
    assert Path("other.html").exists()


def test_another_recipe_under_the_same_name_is_refused(place, at):
    code, _, err = at(*QUICK, "--name", FOLDER.name, "--lr", "0.5")
    assert code == 2
    assert "choose another --name" in sentence(err)


def test_the_page_in_a_browser(place, browser):
    page = place / "page.html"
    context = browser.new_context(viewport={"width": 400, "height": 800}, offline=True)
    tab, complaints = context.new_page(), []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(page.as_uri())
    assert complaints == []
    assert "highest balanced accuracy" in tab.inner_text("section >> nth=0")
    assert tab.locator("svg").count() == 2
    found = Comparison.load(place / FOLDER / "comparison.json")
    cells = tab.locator("table >> nth=1").inner_text()
    for row in found.rows:
        assert row.title in cells or row.method == "mixup"  # which another test adds
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    context.close()
    assert {path.name for path in page.with_name("page_figures").iterdir()} == {
        f"{name}.{kind}" for name in ("trade-off", "differences") for kind in ("png", "svg")
    }


def test_choosing_by_held_out_samples(place, at):
    code, out, _ = at(*QUICK, "--seeds", "1,2", "--choose")
    assert code == 0
    found = Comparison.load(FOLDER / "choice.json")
    assert found.what == "held-out"
    best = found.rows[0]
    held_out = [Predictions.load(FOLDER / best.folder / f"seed-{seed}/predictions/held-out") for seed in (1, 2)]
    for predictions, score in zip(held_out, best.scores["balanced_accuracy"], strict=True):
        right = (predictions.logits.argmax(dim=1) == predictions.targets).double()
        by_class = [float(right[predictions.targets == label].mean()) for label in predictions.targets.unique()]
        assert score == pytest.approx(sum(by_class) / len(by_class))
    assert f"Chosen: {best.title}." in out
    assert found.choice["method"] == best.method
    assert (FOLDER / "choice.html").exists()


def test_the_choice_does_not_look_at_the_test_part(run):
    """Whatever the test labels are, the same scores choose the same method."""
    found = []
    for name, shift in (("right", 0), ("wrong", 12)):
        path = features(Path(f"{name}.npz"), test_labels=np.roll(np.repeat(np.arange(3), 12), shift))
        methods = ["--methods", "cross-entropy,cb-focal,balpoe", "--seeds", "1", "--choose"]
        assert run("compare", path, *methods, "--epochs", "3", "--width", "16", "--threads", "1")[0] == 0
        found.append(json.loads(Path(f"runs/{name}-compare-width-16-epochs-3/choice.json").read_text()))
    scores, same = ({row["method"]: row["scores"] for row in each["rows"]} for each in found)
    assert scores == same
    assert found[0]["choice"]["method"] == found[1]["choice"]["method"]
    first = {name: each["balanced_accuracy"][0] for name, each in scores.items()}
    assert found[0]["choice"]["method"] == max(first, key=lambda name: first[name])
    tests = [each["choice"]["test"]["rows"][0]["scores"]["balanced_accuracy"] for each in found]
    assert tests[0] != tests[1]  # the labels were wrong indeed


def test_the_one_that_is_chosen_is_trained_on_what_was_held_out(run, monkeypatch):
    """A network that is trained as a whole goes without some images, until it is chosen."""
    monkeypatch.setenv("BALPOE_CACHE", "cache")
    picture_folder(Path("trees"), {"ash": 30, "birch": 16, "cedar": 12})
    small = [
        "--network",
        "resnet32",
        "--no-frozen",
        "--weights",
        "",
        "--split",
        "1",
        "--width",
        "2",
        "--image-size",
        "8",
    ]
    code, out, _ = run(
        "compare", "trees", *small, "--epochs", "1", "--methods", "ldam-drw", "--seeds", "1", "--choose", "--name",
        "mine", "--threads", "1", "--workers", "0", "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    first, whole = (Run(f"runs/mine/{name}/seed-1").predictions() for name in ("ldam-drw", "ldam-drw-on-everything"))
    held_out = Predictions.load("runs/mine/ldam-drw/seed-1/predictions/held-out")
    assert int(whole.class_counts.sum()) == int(first.class_counts.sum()) + len(held_out)
    assert f"({len(held_out)} more than for the choice)" in out
    assert whole.calibration == first.calibration is not None


def test_a_search_is_resumed_and_its_best_is_compared(run, monkeypatch):
    pytest.importorskip("optuna")
    path = features(Path("made.npz"))
    arguments = ["compare", path, "--methods", "cb-focal,balpoe", "--seeds", "1", "--epochs", "2", "--width", "16",
                 "--threads", "1", "--tune", "mixup_alpha,lambdas,gamma"]  # fmt: skip
    code, _, _ = run(*arguments, "--trials", "2")
    assert code == 0
    folder = Path("runs/made-compare-width-16-epochs-2")
    file = folder / "search-mixup_alpha-lambdas-gamma" / "balpoe.jsonl"
    first = file.read_text().splitlines()
    code, out, _ = run(*arguments, "--trials", "3")
    assert code == 0
    again = file.read_text().splitlines()
    assert again[:2] == first
    assert len(again) == 3
    assert out.count("trial 3 of 3") == 2
    assert "trial 2 of" not in out
    assert set(json.loads(again[0])["values"]) == {"mixup_alpha", "lambdas"}
    found = Comparison.load(folder / "comparison-tuned.json")
    trials = [json.loads(line) for line in again]
    best = max(trials, key=lambda trial: trial["scores"][0])
    tuned = next(row for row in found.rows if row.method == "balpoe")
    recipe = Run(folder / tuned.folder / "seed-1").recipe()
    assert recipe.mixup_alpha == pytest.approx(best["values"]["mixup_alpha"])
    assert not any(folder.rglob("trial-*"))
    assert "The search" in (folder / "comparison-tuned.html").read_text(encoding="utf-8")
    code, out, _ = run(*arguments, "--trials", "1", "--fresh")
    assert code == 0
    assert "The earlier search is kept in" in out
    assert "trial 1 of 1" in out
    assert file.read_text().splitlines() == first[:1]


def test_what_a_new_search_chooses_finds_a_place_beside_seeds_of_an_earlier_one(tmp_path):
    """To refuse it would throw the search away."""
    facts = DataFacts(("a", "b"), (4, 2), (4, 2), True, 0)
    asked = Asked(tmp_path, "", "", "", Recipe(), [2], False, {}, 1.0, False, ("lr",), 1, True, None)
    earlier = tmp_path / "balpoe-tuned" / "seed-1"
    earlier.mkdir(parents=True)
    (earlier / "recipe.toml").write_text(recipe_toml(updated(Recipe(), {"seed": 1, "lr": 0.3})))
    (job,) = _jobs({"balpoe": updated(Recipe(), {"lr": 0.2})}, asked, facts).values()
    assert job.folder == tmp_path / "balpoe-tuned-lr-0.2" / "seed-2"
    (job,) = _jobs({"balpoe": updated(Recipe(), {"lr": 0.3})}, asked, facts).values()
    assert job.folder == tmp_path / "balpoe-tuned" / "seed-2"


def test_a_budget_of_time_ends_in_a_list_of_what_is_missing(run, monkeypatch):
    clock = iter(range(0, 10**6, 40))
    monkeypatch.setattr("balpoe.cli.compare_trainings.time.monotonic", lambda: float(next(clock)))
    code, out, _ = run(*QUICK, "--seeds", "1", "--minutes", "3")
    assert code == 0
    assert re.search(r"Missing: .*BalPoE, seed 1\. The same command goes on with it", out)
    assert Comparison.load(FOLDER / "comparison.json").missing


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "balpo"], "did you mean 'balpoe'?"),
        (["--methods", "sade,sade"], "names a method twice"),
        (["--minutes", "soon"], "--minutes wants a number above 0, but is 'soon'"),
        (["--minutes", "-1"], "--minutes wants a number above 0"),
        (["--seeds", "1,x"], "--seeds wants whole numbers"),
        (["--tune", "mixup_alfa"], "did you mean 'mixup_alpha'?"),
        (["--tune", "network"], "not a setting to search for"),
        (["--tune", "lambdas", "--methods", "ldam-drw"], "none of these methods has it"),
        (["--tune", "lr", "--trials", "many"], "--trials wants a whole number"),
        (["--temperature", "2", "--no-calibrate"], "a temperature is one method's own, and is not compared; leave it"),
        (["--choose", "--no-calibrate"], "--choose asks samples outside of training"),
        (["--lambdas", "1,0", "--methods", "ldam-drw"], "none of these methods has experts with lambdas"),
        (["--set", "gama=2", "--methods", "cb-focal"], "did you mean 'gamma'?"),
        (["--method", "balpoe"], "did you mean '--methods'?"),
        (["--name", "a/b"], "without slashes"),
        (["--out", "page.pdf"], "end it with .html or .md"),
    ],
)
def test_mistakes_are_told_in_one_sentence_before_anything_is_trained(run, arguments, words):
    code, _, err = run("compare", "digits-lt", *arguments)
    assert code == 2
    assert words in sentence(err)
    assert not Path("runs").exists()


def test_a_class_too_small_for_a_held_out_choice(run):
    path = features(Path("made.npz"), samples=(20, 9, 1))
    code, _, err = run("compare", path, "--methods", "balpoe", "--choose")
    assert code == 2
    assert "class '2' has 1 training sample, too few to hold one out" in sentence(err)
    assert not Path("runs").exists()


def test_a_method_that_does_not_fit(run, monkeypatch):
    def refuse(recipe, facts):
        return "it wants two views of an image" if recipe.method == "sade" else None

    monkeypatch.setattr("balpoe.cli.compare_methods.misfit", refuse)
    code, _, err = run(*QUICK[:-1], "sade,balpoe", "--seeds", "1")
    assert code == 2
    assert "sade does not fit these data: it wants two views" in sentence(err)
    assert not Path("runs").exists()


@pytest.mark.filterwarnings("ignore:lambdas average to")  # SADE's do not average to zero
def test_what_learns_from_the_test_images_has_no_part_in_a_choice(run):
    code, _, err = run(*QUICK[:-1], "sade-test-time,balpoe", "--seeds", "1", "--choose")
    assert code == 2
    assert "sade-test-time does not fit these data: it learns from the test images, which have" in sentence(err)
    assert not Path("runs").exists()
