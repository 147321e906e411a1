"""What decisions are worth on the test samples of a run, printed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from balpoe.cli.decision_flags import DecisionFlags
from balpoe.cli.evaluate_sites import predictions_of
from balpoe.deployment.deciders import Decider, HeldOut
from balpoe.deployment.decision_scores import decision_scores
from balpoe.errors import UserError
from balpoe.evaluation.deployment_prior import parse_prior
from balpoe.files import write_json
from balpoe.report.console import console

__all__ = ["evaluate_decisions"]


def evaluate_decisions(
    path: str,
    flags: DecisionFlags,
    *,
    prior: str | None = None,
    thresholds: tuple[int, ...] | None = None,
    out: str | None = None,
    data_root: str = "",
) -> dict[str, Any]:
    """Print and return what decisions on the test samples of a run, a model or predictions are worth.

    Args:
        path: The run, model or predictions; what is fitted needs a run.
        flags: What is to be decided.
        prior: Deployment prior of all of it; None: what the model is made for, and test samples as they come.
        thresholds: Thresholds of the shot groups; by default the run's.
        out: File .json to write, too.
        data_root: Folder of the test set of a model's file.
    """
    if out is not None and Path(out).suffix != ".json":
        raise UserError(f"--out {out} is not a .json file; give one")
    predictions, recipe = predictions_of(path, data_root)
    few, many = thresholds or (recipe.shot_groups if recipe is not None else (20, 100))
    wanted = flags.read(predictions.class_names, (few, many))
    target = None if prior is None else parse_prior(prior, predictions)
    decider = Decider.fit(wanted, predictions, HeldOut.of_run(path) if wanted.needs_held_out else None, target)
    scores = decision_scores(decider, predictions, (few, many))
    screen = console()
    mix = "as they come" if prior is None else f"weighted to the prior {prior}"
    screen.print(f"{path}: {len(predictions):,} test samples, {mix}")
    if prior is None:
        screen.print("Decisions are for the class mix that the model is made for; --prior PRIOR takes another.")
    for table in _tables(scores, predictions.class_names):
        screen.print(table)
    for note in decider.notes:
        screen.print(f"Note: {note}")
    if out is not None:
        write_json(Path(out), {"prior": prior, **scores, "notes": decider.notes})
    return scores


def _tables(scores: dict[str, Any], class_names: Sequence[str]) -> list[Table]:
    makers: dict[str, Callable[[Any], Table]] = {
        "cost": _cost_table,
        "metric": lambda found: _metric_table(found, class_names),
        "abstaining": _abstaining_table,
        "thresholds": _thresholds_table,
        "sets": _sets_table,
        "levels": _levels_table,
        "unknown": _unknown_table,
    }
    return [make(scores[name]) for name, make in makers.items() if name in scores]


def _cost_table(cost: dict[str, Any]) -> Table:
    table = _table("cost of a sample", "decision", "most probable class", "difference", "95 % interval")
    plain, difference = cost.get("most probable class"), cost.get("difference")
    low, high = cost.get("interval", (None, None))
    table.add_row(
        "mean",
        f"{cost['decision']:.4g}",
        "-" if plain is None else f"{plain:.4g}",
        "-" if difference is None else f"{difference:+.4g}",
        "-" if low is None else f"{low:+.4g} to {high:+.4g}",
    )
    return table


def _metric_table(metric: dict[str, Any], class_names: Sequence[str]) -> Table:
    table = _table(f"answers for {metric['name']}", "accuracy %", "balanced %", "macro F1 %", "least recall %")
    for way in ("decision", "most probable class"):
        found = metric[way]
        least = min(
            (recall, name) for recall, name in zip(found["recall"], class_names, strict=True) if recall is not None
        )
        table.add_row(
            way, *(_per_cent(found[name]) for name in ("accuracy", "balanced_accuracy", "macro_f1")),
            f"{_per_cent(least[0])} ({least[1]})",
        )  # fmt: skip
    return table


def _abstaining_table(groups: dict[str, Any]) -> Table:
    table = _table("abstaining", "samples", "answered %", "95 % interval", "error of answers %")
    for name, row in groups.items():
        low, high = row["interval"]
        interval = f"{_per_cent(low)} to {_per_cent(high)}"
        table.add_row(name, f"{row['samples']:,}", _per_cent(row["answered"]), interval, _per_cent(row["error"]))
    return table


def _sets_table(sets: dict[str, Any]) -> Table:
    title = f"sets of {100 * (1 - sets['alpha']):g} %, {sets['method']}"
    table = _table(title, "coverage %", "mean size")
    for name, row in sets.items():
        if isinstance(row, dict):
            table.add_row(name, _per_cent(row["coverage"]), f"{row['size']:.2f}")
    return table


def _levels_table(levels: list[dict[str, Any]]) -> Table:
    table = _table("the deepest sure label", "labels", "answered %", "right of those %", "all answered here, right %")
    for level in levels:
        shares = (_per_cent(level[name]) for name in ("share", "accuracy", "most_probable"))
        table.add_row(level["level"], f"{level['labels']:,}", *shares)
    return table


def _unknown_table(groups: dict[str, float]) -> Table:
    table = _table("known samples called unknown", "%")
    for name, share in groups.items():
        table.add_row(name, _per_cent(share))
    return table


def _thresholds_table(found: dict[str, Any]) -> Table:
    title = f"yes or no to each class, {found['aim']}; means over classes"
    table = _table(title, "classes", "right of the yeses %", "found of the class %", "F1 %")
    for name, row in found.items():
        if isinstance(row, dict):
            shares = (_per_cent(row[each]) for each in ("precision", "recall", "f1"))
            table.add_row(name, f"{row['classes']:,}", *shares)
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("", *headings):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    return table


def _per_cent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
