"""The work behind `balpoe train` and `balpoe evaluate`, and what they print."""

import functools
import hashlib
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from balpoe.errors import UserError
from balpoe.evaluation.evaluate import SHOT_GROUPS, compare
from balpoe.evaluation.predictions import Predictions, load_predictions
from balpoe.evaluation.shifted_tests import full_evaluation
from balpoe.experiments.build import own_data
from balpoe.experiments.recipe import FOR_FEATURES, Recipe, updated
from balpoe.experiments.run_folder import (
    Run,
    changed_name,
    evaluate_model,
    run_folder,
    runs_of,
    train_run,
    train_run_by_step,
)
from balpoe.method.lambdas import expert_names
from balpoe.report.console import (
    COLUMNS,
    IN_PER_CENT,
    console,
    mean_and_deviation,
    print_scores,
    program,
    shifted_table,
)
from balpoe.report.deployment import print_at_place
from balpoe.training.concurrent import TRAININGS_AT_ONCE, can_share_a_gpu, side_by_side
from balpoe.training.distributed import led_by_first
from balpoe.training.interrupts import Interrupt

__all__ = ["evaluate", "train"]

CROSS_ENTROPY: dict[str, Any] = {"lambdas": (1.0,), "num_experts": 0, "mixup_alpha": 0.0, "backward_tau": 0.0}


def train(recipe: Recipe, seeds: list[int], **options: Any) -> list[Run]:
    """Train a recipe with each seed; print the table and the next command.

    Of several processes that a launcher started, the first one does; the others help it to train, and get no runs.

    Args:
        recipe: What to train.
        seeds: One run each.
        options: Those of `_train`.
    """
    command = functools.partial(_train, recipe, seeds, **options)
    return led_by_first(command, device=recipe.device, devices=recipe.devices, num_nodes=recipe.num_nodes) or []


def _train(
    recipe: Recipe,
    seeds: list[int],
    *,
    root: Path,
    base: str,
    start: Recipe,
    fixed: bool,
    fresh: bool,
    baseline: bool = False,
) -> list[Run]:
    """Train a recipe with each seed; print the table and the next command.

    Args:
        recipe: What to train.
        seeds: One run each.
        root: The folder of all runs.
        base: The name of the runs, or what it begins with.
        start: The recipe that goes by this name.
        fixed: Whether the name was asked for.
        fresh: Train anew.
        baseline: Train plain cross-entropy first, to compare with.
    """
    out = console()
    if recipe.dataset == "own":
        recipe, start = _look_through(out, recipe, start)
    recipe, start = (_with_weights_version(each) for each in (recipe, start))
    slow = recipe.network not in FOR_FEATURES and not recipe.frozen
    if slow and not can_share_a_gpu(recipe.device, recipe.devices) and recipe.device != "mps" and recipe.devices == 1:
        out.print("No GPU is used: this recipe is made for one, and takes hours to days on a CPU.")
    same: dict[str, Any] = {"seeds": seeds, "root": root, "fixed": fixed, "fresh": fresh}
    plain: list[Run] = []
    if baseline:
        theirs = [updated(each, CROSS_ENTROPY) for each in (recipe, start)]
        plain = _train_seeds(out, theirs[0], base=f"{base}-cross-entropy", start=theirs[1], **same)
    runs = _train_seeds(out, recipe, base=base, start=start, **same)
    if plain:
        _print_comparison(out, plain, runs)
    else:
        rows = {run.folder.name: [run.evaluation()] for run in runs}
        if len(runs) > 1:
            rows[f"{len(runs)} seeds"] = [run.evaluation() for run in runs]
        print_scores(out, rows, title=runs[0].folder.parent.name)
        out.print(f"Next: {program()} evaluate {_whole(runs)}")
        _print_use(out, runs)
    return runs


