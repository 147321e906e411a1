"""Training with one seed or several, with cross-entropy to compare with, and what is printed about it."""

import functools
from pathlib import Path
from typing import Any

from rich.console import Console

from balpoe.cli.train_choice import RecipeOf, Trainings, choose, say_what_is_asked
from balpoe.data.loading.image_files import PictureFiles
from balpoe.data.user.load import UserData
from balpoe.errors import UserError
from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.evaluate import evaluate
from balpoe.evaluation.experts_asked import router_notes
from balpoe.evaluation.metrics import rarest_third_is_few, shot_groups
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.rival import adjusted_rival, paired_difference, verdict
from balpoe.experiments.build import check_fits, own_data, takes_images
from balpoe.experiments.calibrate import Choice, calibration_notes
from balpoe.experiments.recipe import FOR_FEATURES, Recipe, updated
from balpoe.experiments.run_folder import Run, train_run, train_run_by_step
from balpoe.experiments.run_names import differences_text, named_recipe, run_folder
from balpoe.experiments.weights_version import with_weights_version
from balpoe.report.console import command_line, console, mean_and_deviation, print_scores
from balpoe.training.concurrent import TRAININGS_AT_ONCE, can_share_a_gpu, side_by_side
from balpoe.training.distributed import led_by_first
from balpoe.training.interrupts import Interrupt

__all__ = ["look_through", "slow_here", "train"]

CROSS_ENTROPY: dict[str, Any] = {
    "method": "balpoe", "method_settings": {}, "lambdas": (1.0,), "num_experts": 0, "mixup_alpha": 0.0,
    "temperature": 1.0,  # one that is known of several experts is not known of it
}  # fmt: skip


