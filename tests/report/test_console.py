import io
import os
import sys

import pytest
from rich.console import Console

from balpoe.evaluation.catalogue import METRICS
from balpoe.report.console import command_line, mean_and_deviation, print_scores

ROWS = {
    "cross-entropy, 3 experts, mixup": [dict.fromkeys(METRICS, 0.123), dict.fromkeys(METRICS, 0.456)],
    "BalPoE (1, 0, -1), mixup": [dict.fromkeys(METRICS, 0.789), dict.fromkeys(METRICS, 0.987)],
}


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_every_name_and_number_is_whole_on_any_terminal(width):
    stream = io.StringIO()
    out = Console(width=width, file=stream, markup=False, highlight=False)
    print_scores(out, ROWS, title="A title", extra={"parameters": dict.fromkeys(ROWS, "1,362,064")})
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for name, evaluations in ROWS.items():
        assert text.count(name) >= 1
        assert text.count(mean_and_deviation([e["ece"] for e in evaluations], per_cent=True)) == 7
        assert text.count(mean_and_deviation([e["nll"] for e in evaluations], per_cent=False)) == 2
    assert text.count("1,362,064") == 2
    assert "…" not in text
    assert "A title" in text


@pytest.mark.parametrize(
    ("called", "on_path", "program"),
    [
        ("/opt/bin/balpoe", ["balpoe"], "balpoe"),
        ("venv/my bin/balpoe", [], "'venv/my bin/balpoe'"),
        ("src/balpoe/__main__.py", [], f"{sys.executable} -m balpoe"),
        ("src/balpoe/__main__.py", ["python"], "python -m balpoe"),
        ("somebody.py", [], "balpoe"),
    ],
)
def test_a_command_can_be_pasted(monkeypatch, called, on_path, program):
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr("shutil.which", lambda name: sys.executable if name in on_path else None)
    assert os.path.isabs(sys.executable)
    assert command_line("report", "runs/Meine Bilder", "--out", "x.html") == (
        f"{program} report 'runs/Meine Bilder' --out x.html"
    )
