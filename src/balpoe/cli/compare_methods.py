"""Several methods on the same data: what is trained, what is printed, and the page."""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from balpoe.baselines.catalogue import METHODS, load_method
from balpoe.cli.compare_search import searched
from balpoe.cli.compare_trainings import Budget, Job, train_jobs
from balpoe.cli.train_seeds import look_through, slow_here
from balpoe.errors import UserError
from balpoe.experiments.build import default_batch, default_epochs
from balpoe.experiments.comparison import (
    Comparison,
    Row,
    Trained,
    adjusted_after,
    compared,
    held_out,
    listed,
    trained,
    verdict_of_all,
)
from balpoe.experiments.held_out_scores import give_calibration
from balpoe.experiments.method_fit import DataFacts, check_held_out, data_facts, misfit, trained_as
from balpoe.experiments.method_recipes import method_recipe
from balpoe.experiments.recipe import Recipe, updated
from balpoe.experiments.run_folder import Run, set_aside
from balpoe.experiments.run_names import differences_text, run_folder
from balpoe.experiments.search import Search, with_values
from balpoe.experiments.weights_version import with_weights_version
from balpoe.report import render
from balpoe.report.comparison import accuracy_table, calibration_table, write_comparison
from balpoe.report.console import command_line, console
from balpoe.report.write import check_output
from balpoe.training.distributed import led_by_first

__all__ = ["Asked", "compare_methods"]

LEAST_EPOCHS = 20  # of own data: a dozen methods on 10,000 features are to end within half an hour on two cores


class Asked(NamedTuple):
    """What a comparison is asked for."""

    folder: Path
    """Folder of the comparison, with one folder for each method."""
    data: str
    """What the data are called."""
    command: str
    """The command, without its paths."""
    changed: str
    """How the recipe of all methods differs from the one that such data get by themselves; empty if in nothing."""
    start: Recipe
    """The recipe of all methods."""
    seeds: list[int]
    every: bool
    """Whether all methods that fit are asked for."""
    left_out: dict[str, str]
    """Why methods of the catalogue do not fit the recipe."""
    minutes: float
    choose: bool
    """Whether to choose by held-out samples, and to leave the test part to the method that is chosen."""
    tune: tuple[str, ...]
    """What to search for."""
    trials: int
    fresh: bool
    page: Path | None

    @property
    def stem(self) -> str:
        """Name of the files that are written."""
        return ("choice" if self.choose else "comparison") + ("-tuned" if self.tune else "")


def compare_methods(recipes: Mapping[str, Recipe], asked: Asked) -> None:
    """Train each method with each seed; print which is best, and write the page.

    Of several processes that a launcher started, the first one does; the others help it to train.

    Args:
        recipes: Recipe of each method.
        asked: What else is asked for.
    """
    start = asked.start
    command = functools.partial(_compare, recipes, asked)
    led_by_first(command, device=start.device, devices=start.devices, num_nodes=start.num_nodes)


def _compare(recipes: Mapping[str, Recipe], asked: Asked) -> None:
    """Look through the data, search for settings if asked to, then train and compare."""
    if asked.page is not None:
        check_output(asked.page, [])
    out, budget = console(), Budget(asked.minutes)
    recipes, asked, facts = _looked_through(out, recipes, asked)
    recipes, left_out = _fitting(recipes, facts, asked)
    for name, reason in left_out.items():
        out.print(f"Left out: {name} ({reason})")
    searches = _searches(out, recipes, asked, budget)
    if short := [search.recipe.title for search in searches.values() if len(search.trials) < asked.trials]:
        out.print(f"Missing: trials of {listed(short)}. The same command goes on with them.")
        return
    recipes = {
        name: with_values(recipe, searches[recipe.method].best.values) if recipe.method in searches else recipe
        for name, recipe in recipes.items()
    }
    about = {"left_out": left_out, "command": asked.command, "changed": asked.changed, "searches": _found(searches)}
    _train_and_compare(out, recipes, asked, facts, budget, about)


