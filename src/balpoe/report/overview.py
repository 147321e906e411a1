"""The sections of a report that say what there is: data, result, groups of classes, seeds, recipe."""

from collections.abc import Sequence
from pathlib import PurePath
from statistics import fmean

import torch

from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.evaluate import compare, evaluate
from balpoe.experiments.recipe import Recipe, recipe_toml
from balpoe.method.priors import class_counts
from balpoe.report.console import mean_and_deviation, score_table
from balpoe.report.deployment import deployment_scores
from balpoe.report.explorer.pack import explorer
from balpoe.report.inputs import Subject
from balpoe.report.plots import plot_class_counts, plot_groups
from balpoe.report.render import Code, Figure, Fragment, Section, Table
from balpoe.report.text import (
    group_masks,
    interval_text,
    mean_score,
    per_cent,
    points,
    range_text,
    seed_name,
    seeds_score,
)

__all__ = [
    "counts_section",
    "deployment_section",
    "explorer_section",
    "groups_section",
    "recipe_section",
    "result_section",
    "seeds_section",
    "what_section",
]

GROUPS = ("accuracy", "many", "medium", "few")
COMPARED = ("accuracy", "many", "medium", "few", "rarest_third", "ece")  # in the sentence about a baseline


def what_section(subject: Subject) -> Section:
    """What was trained on what."""
    predictions, evaluation = subject.predictions[0], subject.evaluations[0]
    counts = predictions.class_counts
    largest, smallest = int(counts.max()), int(counts.min())
    rows = [
        ["classes", f"{predictions.num_classes:,}"],
        ["training samples", f"{int(counts.sum()):,}"],
        ["largest and smallest class", f"{largest:,} and {smallest:,}"],
        ["test samples", f"{len(predictions):,}"],
        ["experts", f"{predictions.num_experts}"],
    ]
    if predictions.parameters is not None:
        rows.append(["parameters", f"{predictions.parameters:,}"])
    if predictions.multiply_adds is not None:
        rows.append(["multiply-adds a sample", f"{predictions.multiply_adds / 1e6:,.3g} million"])
    ratio = f", {largest / smallest:,.3g} times as many of the most frequent as of the rarest" if smallest else ""
    where = "samples"
    if subject.runs:
        run, recipe = subject.runs[0], subject.runs[0].recipe()
        environment = run.environment()
        own = recipe.dataset == "own" and recipe.data_root
        where = f"samples of {PurePath(recipe.data_root).name if own else recipe.dataset}"
        lambdas = ", ".join(f"{value:g}" for value in recipe.expert_lambdas)
        rows[4:5] = [["experts", f"{predictions.num_experts}, with lambda {lambdas}"], ["network", recipe.network]]
        rows += [
            ["epochs", f"{recipe.epochs}"],
            ["training time", f"{fmean(run.seconds() for run in subject.runs):,.0f} s"],
            ["machine", f"{environment.get('gpu') or environment.get('system', '')}"],
        ]
    sentence = (
        f"Trained on {int(counts.sum()):,} {where} in {predictions.num_classes:,} classes{ratio}; "
        f"measured on {evaluation['samples']:,} test samples."
    )
    return Section("What was trained on what", [sentence], [Table(["", ""], rows)])


def result_section(subject: Subject, beside: Sequence[Subject], baseline: Subject | None) -> Section:
    """The result in one line, the baseline beside it, and all scores."""
    first, seed = subject.evaluations[0], seed_name(subject)
    bounds = first["intervals"].get("accuracy")
    interval = f" (95 % interval{seed} {range_text(*bounds)})" if bounds else ""
    sentences = [
        f"{seeds_score(subject, 'accuracy')} % of the test samples are recognised{interval}; the mean over the classes "
        f"is {seeds_score(subject, 'balanced_accuracy')} %.",
        *([] if baseline is None else [_difference(subject, baseline)]),
        *_posthoc(subject),
        *_other_groups(subject, beside),
    ]
    headings, rows = score_table({each.name: each.evaluations for each in (subject, *beside)})
    caption = "Mean and deviation over the seeds." if any(len(s.evaluations) > 1 for s in (subject, *beside)) else ""
    intervals = [[METRICS[name].title, interval_text(name, *bounds)] for name, bounds in first["intervals"].items()]
    exhibits = [Table(headings, rows, caption)]
    if intervals:
        exhibits.append(Table(["", "95 % interval"], intervals, f"Over the test samples{seed}."))
    return Section("The result", sentences, exhibits)


