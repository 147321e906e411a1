"""The page on trust: its tables are those of the records, and the bars that they were made for.

That the bars hold in a record says nothing of the code as it is now; tests/experiments/test_calibrate.py does.
"""

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")


def rows(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def test_the_tables_are_made_from_the_records():
    assert runpy.run_path(str(ROOT / "docs" / "tables.py"))["trusted"](PAGE, ROOT / "results") == PAGE


def test_probabilities_come_true_on_every_data_set():
    assert len(rows("trust")) >= 6
    for name, row in rows("trust").items():
        ours = row["BalPoE"]
        assert ours["ece"] <= (0.04 if row["test"] >= 5000 else ours["ece_of_perfect"]), name


def test_where_the_honest_rival_is_ahead_the_page_says_so():
    behind = {
        name
        for name, row in rows("trust").items()
        for metric, (_, low, high) in row["BalPoE minus cross-entropy"].items()
        if (high < 0 if metric == "balanced_accuracy" else low > 0)
    }
    assert not behind
    assert "it is worse on none" in PAGE


def test_the_presets_are_calibrated_within_three_points():
    for name, several in rows("calibrated").items():
        assert max(each["after"]["ece"] for each in several) <= 0.03, name
        assert min(each["before"]["ece"] for each in several) > 0.05, name


def test_what_the_page_says_of_small_data():
    subsets = [row for several in rows("small_data").values() for row in several]
    assert f"{len(subsets)} long-tailed subsets of {min(row['train'] for row in subsets)} to" in PAGE
    better = {
        name: sum(row["after"][name] < row["before"][name] for row in subsets)
        for name in ("nll_uniform", "nll_train", "ece")
    }
    assert f"in {better['nll_uniform']} of {len(subsets)}" in PAGE
    assert f"training prior in {better['nll_train']},\nand the ECE in {better['ece']}," in PAGE
    for when in ("before", "after"):
        assert f"{sum(row[when]['nll_uniform'] for row in subsets) / len(subsets):.3f}" in PAGE
        assert f"{100 * sum(row[when]['ece'] for row in subsets) / len(subsets):.1f}" in PAGE
    harmed = [
        row
        for name in ("cifar100-20-250-100-0.09-0.2", "cifar10-10-400-100-0.1-0.2")
        for row in rows("small_data")[name]
    ]
    assert all(row["after"]["ece"] > row["before"]["ece"] for row in harmed)
    means = [100 * sum(row[when]["ece"] for row in harmed) / len(harmed) for when in ("before", "after", "best")]
    assert "{:.1f} % before, {:.1f} % after".format(*means) in PAGE
    assert f"the ECE is still {means[2]:.1f} %" in PAGE
