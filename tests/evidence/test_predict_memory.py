"""The record of predict's memory, and what the page says of it."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "results" / "predict_memory.json").read_text())


@pytest.mark.parametrize("run", RECORD["runs"], ids=lambda run: "parts" if run["parts"] else "one file")
def test_memory_does_not_grow_with_the_list(run):
    first, *later = (value for name, value in run["mebibytes"].items() if name != "peak")
    assert len(later) == 11
    assert max(later) - first < 1  # MiB


def test_the_page_says_how_many_rows_were_measured():
    (rows,) = {run["rows"] for run in RECORD["runs"]}
    most = max(value for run in RECORD["runs"] for name, value in run["mebibytes"].items() if name != "peak")
    text = (ROOT / "docs" / "many-gpus.md").read_text()
    assert f"{most:.0f} MiB from the first rows to the last of {rows:,}" in text