def _difference(subject: Subject, baseline: Subject) -> str:
    """Seed by seed on the same test samples; with an interval where there is one pair, a deviation where several."""
    pairs = list(zip(subject.predictions, baseline.predictions, strict=False))
    found = [compare(ours, theirs, shot_groups=subject.shot_groups) for ours, theirs in pairs]
    same = _same_counts(subject, baseline)
    names = {key: METRICS[key].label for key in COMPARED if key in found[0] and (same or key in ("accuracy", "ece"))}
    start = (
        f"{baseline.name} has {seeds_score(baseline, 'accuracy')} %. The difference in points, on the same test samples"
    )
    if len(pairs) == 1:
        parts = [f"{label} {points(*found[0][key])}" for key, label in names.items()]
        return f"{start}, with its 95 % interval: {', '.join(parts)}."
    parts = [
        f"{label} {mean_and_deviation([each[key][0] for each in found], per_cent=True, sign='+')}"
        for key, label in names.items()
    ]
    return f"{start}, mean and deviation of {len(pairs)} seeds: {', '.join(parts)}."


def _other_groups(subject: Subject, beside: Sequence[Subject]) -> list[str]:
    others = [each.name for each in beside if not _same_counts(subject, each)]
    return (
        [f"Trained on other numbers of samples, with shot groups of their own: {', '.join(others)}."] if others else []
    )


def _same_counts(subject: Subject, other: Subject) -> bool:
    return torch.equal(subject.predictions[0].class_counts, other.predictions[0].class_counts)


def _posthoc(subject: Subject) -> list[str]:
    """What moving the logits to the uniform prior would give, for a classifier that is made for another one."""
    predictions = subject.predictions[0]
    prior = predictions.source_prior
    if prior is None:
        return predictions.caveats
    if float(prior.max() - prior.min()) < 1e-6:
        return []
    tested = class_counts(predictions.targets, predictions.num_classes) > 0
    uniform = tested / tested.sum()
    moved = [evaluate(each, uniform, shot_groups=subject.shot_groups, num_resamples=0) for each in subject.predictions]
    trained = torch.allclose(prior, predictions.train_prior.to(prior), atol=1e-6)
    made = "the class frequencies of the training set" if trained else "other class frequencies than equal ones"
    rest = "" if bool(tested.all()) else ", over the classes that have a test sample,"
    parts = [f"balanced accuracy {mean_and_deviation([each.balanced_accuracy for each in moved], per_cent=True)} %"]
    parts[0] += f" instead of {seeds_score(subject, 'balanced_accuracy')} %"
    if moved[0].few is not None:
        few = mean_and_deviation([each.few for each in moved], per_cent=True)
        parts.append(f"few-shot classes {few} instead of {seeds_score(subject, 'few')} %")
    return [
        f"It is made for {made}. Moved to equal ones after the fact{rest} by logit adjustment, without retraining (the "
        f"explorer below does it), it has: {', '.join(parts)}."
    ]


def deployment_section(subject: Subject, prior: str, validation: str | None) -> Section:
    """The scores under the deployment prior, as trained and adjusted."""
    names = [run.folder.name for run in subject.runs] or [subject.name]
    found = deployment_scores(
        dict(zip(names, subject.predictions, strict=True)), prior, validation, subject.shot_groups
    )
    headings, rows = score_table({name: tuple(scores) for name, scores in found.rows.items()})
    sentence = f"Measured on {len(subject.predictions[0]):,} test samples{found.what}."
    return Section("Under the deployment prior", [sentence, *found.sentences], [Table(headings, rows)])


