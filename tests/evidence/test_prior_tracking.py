"""What docs/priors.md says of a stream whose labels shift, from the record."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_accuracy_of_the_page():
    record = json.loads((ROOT / "results" / "prior_tracking.json").read_text())
    text = (ROOT / "docs" / "priors.md").read_text(encoding="utf-8")
    for row in record["rows"]:
        values = (100 * row["accuracy"][way] for way in ("as trained", "free", "tempered", "exact"))
        assert f"| {row['part']} | " + " | ".join(f"{value:.1f}" for value in values) + " |" in text
