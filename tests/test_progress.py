import io
import sys

import pytest

from balpoe.progress import TrainingProgress, _shared_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [80, 140])
def test_the_bar_of_a_terminal(monkeypatch, columns):
    _shared_bar.cache_clear()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    with TrainingProgress("cifar100-lt-epochs-40/seed-3", 200, 10_847) as display:
        display.advance(10_847, 0.02)
        display.end_epoch(4.5678)
        display.advance(128, 0.04)
        display.bar.refresh()
    text = terminal.getvalue()
    for part in ("epoch 2/200 loss 4.5678 lr 0.04", "samples/s", "left", "━━━━━"):
        assert part in text
    assert ("cifar100-lt-epochs-40/seed-3" in text) == (columns == 140)
    assert "…" not in text


def test_plain_lines_elsewhere(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "140")
    with TrainingProgress("name/seed-0", 1, 100) as display:
        display.advance(100, 0.1)
        display.end_epoch(1.5)
    assert capsys.readouterr().err.startswith("name/seed-0  epoch 1/1 loss 1.5000 lr 0.1 ")


def test_nothing_where_nobody_listens(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with TrainingProgress("name/seed-0", 1, 100) as display:
        display.advance(100, 0.1)
        display.end_epoch(1.5)
