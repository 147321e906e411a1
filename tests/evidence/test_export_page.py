"""What docs/export.md says of speed and of smaller files, from the records."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")


def record(name):
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", record("export.json")["rows"], ids=lambda row: f"{row['network']}-{row['batch']}")
def test_the_table_of_speed(row):
    times = " | ".join(f"{row[name]:.2f}" for name in ("faster", "experts", "multiply-adds"))
    assert f"| {row['batch']} | {shown(row, 'torch 3')} | {shown(row, 'onnx 3')} | {times} |" in PAGE


def shown(row, name):
    """Three digits of some milliseconds, as the page has them."""
    value = row["milliseconds"][name]
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


@pytest.mark.parametrize("name", ["export.json", "export_neoverse.json"])
def test_the_bars_of_speed(name):
    """For the records, not for the code, at batch 1."""
    small, _, large, heads = record(name)["rows"]
    assert small["faster"] >= 2
    assert large["faster"] >= 1.2
    assert max(row["experts over multiply-adds"] for row in (small, large, heads)) <= 1.1


def test_the_other_processor():
    small, many, large, light = (f"{row['faster']:.2f} times" for row in record("export_neoverse.json")["rows"])
    assert f"the CIFAR network was {small} as fast at batch 1 and no faster at 32" in PAGE
    assert many < "1.00 times"
    assert f"ResNet-50 was {large} as fast, EfficientNet-Lite0 {light}." in PAGE


def test_the_table_of_smaller_files():
    rows = record("export_precision.json")["rows"]
    for row in rows:
        scores = " | ".join(f"{100 * row[name]:.1f}" for name in ("accuracy", "balanced_accuracy", "ece"))
        assert f"| {row['megabytes']:.1f} | {row['difference']:.{digits(row)}f} | {scores} |" in PAGE
    assert len(rows) == 5


def digits(row):
    """As many as show one that is not zero."""
    return next(count for count in range(1, 9) if float(f"{row['difference']:.{count}f}"))
