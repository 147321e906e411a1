"""The metrics of runs, models and saved predictions, printed."""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from balpoe.deployment.loaded_model import load
from balpoe.errors import UserError
from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.deployment_prior import Labelled, prior_template
from balpoe.evaluation.evaluate import SHOT_GROUPS, compare
from balpoe.evaluation.experts_asked import router_notes
from balpoe.evaluation.predictions import Predictions, load_predictions
from balpoe.evaluation.shifted_tests import full_evaluation
from balpoe.experiments.run_folder import Run, evaluate_model, runs_of
from balpoe.files import write_text
from balpoe.method.lambdas import expert_names
from balpoe.report.console import command_line, console, mean_and_deviation, print_scores, shifted_table
from balpoe.report.deployment import print_deployment_scores

__all__ = ["evaluate", "write_prior_template"]


def evaluate(
    path: str,
    *,
    baseline: str | None,
    thresholds: tuple[int, ...] | None,
    look: "Look",
    prior: str | None = None,
    validation: str | None = None,
) -> None:
    """Print the metrics of a run, of all seeds of one, of a model's file or of predictions.

    Args:
        path: The run, model or predictions.
        baseline: Run or predictions to print the difference to.
        thresholds: Thresholds of the shot groups; by default the run's.
        look: How a model is asked that has not predicted its test set so.
        prior: Deployment prior to print the scores under instead, as trained and adjusted.
        validation: Labelled predictions for the prior "estimate".
    """
    out = console()
    if look.views and any(_are_predictions(each) for each in (path, baseline) if each is not None):
        raise UserError("--views wants a model and its test images, but these are predictions; give a run or a model")
    if _are_predictions(path):
        predictions = load_predictions(path)
        groups = SHOT_GROUPS if thresholds is None else (thresholds[0], thresholds[1])
        if prior is None:
            _print_predictions(out, path, predictions, baseline, groups)
        else:
            print_deployment_scores(out, path, {"seed-0": predictions}, prior, validation, groups)
        return
    with tempfile.TemporaryDirectory() as folder:
        runs = _runs(out, path, Path(folder), look)
        _check_alike(runs)
        if prior is None:
            place = Path(folder) / "baseline"
            others = None if baseline is None else runs_of(baseline)
            if baseline is not None and look.views:
                others = _runs(out, baseline, place, look._replace(weights=""))
            saved = not look.views and not Path(path).is_file()
            _print_evaluation(out, path, runs, others, thresholds, saved=saved)
        else:
            few, many = thresholds or runs[0].recipe().shot_groups
            seeds = {run.folder.name: run.predictions() for run in runs}
            print_deployment_scores(out, path, seeds, prior, validation, (few, many))


class Look(NamedTuple):
    """How a model looks at its test set."""

    views: str = ""
    """Views of each image over which log-probabilities are averaged; one without, as the saved predictions are."""
    data_root: str = ""
    """Folder of the test set of a model's file."""
    weights: str = ""
    """File of the backbone's weights, for a model that holds adapters alone."""

    def predicted(self, file: str | Path, folder: Path, data_root: str = "") -> Run:
        """Return a run, in a new folder, of what a model's file says."""
        model = load(file, weights=self.weights)
        return evaluate_model(model, folder, self.data_root or data_root, views=self.views)


def _are_predictions(path: str) -> bool:
    return Path(path).suffix == ".npz" or (Path(path) / "predictions.json").is_file()


def _runs(out: Console, path: str, folder: Path, look: Look) -> list[Run]:
    """The runs of a path; what has no predictions of the views that are wanted predicts its test set in a folder."""
    if Path(path).is_file():
        out.print(f"{path}: predicting {f'{look.views} of ' if look.views else ''}its test set")
        return [look.predicted(path, folder / "model" / "seed-0")]
    runs = runs_of(path)
    return [_viewed(out, run, folder / run.name, look) for run in runs] if look.views else runs


def _viewed(out: Console, run: Run, folder: Path, look: Look) -> Run:
    """A run with predictions of several views, in another folder."""
    before = run.predictions()
    out.print(f"{run.folder}: predicting {look.views} of its test set")
    viewed = look.predicted(run.folder / "model.safetensors", folder, run.recipe().data_root)
    if not torch.equal(viewed.predictions().targets, before.targets):
        raise UserError(f"the test samples of {run.folder} are not what they were in training; train on them again")
    return viewed