def _train_and_compare(
    out: Console,
    recipes: Mapping[str, Recipe],
    asked: Asked,
    facts: DataFacts,
    budget: Budget,
    about: Mapping[str, Any],
) -> None:
    """Train what is to be compared, as far as there is time; tell what was found, and what is missing."""
    jobs = _jobs(recipes, asked, facts)
    line = _held_out_line if asked.choose else _test_line
    trainings = list({job.folder: job for job in jobs.values()}.values())
    for name, recipe in recipes.items():
        if (same := jobs[name, asked.seeds[0]].recipe).method != recipe.method:
            out.print(f"{recipe.title} is the same training as {same.title}: it is done once")
    failed = train_jobs(out, trainings, budget, fresh=asked.fresh, line=line)
    missing = {job.label: failed.get(job.folder, "") for job in trainings if not job.done}
    if len(missing) == len(trainings):
        if failed:
            raise UserError(next(iter(failed.values())))
        out.print("No training has ended in time. The same command goes on with them.")
        return
    told = tuple(f"{label}: {why}" if why else label for label, why in missing.items())
    shared = {"data": asked.data, "missing": told, "about": {**facts._asdict(), **about}}
    if not asked.choose:
        _show(out, _comparison(recipes, jobs, trained, shared, asked), asked)
    elif all(missing.values()):  # what fails will fail again; what only waits for its time may be the best
        _choose(out, recipes, jobs, shared, asked, facts, budget)
    if missing:
        out.print(f"Missing: {'; '.join(told)}. The same command goes on with it.")


def _searches(out: Console, recipes: Mapping[str, Recipe], asked: Asked, budget: Budget) -> dict[str, Search]:
    """The searches of the methods that are trained and have what is searched for."""
    if not asked.tune:
        return {}
    trained_ones = {recipe.method: recipe for recipe in recipes.values()}
    place = asked.folder / "-".join(("search", *asked.tune))
    if asked.fresh and (aside := set_aside(place)):
        out.print(f"The earlier search is kept in {aside}")
    return searched(out, trained_ones, asked.tune, trials=asked.trials, seeds=asked.seeds, folder=place, budget=budget)


def _found(searches: Mapping[str, Search]) -> dict[str, Any]:
    """What the searches found, for the page: score of each trial, and the best values."""
    return {
        search.recipe.title: {
            "scores": [trial.score for trial in search.trials],
            "given_up": [trial.pruned for trial in search.trials],
            "best": search.best.values,
        }
        for search in searches.values()
    }


def _looked_through(
    out: Console, recipes: Mapping[str, Recipe], asked: Asked
) -> tuple[dict[str, Recipe], Asked, DataFacts]:
    """Say what own data hold; the recipes with the versions of data and weights, and what is known of the data."""
    start = with_weights_version(asked.start)
    if start.dataset == "own":
        start = updated(start, {"data_version": look_through(out, start).version})
    if slow_here(start):
        out.print("No GPU is used: this recipe is made for one, and takes hours to days on a CPU.")
    facts = data_facts(start)
    if start.epochs == 0:  # as many for each method: held-out samples would ask for more here and for fewer there
        samples, batch_size = sum(facts.class_counts), start.batch_size
        if not facts.images:
            batch_size = default_batch(samples, batch_size)
        epochs = default_epochs(samples, batch_size, least=LEAST_EPOCHS)
        start = updated(start, {"epochs": epochs, "batch_size": batch_size})
    same = {name: getattr(start, name) for name in ("data_version", "weights_version", "epochs", "batch_size")}
    return {name: updated(recipe, same) for name, recipe in recipes.items()}, asked._replace(start=start), facts


def _fitting(recipes: Mapping[str, Recipe], facts: DataFacts, asked: Asked) -> tuple[dict[str, Recipe], dict[str, str]]:
    """The methods that fit the data; where all were asked for, the others are left out, and it is said why."""
    if asked.choose or asked.tune:
        check_held_out(facts)
    reasons = {name: reason for name, recipe in recipes.items() if (reason := misfit(recipe, facts)) is not None}
    if asked.choose:
        learning = [name for name, recipe in recipes.items() if load_method(recipe.method).test_views is not None]
        reasons |= dict.fromkeys(learning, "it learns from the test images, which have no say in a choice")
    for name, reason in reasons.items():
        if not asked.every or len(reasons) == len(recipes):
            raise UserError(f"{name} does not fit these data: {reason}")
    return {name: each for name, each in recipes.items() if name not in reasons}, {**asked.left_out, **reasons}


def _jobs(recipes: Mapping[str, Recipe], asked: Asked, facts: DataFacts) -> dict[tuple[str, int], Job]:
    """The training of each method and seed, all methods with the first seed first; some methods share theirs."""
    jobs, shared = {}, trained_as(recipes, facts)
    for seed in asked.seeds:
        for name in recipes:
            first = shared[name]
            recipe = updated(recipes.get(first, recipes[name]), {"seed": seed})
            called = f"{first}-tuned" if asked.tune else first
            # What a search has chosen finds a place beside other seeds: to refuse it would throw the search away.
            anew = asked.seeds if asked.fresh else ()
            jobs[name, seed] = Job(recipe, run_folder(asked.folder, called, recipe, fixed=not asked.tune, anew=anew))
    return jobs


