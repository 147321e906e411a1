"""The sections of a report that say what there is: data, deployment prior, explorer, seeds, recipe."""

from collections.abc import Sequence
from pathlib import PurePath
from statistics import fmean

from balpoe.experiments.recipe import Recipe, recipe_toml
from balpoe.report.console import score_table
from balpoe.report.deployment import deployment_scores
from balpoe.report.explorer.pack import explorer
from balpoe.report.inputs import Subject
from balpoe.report.plots import WIDTH, plot_class_counts
from balpoe.report.render import Code, Figure, Fragment, Section, Table
from balpoe.report.text import group_masks, seed_name

__all__ = [
    "counts_section",
    "deployment_section",
    "explorer_section",
    "recipe_section",
    "seeds_section",
    "what_section",
]


def what_section(subject: Subject, beside: Sequence[Subject] = ()) -> Section:
    """What was trained on what, and which runs it is."""
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
        experts = f"{predictions.num_experts}, with lambda {lambdas}" if lambdas else f"{predictions.num_experts}"
        rows[4:5] = [["experts", experts], ["network", recipe.network]]
        rows += [
            ["epochs", f"{recipe.epochs or len(run.losses())}"],  # 0 asks for a number to be chosen
            ["training time", f"{fmean(run.seconds() for run in subject.runs):,.0f} s"],
            ["machine", f"{environment.get('gpu') or environment.get('system', '')}"],
        ]
    rows += [[f"run of {each.name}", each.place] for each in (subject, *beside) if each.place not in each.name]
    sentence = (
        f"Trained on {int(counts.sum()):,} {where} in {predictions.num_classes:,} classes{ratio}; "
        f"measured on {evaluation['samples']:,} test samples."
    )
    return Section("What was trained on what", [sentence], [Table(["", ""], rows)], narrow=True)


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
        "class-counts", lambda figure: plot_class_counts(counts, groups, figure.subplots()), (WIDTH, 2.8),
        f"Training samples of each class, from {max(counts):,} down to {min(counts):,}. {text}",
        Table(["class", "training samples", "group"], rows),
    )  # fmt: skip
    return Section("How the training samples are spread", [text], [figure])


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
    return Section("Seed by seed", [text], [Table(headings, rows)], narrow=True)


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
        narrow=True,
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