def counts_section(subject: Subject) -> Section:
    """The training samples of each class."""
    predictions = subject.predictions[0]
    counts = predictions.class_counts.tolist()
    groups = {name: mask.tolist() for name, mask in group_masks(subject).items()}
    few, many = subject.shot_groups
    sizes = {name: sum(members) for name, members in groups.items()}
    text = (
        f"Classes with more than {many} training samples (many-shot): {sizes['many']:,}; with fewer than {few} "
        f"(few-shot): {sizes['few']:,}; between the two: {sizes['medium']:,}."
    )
    order = sorted(range(len(counts)), key=lambda label: -counts[label])
    group = {label: name for name, members in groups.items() for label in range(len(counts)) if members[label]}
    rows = [[predictions.class_names[label], f"{counts[label]:,}", group[label]] for label in order]
    figure = Figure(
        "class-counts", lambda figure: plot_class_counts(counts, groups, figure.subplots()), (8, 3),
        f"Training samples of each class, from {max(counts):,} down to {min(counts):,}. {text}",
        Table(["class", "training samples", "group"], rows),
    )  # fmt: skip
    return Section("How the training samples are spread", [text], [figure])


def groups_section(subject: Subject, beside: Sequence[Subject]) -> Section:
    """Many-, medium- and few-shot classes."""
    methods = {each.name: [mean_score(each, name) for name in GROUPS] for each in (subject, *beside)}
    rows = [
        [each.name, *(per_cent(value) for value in (*methods[each.name], mean_score(each, "rarest_third")))]
        for each in (subject, *beside)
    ]
    few, many = mean_score(subject, "few"), mean_score(subject, "many")
    text = "Accuracy on frequent and on rare classes, in per cent."
    if few is not None and many is not None:
        text = f"Rare classes are recognised in {100 * few:.1f} % of the cases, frequent ones in {100 * many:.1f} %."
    figure = Figure(
        "shot-groups", lambda figure: plot_groups(methods, figure.subplots()), (8, 3.2), text,
        Table(["", "all", "many", "medium", "few", "rarest third"], rows),
    )  # fmt: skip
    return Section("Frequent and rare classes", [text], [figure])


def explorer_section(subject: Subject) -> Section:
    """The prior explorer."""
    found = explorer(subject.predictions[0], shot_groups=subject.shot_groups)
    seed = seed_name(subject)
    return Section(
        "Try another deployment prior",
        [f"One of the seeds{seed}."] if seed else [],
        [Fragment(found.html, "The HTML page has a control for this.")],
    )


def seeds_section(subject: Subject) -> Section:
    """Each seed, and their mean and deviation."""
    names = [run.folder.name for run in subject.runs]
    each = {name: (evaluation,) for name, evaluation in zip(names, subject.evaluations, strict=True)}
    headings, rows = score_table({**each, "mean and deviation": subject.evaluations})
    text = f"Trained {len(names)} times with different seeds: how much of a difference is random."
    return Section("Seed by seed", [text], [Table(headings, rows)])


def recipe_section(subject: Subject) -> Section:
    """Recipe and environment, to copy."""
    if not subject.runs:
        text = "The predictions came without a recipe; they were measured as they are."
        return Section("How to do it again", [text])
    run = subject.runs[0]
    recipe = recipe_toml(run.recipe().without_places())
    environment = run.environment()
    lines = [
        f"{name}: {value}" for name, value in environment.items() if not isinstance(value, dict) and value is not None
    ]
    packages = environment.get("packages")
    lines += [f"{name} {version}" for name, version in packages.items()] if isinstance(packages, dict) else []
    return Section(
        "How to do it again",
        [_again(run.recipe())],
        [Code("recipe.toml", recipe), Code("Where it was trained", "\n".join(lines))],
    )


def _again(recipe: Recipe) -> str:
    """The command, for any folder: what somebody has to fill in has a name, and no place of a machine is told."""
    words, missing = ["balpoe", "train", "recipe.toml"], []
    if recipe.dataset == "own":
        words += ["--data-root", "DATA"]
        missing.append(f"DATA, the path of {PurePath(recipe.data_root).name}")
    if recipe.weights_version:
        words += ["--weights", "WEIGHTS"]
        missing.append(f"WEIGHTS, the path of {PurePath(recipe.weights).name}")
    where = f", with {' and '.join(missing)}," if missing else ""
    return f"Save the recipe as recipe.toml and train it{where} with the command: {' '.join(words)}"