def _look_through(out: Console, recipe: Recipe, start: Recipe) -> tuple[Recipe, Recipe]:
    """Say what own data hold; return the recipes with the data's version."""
    found = own_data(recipe, progress=True)
    counts = found.train.class_counts
    out.print(
        f"{recipe.data_root}: {len(counts):,} classes, {len(found.train):,} training samples ({int(counts.max()):,} to "
        f"{int(counts.min()):,} a class), {len(found.test):,} test samples"
    )
    for note in found.notes:
        out.print(f"Note: {note}")
    return updated(recipe, {"data_version": found.version}), updated(start, {"data_version": found.version})


def _with_weights_version(recipe: Recipe) -> Recipe:
    """A recipe that tells one file of weights from another, whatever they are called."""
    file = Path(recipe.weights)
    if not recipe.weights or not file.is_file():
        return recipe
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return updated(recipe, {"weights_version": digest[:8]})


def _whole(runs: list[Run]) -> Path:
    """The run, or the folder of all seeds."""
    return runs[0].folder if len(runs) == 1 else runs[0].folder.parent


def _print_comparison(out: Console, plain: list[Run], runs: list[Run]) -> None:
    """Print this method beside cross-entropy, the numbers that matter with their intervals, and what to type next."""
    rows = {name: [run.evaluation() for run in each] for name, each in (("cross-entropy", plain), ("BalPoE", runs))}
    print_scores(out, rows, title=runs[0].folder.parent.name)
    for name in ("balanced_accuracy", "few", "rarest_third"):
        parts = [f"{method} {_with_interval(evaluations, name)}" for method, evaluations in rows.items()]
        out.print(f"{COLUMNS[name]}: {', '.join(parts)}")
    out.print("Next, a page to look at and to show:")
    out.print(f"  {program()} report {_whole(runs)} --baseline {_whole(plain)}", soft_wrap=True)
    _print_use(out, runs)


def _print_use(out: Console, runs: list[Run]) -> None:
    recipe = runs[0].recipe()
    if recipe.dataset == "own" and recipe.network not in FOR_FEATURES:
        out.print("Labels and probabilities of other pictures:")
        out.print(f"  {program()} predict {runs[0].folder} PICTURES", soft_wrap=True)


def _with_interval(evaluations: list[dict[str, Any]], name: str) -> str:
    """A score with its 95 % interval, or over several seeds with its deviation."""
    text = mean_and_deviation([e[name] for e in evaluations], per_cent=True)
    if len(evaluations) > 1 or name not in evaluations[0]["intervals"]:
        return f"{text} %"
    low, high = evaluations[0]["intervals"][name]
    return f"{text} % ({100 * low:.1f} to {100 * high:.1f})"


def _train_seeds(
    out: Console, recipe: Recipe, seeds: list[int], *, root: Path, base: str, start: Recipe, fixed: bool, fresh: bool
) -> list[Run]:
    name = base if fixed else changed_name(base, recipe, start)
    jobs, announced = [], base
    for seed in seeds:
        ours = updated(recipe, {"seed": seed})
        folder = root / name / f"seed-{seed}" if fresh else run_folder(root, name, ours, fixed)
        if folder.parent.name != announced:
            announced = folder.parent.name
            out.print(f"The recipe differs from {base}: its runs are kept in {folder.parent}")
        jobs.append((ours, folder))
    options: dict[str, Any] = {"fresh": fresh, "say": out.print}
    if len(jobs) > 1 and can_share_a_gpu(recipe.device, recipe.devices):
        with Interrupt() as interrupt:
            works = (train_run_by_step(*job, **options, interrupt=interrupt) for job in jobs)
            runs = sorted(side_by_side(works, TRAININGS_AT_ONCE), key=lambda run: seeds.index(run.recipe().seed))
    else:
        runs = [train_run(*job, **options) for job in jobs]
    return runs