def write_prior_template(path: str, out: str, weights: str = "") -> None:
    """Write the classes of a run, a model or predictions with their training shares, for --prior; print what is next.

    Args:
        path: The run, model or predictions.
        out: File to write, .csv or .json.
        weights: File of the backbone's weights, for a model's file that holds adapters alone.
    """
    file = Path(out)
    if file.suffix not in (".csv", ".json") or file.exists():
        why = "is there already" if file.exists() else "is neither a .csv nor a .json file"
        raise UserError(f"--prior-template {out} {why}; give another name")
    if _are_predictions(path):
        labelled: Labelled = load_predictions(path)
    else:
        labelled = load(path, weights=weights) if Path(path).is_file() else runs_of(path)[0].predictions()
    write_text(file, prior_template(labelled, file.suffix[1:]))
    console().print(f"{out}: {labelled.num_classes:,} classes with their training shares; edit them, then")
    console().print("  " + command_line("evaluate", path, "--prior", out), soft_wrap=True)


def _print_evaluation(
    out: Console,
    path: str,
    runs: list[Run],
    baselines: list[Run] | None,
    thresholds: tuple[int, ...] | None,
    saved: bool,
) -> None:
    pairs = None if baselines is None else _pairs(runs, baselines)
    evaluations = [_evaluation(run, thresholds) for run in runs]
    where = "; accuracy of each class, with Wilson's interval: evaluation.json in the run" if saved else ""
    predictions = runs[0].predictions()
    _print_measured(out, path, evaluations, predictions, where)
    for caveat in (*predictions.caveats, *predictions.about_groups):
        out.print(caveat)
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
    out: Console, path: str, evaluations: list[dict[str, Any]], predictions: Predictions, where: str = ""
) -> None:
    experts = _expert_names(predictions)
    rows: dict[str, list[dict[str, Any]]] = {"ensemble": evaluations}
    for expert, name in enumerate(experts):
        rows[name] = [e["experts"][expert] for e in evaluations]
    print_scores(out, rows, title=f"{path}: {evaluations[0]['samples']:,} test samples")
    if len(evaluations) == 1:
        units = "test samples" if predictions.groups is None else "groups of test samples"
        out.print(_intervals(evaluations[0], units))
    out.print(shifted_table(evaluations))
    if evaluations[0]["check"] is not None:
        out.print(_checks(["ensemble", *experts], evaluations))
    first = evaluations[0]
    if first["parameters"] is not None:
        cost = f"{first['multiply_adds'] / 1e6:,.1f} million multiply-adds a sample"
        out.print(f"{first['parameters']:,} parameters, {cost}")
    for note in router_notes(evaluations):
        out.print(note)
    classwise = mean_and_deviation([e["classwise_ece"] for e in evaluations], per_cent=True)
    out.print(f"Classwise ECE {classwise} %{where}")


def _print_predictions(
    out: Console, path: str, predictions: Predictions, baseline: str | None, groups: tuple[int, int]
) -> None:
    """The same for predictions that belong to no run."""
    found = None if baseline is None else compare(predictions, load_predictions(baseline), shot_groups=groups)
    _print_measured(out, path, [full_evaluation(predictions, groups)], predictions)
    for caveat in (*predictions.caveats, *predictions.about_groups):
        out.print(caveat)
    if found is not None:
        parts = [_range(name, *values, sign="+") for name, values in found.items()]
        out.print(f"{path} minus {baseline}, 95 % paired intervals: " + ", ".join(parts))


def _expert_names(predictions: Predictions) -> list[str]:
    if predictions.lambdas is None or predictions.lambdas.ndim > 1:
        return [f"expert {expert + 1}" for expert in range(predictions.num_experts)]
    return expert_names(predictions.lambdas.tolist())


def _evaluation(run: Run, thresholds: tuple[int, ...] | None) -> dict[str, Any]:
    """The saved evaluation, or a new one for other shot groups."""
    saved = run.evaluation()
    if thresholds is None or thresholds == run.recipe().shot_groups:
        return saved
    return full_evaluation(run.predictions(), (thresholds[0], thresholds[1]))


def _intervals(evaluation: dict[str, Any], units: str) -> str:
    parts = [_range(name, *bounds) for name, bounds in evaluation["intervals"].items() if name != "mce"]
    return f"95 % intervals over the {units}: " + ", ".join(parts)


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
        f"{METRICS[name].title} {mean_and_deviation([f[name][0] for f in found], METRICS[name].per_cent, sign='+')}"
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
    *value, low, high = (METRICS[name].shown(number, sign) for number in values)
    return f"{METRICS[name].title} " + (f"{value[0]} ({low} to {high})" if value else f"{low} to {high}")
