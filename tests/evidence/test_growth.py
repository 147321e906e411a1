"""What loss, metrics and report make grows no faster than classes and experts; counted in elements, not timed."""

import json
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from balpoe import BalPoELoss, Predictions, equidistant_lambdas, evaluate
from balpoe.data.long_tail import long_tailed_counts
from balpoe.evaluation.shifted_tests import shifted_test_sets
from balpoe.report.confusions import confused_pairs
from balpoe.report.explorer.pack import explorer
from balpoe.report.plots import plot_class_counts
from scripts import script
from tensor_sizes import TensorSizes

ROOT = Path(__file__).parents[2]
SAMPLES = 160


def made_up(classes, experts):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(SAMPLES, experts, classes, generator=generator)
    targets = torch.arange(SAMPLES) * classes // SAMPLES
    counts = torch.tensor(long_tailed_counts(classes, 500, 100))
    return Predictions(logits, targets, counts, torch.tensor(equidistant_lambdas(experts)))


def step(predictions):
    loss = BalPoELoss(predictions.class_counts, predictions.lambdas)
    torch.autograd.grad(loss(logits := predictions.expert_logits.requires_grad_(), predictions.targets), logits)


WORK = {
    "loss": step,
    "metrics": lambda predictions: evaluate(predictions, num_resamples=20),
    "shifted test sets": shifted_test_sets,
    "confusions": lambda predictions: confused_pairs(predictions, predictions.class_counts < 20),
    "explorer": explorer,
}


@pytest.mark.parametrize("work", WORK)
def test_twice_the_classes_or_experts_make_twice_the_elements_at_most(work, monkeypatch):
    monkeypatch.setattr("balpoe.evaluation.predictions.BLOCK_VALUES", 2**16)  # as 100,000 classes have
    made = {}
    for size in ((800, 2), (1600, 2), (800, 4)):
        predictions = made_up(*size)
        with TensorSizes() as made[size]:
            WORK[work](predictions)
        # No table of classes by classes, and none of all bins of all classes in all blocks.
        assert max(made[size].sizes) <= predictions.expert_logits.numel()
    base = sum(made[800, 2].sizes)
    assert sum(made[1600, 2].sizes) <= 2.1 * base
    assert sum(made[800, 4].sizes) <= 2.1 * base


def test_the_drawing_of_many_classes_has_one_step_for_each_count():
    counts = long_tailed_counts(20_000, 500, 100)
    axes = Figure().subplots()
    plot_class_counts(counts, {"many": [count > 100 for count in counts]}, axes)
    shown = [count for count in counts if count > 100]
    x, y = axes.collections[0].get_paths()[0].vertices.T
    assert len(x) < 5 * len(set(shown))
    assert abs(x[:-1] @ y[1:] - x[1:] @ y[:-1]) / 2 == pytest.approx(sum(shown))  # the area inside


def test_what_the_page_on_growth_says():
    """Bars for the record; for the code there are those above."""
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "results" / "growth.json").read_text())["rows"]
    by_size = {}
    for row in rows:
        by_size.setdefault((row["classes"], row["experts"]), {})[row["part"]] = row
    assert script("benchmarks/growth.py").table(rows) in text
    large = by_size[100_000, 3]
    for name in ("seconds_exponent", "mib_exponent"):
        loss, metrics, report = (large[part][name] for part in ("loss", "metrics", "report"))
        assert f"{loss:.2f} (loss), {metrics:.2f} (metrics) and {report:.2f} (report)" in text
        assert max(loss, metrics, report, *(row[name] for row in by_size[1_000, 8].values())) <= 1.1
    assert large["report"]["page_mb"] < 10
