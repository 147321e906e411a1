"""What docs/priors-measured.md says of a stream whose labels shift, from the record; and the benchmark itself."""

import json
from pathlib import Path

import pytest
import torch

import balpoe
from scripts import script

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "prior_tracking.json").read_text())
PAGE = (ROOT / "docs" / "priors-measured.md").read_text(encoding="utf-8")


def test_the_table_is_made_from_the_record():
    assert "<!-- table tracking -->" in PAGE
    assert script("docs/decision_tables.py").decided(PAGE, ROOT / "results") == PAGE


def test_what_the_page_says_of_the_streams():
    streams, looks, unexplained = (RECORD[name]["tempered"] for name in ("streams", "looks", "unexplained"))
    assert f"means of {streams} streams" in PAGE
    assert f"at {unexplained} of {looks} looks no prior explained the stream" in PAGE
    assert streams >= 20


def test_every_accuracy_of_the_one_stream_with_free_shares():
    for row in json.loads((ROOT / "results" / "prior_tracking_one_stream.json").read_text())["rows"]:
        values = (100 * row["accuracy"][way] for way in ("as trained", "free", "tempered", "exact"))
        assert f"| {row['part']} | " + " | ".join(f"{value:.1f}" for value in values) + " |" in PAGE


@pytest.mark.filterwarnings("ignore:no label prior explains")
def test_each_way_answers_the_same_stream():
    benchmark = script("benchmarks/prior_tracking.py")
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(300) % 3
    logits = torch.randn(300, 3, generator=generator) + 2 * torch.nn.functional.one_hot(targets, 3)
    known = balpoe.Predictions(2 * logits[:, None], targets, [100, 30, 2], [0])
    found = benchmark.measure(known, known, 100, 200, 1, 0)
    assert found["looks"] == {"tempered": 6, "free": 6}
    late = [part["as trained"] for part in found["parts"]]
    assert found["stream"]["as trained"] == pytest.approx(sum(late) / 3, abs=5)
    assert found["stream"]["exact"] >= found["stream"]["as trained"]


def test_gains_are_paired_over_streams():
    benchmark = script("benchmarks/prior_tracking.py")
    ways = ("as trained", "exact", "free", "tempered", "one estimate, free", "one estimate, tempered")
    numbers = (50, 60, 55, 58, 52, 53), (40, 50, 45, 48, 42, 43)
    streams = [dict(zip(ways, each, strict=True)) for each in numbers]
    row = benchmark.row(streams)
    assert row["free over as trained"] == [5, 5, 5]  # the same in both, however they differ
    assert row["tempered over one estimate"] == [5, 5, 5]
    assert row["tempered below exact"] == [2, 2, 2]
    mean, low, high = row["as trained"]
    assert (mean, low + high) == (45, pytest.approx(90))
    assert high - mean == pytest.approx(12.706 * 5, rel=1e-3)  # Student's t of one degree of freedom
