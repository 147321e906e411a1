"""What decisions are worth on the test samples of a run, printed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from balpoe.cli.decision_flags import DecisionFlags
from balpoe.cli.evaluate_sites import check_out, keys_of, predictions_of
from balpoe.deployment.deciders import Decider, HeldOut, Wanted
from balpoe.deployment.decision_scores import decision_scores
from balpoe.deployment.metric_rules import wanted_recall
from balpoe.deployment.place_deciders import DecidersAt, PlaceDeciders
from balpoe.deployment.prior_tables import unknown_keys_sentence
from balpoe.deployment.table_source import TableSource
from balpoe.evaluation.deployment_prior import parse_prior
from balpoe.evaluation.predictions import Predictions, load_predictions
from balpoe.evaluation.prior_estimate import estimate_target
from balpoe.experiments.calibrate import are_of_cross_fitting
from balpoe.files import write_json
from balpoe.report.console import console
from balpoe.report.deployment import estimate_sentences

__all__ = ["evaluate_decisions"]


def evaluate_decisions(
    path: str,
    flags: DecisionFlags,
    *,
    prior: str | None = None,
    validation: str | None = None,
    table: TableSource | None = None,
    key_table: str | None = None,
    thresholds: tuple[int, ...] | None = None,
    out: str | None = None,
    data_root: str = "",
    weights: str = "",
) -> dict[str, Any]:
    """Print and return what decisions on the test samples of a run, a model or predictions are worth.

    Args:
        path: The run, model or predictions; what is fitted needs a run.
        flags: What is to be decided.
        prior: Deployment prior of all of it; None: what the model is made for, and test samples as they come.
        validation: Labelled predictions for the prior "estimate".
        table: Table of priors instead, of which each test sample gets that of its place.
        key_table: Table with the keys of the test samples; by default the one that the run was trained on.
        thresholds: Thresholds of the shot groups; by default the run's.
        out: File .json to write, too.
        data_root: Folder of the test set of a model's file.
        weights: File of the backbone's weights, for a model's file that holds adapters alone.
    """
    check_out(out, [path, prior, validation, table and table.path, key_table, *flags.files])
    predictions, recipe = predictions_of(path, data_root, weights)
    few, many = thresholds or (recipe.shot_groups if recipe is not None else (20, 100))
    wanted = flags.read(predictions.class_names, (few, many))
    held_out = HeldOut.of_run(path) if wanted.needs_held_out else None
    if table is None:
        deployed = _one_prior(wanted, predictions, held_out, prior, validation)
    else:
        keys = keys_of(predictions, recipe, table, key_table)
        deployed = _prior_of_each(wanted, predictions, held_out, table, keys)
    scores = decision_scores(deployed.decider, predictions, (few, many), as_they_come=prior == "estimate")
    screen = console()
    screen.print(f"{path}: {len(predictions):,} test samples, {deployed.mix}")
    for each in _tables(scores, predictions.class_names):
        screen.print(each)
    notes = (*deployed.notes, *deployed.decider.notes)
    for note in notes:
        screen.print(f"Note: {note}")
    if out is not None:
        name = prior if table is None else {"table": table.path, "keys": table.keys}
        write_json(Path(out), {"prior": name, **scores, "notes": notes})
    return scores


class _Deployed(NamedTuple):
    """What decides, of which samples, and what there is to say about it."""

    decider: Decider | DecidersAt
    mix: str
    notes: tuple[str, ...] = ()


def _one_prior(
    wanted: Wanted, predictions: Predictions, held_out: HeldOut | None, prior: str | None, validation: str | None
) -> _Deployed:
    """Decisions under one prior: known, estimated from the test samples, or what the model is made for."""
    if prior is None:
        note = "Decisions are for the class mix that the model is made for; --prior PRIOR takes another."
        return _Deployed(Decider.fit(wanted, predictions, held_out), "as they come", (note,))
    if prior == "estimate" and validation is not None:
        known, cross_fitted = load_predictions(validation), are_of_cross_fitting(validation)
        found = estimate_target(predictions, known, cross_fitted=cross_fitted)
        mix = "as they come; the prior is estimated from them"
        return _Deployed(Decider.fit(wanted, predictions, held_out, found), mix, tuple(estimate_sentences(found)))
    target = parse_prior(prior, predictions)
    return _Deployed(Decider.fit(wanted, predictions, held_out, target), f"weighted to the prior {prior}")


def _prior_of_each(
    wanted: Wanted,
    predictions: Predictions,
    held_out: HeldOut | None,
    flags: TableSource,
    keys: Sequence[tuple[str, ...]],
) -> _Deployed:
    """Decisions under the prior of each sample's place."""
    table = flags.read(predictions.class_names, predictions.source_prior)
    matches = table.match(keys)
    deciders = PlaceDeciders(wanted, predictions, held_out, table)
    notes = (f"{unknown_keys_sentence(matches.unknown, len(keys))}.",) if matches.unknown else ()
    mix = f"as they come, each with the prior of its {'/'.join(flags.keys)}"
    return _Deployed(deciders.at(matches.rows), mix, notes)


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
    name = metric["name"]
    wanted = wanted_recall(name)[0] if name.startswith("recall of ") else None
    recall = "least recall %" if wanted is None else f"recall of {wanted} %"
    table = _table(f"answers for {name} (95 % intervals)", "accuracy %", "balanced %", "macro F1 %", recall)
    for way in ("decision", "most probable class", "difference"):
        found, sign = metric[way], "+" if way == "difference" else ""
        shown = [
            _with_interval(found[each], found["intervals"][each], sign)
            for each in ("accuracy", "balanced_accuracy", "macro_f1")
        ]
        table.add_row(way, *shown, "" if way == "difference" else _recall(found, class_names, wanted))
    return table