def evaluate(
    path: str,
    *,
    baseline: str | None,
    thresholds: tuple[int, ...] | None,
    data_root: str = "",
    prior: str | None = None,
    validation: str | None = None,
) -> None:
    """Print the metrics of a run, of all seeds of one, of a model's file or of predictions.

    Args:
        path: What to evaluate.
        baseline: Print the difference to it, too.
        thresholds: Of the shot groups; by default the run's.
        data_root: Where a model's file finds its test set.
        prior: Of the place of use: print the scores there instead, not told and told.
        validation: Labelled predictions, for the prior "estimate".
    """
    out = console()
    if Path(path).suffix == ".npz" or (Path(path) / "predictions.json").is_file():
        predictions = load_predictions(path)
        groups = SHOT_GROUPS if thresholds is None else (thresholds[0], thresholds[1])
        if prior is None:
            _print_predictions(out, path, predictions, baseline, groups)
        else:
            print_at_place(out, path, {"seed-0": predictions}, prior, validation, groups)
        return
    with tempfile.TemporaryDirectory() as folder:
        if Path(path).is_file():
            out.print(f"{path}: predicting its test set")
            runs = [evaluate_model(path, Path(folder) / "model" / "seed-0", data_root)]
        else:
            runs = runs_of(path)
        _check_alike(runs)
        if prior is None:
            _print_evaluation(out, path, runs, baseline, thresholds)
        else:
            few, many = thresholds or runs[0].recipe().shot_groups
            seeds = {run.folder.name: run.predictions() for run in runs}
            print_at_place(out, path, seeds, prior, validation, (few, many))


def _print_evaluation(
    out: Console, path: str, runs: list[Run], baseline: str | None, thresholds: tuple[int, ...] | None
) -> None:
    pairs = None if baseline is None else _pairs(runs, runs_of(baseline))
    evaluations = [_evaluation(run, thresholds) for run in runs]
    where = (
        "" if Path(path).is_file() else "; accuracy of each class, with Wilson's interval: evaluation.json in the run"
    )
    _print_measured(out, path, evaluations, expert_names(runs[0].recipe().expert_lambdas), where)
    if pairs is not None:
        out.print(_difference(pairs, thresholds))


def _check_alike(runs: list[Run]) -> None:
    """Seeds of one recipe have the same lambdas and tell the same classes apart."""
    lambdas, classes = runs[0].recipe().expert_lambdas, runs[0].predictions().class_names
    test = runs[0].recipe().data_version
    for run in runs[1:]:
        for what, alike in (
            ("were measured on different data", run.recipe().data_version == test),
            ("have different lambdas", run.recipe().expert_lambdas == lambdas),
            ("tell different classes apart", run.predictions().class_names == classes),
        ):
            if not alike:
                raise UserError(f"{runs[0].folder} and {run.folder} {what}; evaluate them one by one")


def _print_measured(
    out: Console, path: str, evaluations: list[dict[str, Any]], experts: list[str], where: str = ""
) -> None:
    rows: dict[str, list[dict[str, Any]]] = {"ensemble": evaluations}
    for expert, name in enumerate(experts):
        rows[name] = [e["experts"][expert] for e in evaluations]
    print_scores(out, rows, title=f"{path}: {evaluations[0]['samples']:,} test samples")
    if len(evaluations) == 1:
        out.print(_intervals(evaluations[0]))
    out.print(shifted_table(evaluations))
    out.print(_checks(["ensemble", *experts], evaluations))
    first = evaluations[0]
    if first["parameters"] is not None:
        cost = f"{first['multiply_adds'] / 1e6:,.1f} million multiply-adds a sample"
        out.print(f"{first['parameters']:,} parameters, {cost}")
    classwise = mean_and_deviation([e["classwise_ece"] for e in evaluations], per_cent=True)
    out.print(f"Classwise ECE {classwise} %{where}")


