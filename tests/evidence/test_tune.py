"""What docs/tune.md says of its search, from the record."""

import json
import re
from pathlib import Path
from statistics import fmean

from balpoe.report.console import mean_and_deviation

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "tune_digits.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "tune.md").read_text(encoding="utf-8")


def score(trial):
    return 100 * fmean(trial["scores"])


def test_the_first_and_the_best_trial_of_each_method():
    for trials in RECORD["trials"].values():
        best = max((trial for trial in trials if not trial["pruned"]), key=score)
        assert f"{score(trials[0]):.1f} % as it stands, {score(best):.1f} % at its best" in PAGE
        assert len(trials) == 12


def test_every_trial_that_is_shown():
    whole = re.sub(r"\n {12}", " ", PAGE)  # long lines are folded there
    shown = [line for line in whole.splitlines() if " of 12: held-out" in line]
    assert len(shown) == 6
    for line in shown:
        method = "cross-entropy" if "cross-entropy" in line else "balpoe"
        trial = RECORD["trials"][method][int(line.split("trial ")[1].split()[0]) - 1]
        values = ", ".join(f"{name} {value:.3g}" for name, value in trial["values"].items())
        assert f"accuracy {score(trial):.1f} %{', given up' if trial['pruned'] else ''} ({values})" in line


def test_what_the_test_part_says_of_the_one_that_was_chosen():
    found = mean_and_deviation(RECORD["test_balanced_accuracy"], per_cent=True)
    assert f"BalPoE  {found} " in PAGE
    assert f"the tuned one has {found} %" in PAGE
    assert "the untuned one of [the comparison](compare.md#a-worked-example) has 92.2 ± 0.4 %" in PAGE
    assert "BalPoE                    92.2 ± 0.4" in (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