def _recall(found: dict[str, Any], class_names: Sequence[str], wanted: str | None) -> str:
    """The recall of the class that is wanted, or the least of all."""
    rows = zip(found["recall"], class_names, found["recall_intervals"], strict=True)
    known = [row for row in rows if row[0] is not None and wanted in (None, row[1])]
    if not known:
        return "-"
    recall, name, interval = min(known)
    return _with_interval(recall, interval) + (f" {name}" if wanted is None else "")


def _abstaining_table(groups: dict[str, Any]) -> Table:
    table = _table("abstaining (95 % intervals)", "samples", "answered %", "error of answers %")
    for name, row in groups.items():
        answered = _with_interval(row["answered"], row["interval"])
        table.add_row(name, f"{row['samples']:,}", answered, _with_interval(row["error"], row["error_interval"]))
    return table


def _sets_table(sets: dict[str, Any]) -> Table:
    title = f"sets of {100 * (1 - sets['alpha']):g} %, {sets['method']} (95 % intervals)"
    table = _table(title, "coverage %", "mean size")
    for name, row in sets.items():
        if isinstance(row, dict):
            size = f"{row['size']:.2f}" + _between(row["size_interval"], "{:.2f}")
            table.add_row(name, _with_interval(row["coverage"], row["interval"]), size)
    return table


def _levels_table(levels: list[dict[str, Any]]) -> Table:
    headings = ("labels", "answered %", "right of those %", "all answered here, right %")
    table = _table("the deepest sure label (95 % intervals)", *headings)
    for level in levels:
        names = ("share", "accuracy", "most_probable")
        shares = (_with_interval(level[name], level[f"{name}_interval"]) for name in names)
        table.add_row(level["level"], f"{level['labels']:,}", *shares)
    return table


def _unknown_table(groups: dict[str, dict[str, Any]]) -> Table:
    table = _table("known samples called unknown (95 % intervals)", "%")
    for name, row in groups.items():
        table.add_row(name, _with_interval(row["share"], row["interval"]))
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
        table.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    return table


def _per_cent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _with_interval(share: float | None, interval: tuple[float, float] | None, sign: str = "") -> str:
    if share is None:
        return "-"
    ends = None if interval is None else (100 * interval[0], 100 * interval[1])
    return f"{100 * share:{sign}.1f}" + _between(ends, f"{{:{sign}.1f}}")


def _between(interval: tuple[float, float] | None, shown: str) -> str:
    return "" if interval is None else f" ({shown.format(interval[0])} to {shown.format(interval[1])})"