def _print_predictions(
    out: Console, path: str, predictions: Predictions, baseline: str | None, groups: tuple[int, int]
) -> None:
    """The same for predictions that belong to no run."""
    found = None if baseline is None else compare(predictions, load_predictions(baseline), shot_groups=groups)
    experts = [f"expert {expert + 1}" for expert in range(predictions.num_experts)]
    if predictions.lambdas.ndim == 1:
        experts = expert_names(predictions.lambdas.tolist())
    _print_measured(out, path, [full_evaluation(predictions, groups)], experts)
    if found is not None:
        parts = [_range(name, *values, sign="+") for name, values in found.items()]
        out.print(f"{path} minus {baseline}, 95 % paired intervals: " + ", ".join(parts))


def _evaluation(run: Run, thresholds: tuple[int, ...] | None) -> dict[str, Any]:
    """The saved evaluation, or a new one for other shot groups."""
    saved = run.evaluation()
    if thresholds is None or thresholds == run.recipe().shot_groups:
        return saved
    return full_evaluation(run.predictions(), (thresholds[0], thresholds[1]))


def _intervals(evaluation: dict[str, Any]) -> str:
    parts = [_range(name, *bounds) for name, bounds in evaluation["intervals"].items() if name != "mce"]
    return "95 % intervals over the test samples: " + ", ".join(parts)


def _pairs(runs: list[Run], baselines: list[Run]) -> list[tuple[Run, Run]]:
    """Each run with the baseline of its seed; where no seed is in both, the first of each."""
    of_seed = {baseline.recipe().seed: baseline for baseline in baselines}
    pairs = [(run, of_seed[seed]) for run in runs if (seed := run.recipe().seed) in of_seed]
    return pairs or [(runs[0], baselines[0])]


def _difference(pairs: list[tuple[Run, Run]], thresholds: tuple[int, ...] | None) -> str:
    few, many = thresholds or pairs[0][0].recipe().shot_groups
    found = [compare(run.predictions(), baseline.predictions(), shot_groups=(few, many)) for run, baseline in pairs]
    run, baseline = pairs[0]
    if len(pairs) == 1:
        parts = [_range(name, *values, sign="+") for name, values in found[0].items()]
        return f"{run.name} minus {baseline.name}, 95 % paired intervals: " + ", ".join(parts)
    parts = [
        f"{COLUMNS[name]} {mean_and_deviation([f[name][0] for f in found], name in IN_PER_CENT, sign='+')}"
        for name in found[0]
    ]
    names = f"{run.folder.parent.name} minus {baseline.folder.parent.name}"
    return f"{names}, seed by seed, mean and deviation of {len(pairs)}: " + ", ".join(parts)


def _checks(names: list[str], evaluations: list[dict[str, Any]]) -> str:
    """Calibration of ensemble and experts for their own priors, as the theorem needs it; the mean over the seeds."""
    lines = []
    checks = ([e["check"], *(expert for expert in e["expert_checks"])] for e in evaluations)
    for name, seeds in zip(names, zip(*checks, strict=True), strict=True):
        marginal, weighted, ece = (
            mean_and_deviation([check[key] for check in seeds], per_cent)
            for key, per_cent in (("marginal_kl", False), ("weighted_kl", False), ("weighted_ece", True))
        )
        lines.append(f"  {name}: average prediction, KL {marginal}; weighted to its prior, KL {weighted}, ECE {ece} %")
    return (
        "Against the prior that each was made for (weighted: 0 if calibrated; - if a class has no test sample):\n"
        + "\n".join(lines)
    )


def _range(name: str, *values: float, sign: str = "") -> str:
    """Such as: accuracy 51.2 to 53.1; with a value before its bounds, accuracy +2.1 (+1.2 to +3.1)."""
    digits, scale = (1, 100) if name in IN_PER_CENT else (3, 1)
    *value, low, high = (f"{scale * number:{sign}.{digits}f}" for number in values)
    return f"{COLUMNS[name]} {value[0]} ({low} to {high})" if value else f"{COLUMNS[name]} {low} to {high}"
