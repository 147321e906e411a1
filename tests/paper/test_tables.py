"""Tables that are made from records."""

import json

import numpy as np
from scipy.stats import ttest_ind

from balpoe.paper.paper_result import PaperResult, ShiftedAccuracies
from balpoe.paper.tables import commands_table, differences_table, shifted_overview_table, welch_table

SETS = ["forward-50", "uniform", "backward-50"]


def record(accuracy, ece, as_trained, adjusted, estimated=None, names=("as_trained", "adjusted")):
    pairs = zip(SETS, zip(as_trained, adjusted, strict=True), strict=True)
    rows = [{"name": name, **dict(zip(names, pair, strict=True))} for name, pair in pairs]
    found = {"evaluation": {"accuracy": accuracy, "ece": ece, "shifted": rows}}
    if estimated:
        found["estimated"] = [{"name": n, "estimated": a} for n, a in zip(SETS, estimated, strict=True)]
    return found


def write(folder, *found):
    folder.mkdir(parents=True)
    for seed, each in enumerate(found, start=1):
        (folder / f"seed-{seed}.json").write_text(json.dumps(each))


def test_differences_beyond_two_deviations(tmp_path):
    """The mean of 50 and 52 is 51, its deviation 1.41: 53.9 is beyond twice that, 53.8 is not."""
    paper = {"accuracy": (53.9, None), "ece": (53.8, None)}
    ours = PaperResult(
        "a/b", "ours", "cifar100-lt", {}, 3, paper, shifted=ShiftedAccuracies((48.1, 51.0, 10.0), (51.0, 99.0, 51.0))
    )
    halves = [0.50] * 3, [0.52] * 3
    write(tmp_path / "a" / "b", *(record(each[0], each[0], each, each) for each in halves))
    wide = PaperResult("a/b", "paper unsure", "cifar100-lt", {}, 3, {"accuracy": (53.9, 1.5)}, repeats=True)
    one = PaperResult("a/c", "one seed", "cifar100-lt", {}, 1, {"accuracy": (99.0, None)})
    write(tmp_path / "a" / "c", record(0.5, 0.5, halves[0], halves[0]))
    none = PaperResult("a/d", "no record", "cifar100-lt", {}, 1, {"accuracy": (99.0, None)})
    assert differences_table([ours, wide, one, none], tmp_path).splitlines()[2:] == [
        "| a/b: accuracy | 51.0 ± 1.4 | 53.9 | -2.9 |",
        "| a/b: forward-50, as trained | 51.0 ± 1.4 | 48.1 | +2.9 |",
        "| a/b: backward-50, as trained | 51.0 ± 1.4 | 10.0 | +41.0 |",
        "| *of 7 comparisons, 6 without repeats* |  |  |  |",
    ]


def test_welch_s_test_against_samples_with_the_paper_s_mean_and_deviation(tmp_path):
    """The paper's five runs are made up: -1, -1, 0, 1, 1 have mean 0 and deviation 1."""
    ours, other = [0.511, 0.508, 0.514], [0.60, 0.61, 0.59]
    write(tmp_path / "a" / "b", *(record(x, x, [x] * 3, [x] * 3) for x in ours))
    write(tmp_path / "a" / "c", *(record(x, x, [x] * 3, [x] * 3) for x in other))
    numbers = {"accuracy": (51.7, 0.5), "ece": (50.0, None)}
    close = PaperResult("a/b", "close", "cifar100-lt", {}, 3, numbers)
    far = PaperResult("a/c", "far", "cifar100-lt", {}, 3, {"accuracy": (62.5, 0.5)}, repeats=True)
    paper = 0.5 * np.array([-1, -1, 0, 1, 1])
    near, beyond = (
        ttest_ind(100 * np.array(values), mean + paper, equal_var=False).pvalue
        for values, mean in ((ours, 51.7), (other, 62.5))
    )
    assert beyond < 0.05 < near < 0.1
    assert welch_table([close, far], tmp_path).splitlines()[2:] == [
        f"| a/c: accuracy | 60.0 ± 1.0 | 62.5 ± 0.5 | -2.5 | {beyond:.3f} |",
        "| *1 of 2 below 0.05, 0.1 expected; without repeats 0 of 1 below 0.05, 0.1 expected* |  |  |  |  |",
    ]
    assert f"| {near:.3f} |" in welch_table([close], tmp_path, level=0.1)


def test_shifted_test_sets_of_several_results(tmp_path):
    two, one, none = (PaperResult(f"a/{name}", name, "cifar100-lt", {}, 2) for name in "bcd")
    plain = record(0.5, 0.1, [0.6, 0.5, 0.4], [0.7, 0.5, 0.5], names=("not_told", "told"))  # of an earlier version
    write(tmp_path / "a" / "b", plain, record(0.5, 0.1, [0.62, 0.5, 0.4], [0.7, 0.5, 0.5], [0.71, 0.5, 0.59]))
    write(tmp_path / "a" / "c", plain)
    assert shifted_overview_table({"none": none, "two": two, "one": one}, tmp_path).splitlines() == [
        "|  | seeds | forward-50 | uniform | backward-50 | mean |",
        "| --- | --- | --- | --- | --- | --- |",
        "| two, as trained | 2 | 61.0 | 50.0 | 40.0 | 50.3 |",
        "| two, adjusted | 2 | 70.0 | 50.0 | 50.0 | 56.7 |",
        "| two, estimated | 1 of 2 | 71.0 | 50.0 | 59.0 | 60.0 |",
        "| one, as trained | 1 of 2 | 60.0 | 50.0 | 40.0 | 50.0 |",
        "| one, adjusted | 1 of 2 | 70.0 | 50.0 | 50.0 | 56.7 |",
    ]
    assert shifted_overview_table({"none": none}, tmp_path) == "\n"


def test_records_without_a_posterior_have_no_adjusted_accuracies(tmp_path):
    write(tmp_path / "a" / "b", record(0.5, 0.1, [0.6, 0.5, 0.4], [None] * 3))
    result = PaperResult("a/b", "margins", "cifar100-lt", {}, 1, {})
    assert shifted_overview_table({"margins": result}, tmp_path).splitlines()[2:] == [
        "| margins, as trained | 1 | 60.0 | 50.0 | 40.0 | 50.0 |"
    ]


def test_commands_of_what_was_measured(tmp_path):
    strong = PaperResult("a/b", "stronger", "cifar100-lt", {"augmentation": "autoaugment"}, 1)
    plain, absent = (PaperResult(f"a/{name}", name, "cifar100-lt", {}, 1) for name in ("plain", "absent"))
    write(tmp_path / "a" / "b", record(0.5, 0.1, [0.5] * 3, [0.5] * 3))
    write(tmp_path / "a" / "plain", record(0.5, 0.1, [0.5] * 3, [0.5] * 3))
    assert commands_table({"one": (strong, absent), "two": (plain, strong)}, tmp_path).splitlines()[2:] == [
        "| one | stronger | `balpoe train cifar100-lt --augmentation autoaugment` |",
        "| two | plain | `balpoe train cifar100-lt` |",
        "| two | stronger | `balpoe train cifar100-lt --augmentation autoaugment` |",
    ]
