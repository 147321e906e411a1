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
