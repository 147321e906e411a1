"""docs/fine-tuning.md against the records, and its benchmarks in their small configuration."""

import json
from pathlib import Path

from scripts import script

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fine-tuning.md").read_text(encoding="utf-8")


def test_every_table_is_made_from_the_records():
    assert script("docs/fine_tuning_tables.py").tuned(PAGE, ROOT / "results") == PAGE


def test_a_step_of_each_way_is_measured(tmp_path, monkeypatch, capsys):
    benchmark, out = script("benchmarks/adapter_step.py"), tmp_path / "adapter_step.json"
    monkeypatch.setattr("sys.argv", ["adapter_step.py", "--small", "--out", str(out)])
    benchmark.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["way"] for row in rows] == list(benchmark.WAYS)
    full, *others = rows
    assert all(row["trained"] < full["trained"] for row in others)
    assert all(row["faster"] == row["images_per_second"] / full["images_per_second"] for row in rows)
    failed = benchmark.attempt("resnet32", "lora", 2, "auto", benchmark.Setting("cpu", 32, 0.01))
    assert "Error" in failed["error"]
    assert "Error" in benchmark.line(failed)