def _comparison(
    recipes: Mapping[str, Recipe],
    jobs: Mapping[tuple[str, int], Job],
    read: Callable[[Run], Trained],
    about: Mapping[str, Any],
    asked: Asked,
) -> Comparison:
    """What `read` finds in the runs that are finished, side by side."""
    rows, trainings, (few, many) = {}, {}, asked.start.shot_groups
    for name, recipe in recipes.items():
        entry = METHODS[name]
        title = entry.title if entry.evaluates else recipe.title
        usual = method_recipe(asked.start, name, {})
        changes = differences_text(recipe, usual)
        runs = [Run(jobs[name, seed].folder) for seed in asked.seeds]
        rows[name] = Row(name, title, runs[0].folder.parent.name, summary=entry.summary, changes=changes)
        found = [read(run) for run in runs if run.finished]
        trainings[name] = [adjusted_after(each, (few, many)) for each in found] if entry.evaluates else found
    return compared(rows, trainings, (few, many), **about)


def _show(out: Console, found: Comparison, asked: Asked) -> None:
    """Print the tables, the verdict and what to do next; write the page."""
    _print_tables(out, found)
    out.print(verdict_of_all(found))
    _write(out, found, asked)
    out.print("More about the best: " + command_line("report", asked.folder / found.rows[0].folder), soft_wrap=True)


def _write(out: Console, found: Comparison, asked: Asked) -> None:
    """Write the comparison, and then its page."""
    found.save(asked.folder / f"{asked.stem}.json")
    page = write_comparison(found, asked.page or asked.folder / f"{asked.stem}.html")[0]
    out.print(f"The page: {page}; open it in a browser")


def _print_tables(out: Console, found: Comparison) -> None:
    for table in (accuracy_table(found), calibration_table(found)):
        print_table(out, table)


def print_table(out: Console, table: render.Table) -> None:
    """Print a table of the page on the terminal."""
    shown = Table(title=table.caption or None, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for place, heading in enumerate(table.headings):
        words = re.sub(r"(\w{7,}-|, )(?=\w)", r"\1\n", heading)  # forward-50: on two lines, so that all fits
        shown.add_column(
            words, justify="right" if place else "left", no_wrap=place > 0, max_width=None if place else 24
        )
    for row in table.rows:
        shown.add_row(*row)
    out.print(shown)
    out.print()


def _test_line(run: Run) -> str:
    scores = run.evaluation()
    asked = f", {scores['router']['experts_asked']['all']:.2f} experts asked" if scores.get("router") else ""
    return f"balanced accuracy {100 * scores['balanced_accuracy']:.1f} %, ECE {100 * scores['ece']:.1f} %{asked}"


def _held_out_line(run: Run) -> str:
    scores = held_out(run).evaluation
    return f"held-out balanced accuracy {100 * scores['balanced_accuracy']:.1f} %"


def _choose(
    out: Console,
    recipes: Mapping[str, Recipe],
    jobs: Mapping[tuple[str, int], Job],
    about: Mapping[str, Any],
    asked: Asked,
    facts: DataFacts,
    budget: Budget,
) -> None:
    """Choose by held-out samples alone; then measure the method that is chosen, trained on everything."""
    found = _comparison(recipes, jobs, held_out, {**about, "what": "held-out"}, asked)
    _print_tables(out, found)
    out.print(verdict_of_all(found))
    best = found.rows[0]
    runs = _on_everything(out, best, jobs, asked, facts, budget)
    measured = _comparison({best.method: recipes[best.method]}, runs, trained, about, asked)
    more = f" ({facts.spared:,} more than for the choice)" if facts.spared else ""
    out.print(f"Chosen: {best.title}. Trained on all training samples{more}, on the test part, which had no say in it:")
    _print_tables(out, measured)
    choice = {"method": best.method, "title": best.title, "test": asdict(measured)}
    _write(out, replace(found, choice=choice), asked)


def _on_everything(
    out: Console, best: Row, jobs: Mapping[tuple[str, int], Job], asked: Asked, facts: DataFacts, budget: Budget
) -> dict[tuple[str, int], Job]:
    """The runs of the method that was chosen; anew where they went without some training samples."""
    runs = {key: job for key, job in jobs.items() if key[0] == best.method}
    if not facts.spared:
        return runs
    folder = asked.folder / f"{best.folder}-on-everything"
    whole = {key: Job(updated(job.recipe, {"calibrate": False}), folder / job.folder.name) for key, job in runs.items()}
    train_jobs(out, list(whole.values()), budget, fresh=asked.fresh, line=lambda run: "trained on everything")
    if not all(job.done for job in whole.values()):
        return runs
    for key, job in whole.items():  # no sample is left to calibrate by: what the others said holds
        found = Run(runs[key].folder).predictions().calibration
        if found is not None and Run(job.folder).predictions().calibration is None:
            give_calibration(Run(job.folder), found)
    return whole