def train(recipe: Recipe, seeds: list[int], **options: Any) -> list[Run]:
    """Train a recipe with each seed; print the table and the next command.

    Of several processes that a launcher started, the first one does; the others help it to train, and get no runs.

    Args:
        recipe: The recipe to train.
        seeds: Seeds, for one run each.
        options: Keyword arguments of `_train`.
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
    automatic: RecipeOf | None = None,
) -> list[Run]:
    """Train a recipe with each seed; print the table and the next command.

    Args:
        recipe: The recipe to train.
        seeds: Seeds, for one run each.
        root: Folder of all runs.
        base: Name of the runs, or its beginning.
        start: The recipe that goes by this name.
        fixed: Whether the name was asked for.
        fresh: Whether to train anew.
        baseline: Whether to train plain cross-entropy first, to compare with.
        automatic: For own images of which nobody says what is to be trained: what makes a recipe of a choice.
    """
    out, images = console(), recipe.tune != "head"
    if recipe.dataset == "own":
        found = look_through(out, recipe)
        version = {"data_version": found.version}
        trainings = Trainings(root, base, seeds, baseline, fresh)
        if automatic is not None:
            recipe = start = choose(out, lambda choice: updated(automatic(choice), version), found, trainings)
        recipe, start = (updated(each, version) for each in (recipe, start))
        images = takes_images(recipe, found.train)
    check_fits(recipe, images)  # before cross-entropy is trained for it
    recipe, start = (with_weights_version(each) for each in (recipe, start))
    if recipe.dataset != "own" and slow_here(recipe):
        out.print("No GPU is used: this recipe is made for one, and takes hours to days on a CPU.")
    # A name that is taken is refused here, before anything is trained.
    where: dict[str, Any] = {"fixed": fixed, "start": start, "anew": seeds if fresh else ()}
    folders = [run_folder(root, base, updated(recipe, {"seed": seed}), **where) for seed in seeds]
    trains = fresh or not folders[0].exists()
    if trains and recipe.dataset == "own" and automatic is None and isinstance(found.train, PictureFiles):
        say_what_is_asked(out, recipe, found, trainings)
    same: dict[str, Any] = {"seeds": seeds, "root": root, "fixed": fixed, "fresh": fresh}
    plain: list[Run] = []
    if baseline:
        theirs = [updated(each, CROSS_ENTROPY) for each in (recipe, start)]
        plain = _train_seeds(out, theirs[0], base=f"{base}-cross-entropy", start=theirs[1], **same)
    runs = _train_seeds(out, recipe, base=base, start=start, **same)
    if plain:
        _print_comparison(out, plain, runs)
    else:
        _print_runs(out, runs)
    _print_use(out, runs)
    return runs


def slow_here(recipe: Recipe) -> bool:
    """Return whether a recipe wants a GPU, and none is used."""
    if recipe.network in FOR_FEATURES or recipe.tune == "head" or recipe.device == "mps":
        return False
    return recipe.devices == 1 and not can_share_a_gpu(recipe.device, recipe.devices)


def look_through(out: Console, recipe: Recipe) -> UserData:
    """Say what own data hold, and return them. Images in series want a decision first."""
    found = own_data(recipe, progress=True, look_for_series=True)
    if found.series and found.series.strong:
        raise UserError(found.series.sentence())
    counts = found.train.class_counts
    out.print(
        f"{recipe.data_root}: {len(counts):,} classes, {len(found.train):,} training samples ({int(counts.max()):,} to "
        f"{int(counts.min()):,} a class), {len(found.test):,} test samples"
    )
    for note in (*found.notes, *([found.series.sentence()] if found.series else [])):
        out.print(f"Note: {note}")
    return found


def _whole(runs: list[Run]) -> Path:
    """The run, or the folder of all seeds."""
    return runs[0].folder if len(runs) == 1 else runs[0].folder.parent


def _print_comparison(out: Console, plain: list[Run], runs: list[Run]) -> None:
    """Print this method beside cross-entropy, the numbers that matter with their intervals, and what to type next."""
    ours, (few, many) = runs[0].recipe().title, runs[0].recipe().shot_groups
    theirs = [run.predictions() for run in plain]
    adjusted = [rival for each in theirs if (rival := adjusted_rival(each)) is not None]
    rows = {"cross-entropy": [run.evaluation() for run in plain]}
    if adjusted:  # not if all classes are alike in training
        rows["cross-entropy, adjusted"] = [evaluate(each, shot_groups=(few, many)).to_dict() for each in adjusted]
    their_name = list(rows)[-1]
    ours = f"{ours}, this recipe" if ours in rows else ours
    rows[ours] = [run.evaluation() for run in runs]
    _print_scores(out, rows, runs)
    for name in _without_repeats(theirs[0], (few, many)):
        parts = [f"{method} {_with_interval(evaluations, name)}" for method, evaluations in rows.items()]
        out.print(f"{METRICS[name].title}: {', '.join(parts)}")
    difference = paired_difference([run.predictions() for run in runs], adjusted or theirs, shot_groups=(few, many))
    out.print(verdict(ours, their_name, difference))
    choice = Choice.load(plain[0].folder)
    if choice is not None and choice.rising:
        out.print(
            f"Cross-entropy was still learning where its training ended: be fair, try --epochs {2 * choice.epochs}."
        )
    out.print("Next, a page to look at and to show:")
    out.print("  " + command_line("report", _whole(runs), "--baseline", _whole(plain)), soft_wrap=True)


def _without_repeats(predictions: Predictions, thresholds: tuple[int, int]) -> list[str]:
    """The scores to say in words; none for a group that is all classes, or the same as another one."""
    few = shot_groups(predictions.class_counts, thresholds)["few"]
    same = rarest_third_is_few(predictions.class_counts, thresholds)
    return ["balanced_accuracy", *([] if bool(few.all()) else ["few"]), *([] if same else ["rarest_third"])]


def _print_runs(out: Console, runs: list[Run]) -> None:
    title = runs[0].recipe().title
    rows = {title if len(runs) == 1 else f"{title}, seed {run.recipe().seed}": [run.evaluation()] for run in runs}
    if len(runs) > 1:
        rows[f"{len(runs)} seeds"] = [run.evaluation() for run in runs]
    _print_scores(out, rows, runs)
    out.print("Next: " + command_line("evaluate", _whole(runs)), soft_wrap=True)


def _print_scores(out: Console, rows: dict[str, list[dict[str, Any]]], runs: list[Run]) -> None:
    print_scores(out, rows, title=runs[0].folder.parent.name)
    predictions = runs[0].predictions()
    notes = calibration_notes(runs[0].folder, runs[0].recipe(), runs[0].evaluation())
    routing = router_notes([run.evaluation() for run in runs])
    for caveat in (*predictions.caveats, *predictions.about_groups, *routing, *notes):
        out.print(caveat)


def _print_use(out: Console, runs: list[Run]) -> None:
    recipe = runs[0].recipe()
    if recipe.dataset == "own" and recipe.network not in FOR_FEATURES:
        out.print("Labels and probabilities of other images:")
        out.print("  " + command_line("predict", runs[0].folder, "IMAGES"), soft_wrap=True)


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
    jobs, announced, before = [], base, named_recipe(root, base, recipe, start)
    for seed in seeds:
        ours = updated(recipe, {"seed": seed})
        folder = run_folder(root, base, ours, fixed=fixed, start=start, anew=seeds if fresh else ())
        if folder.parent.name != announced:
            announced = folder.parent.name
            what = f" ({differences_text(ours, before)})" if before else ""
            out.print(f"The recipe differs from {base}{what}: its runs are kept in {folder.parent}")
        jobs.append((ours, folder))
    options: dict[str, Any] = {"fresh": fresh, "say": out.print}
    if len(jobs) > 1 and can_share_a_gpu(recipe.device, recipe.devices):
        with Interrupt() as interrupt:
            works = (train_run_by_step(*job, **options, interrupt=interrupt) for job in jobs)
            runs = sorted(side_by_side(works, TRAININGS_AT_ONCE), key=lambda run: seeds.index(run.recipe().seed))
    else:
        runs = [train_run(*job, **options) for job in jobs]
    return runs
