"""The trials of `balpoe compare --tune`: each method's settings, searched by held-out samples with the same budget."""

import shutil
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from balpoe.cli.compare_trainings import Budget
from balpoe.errors import UserError
from balpoe.evaluation.evaluate import evaluate
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.build import Assembly, assemble
from balpoe.experiments.held_out_scores import cross_fitted_by_step
from balpoe.experiments.recipe import Recipe, recipe_toml, toml_values, updated
from balpoe.experiments.run_folder import fitting, train_run_by_step
from balpoe.experiments.run_names import differences_text
from balpoe.experiments.search import Search, Trial, with_values
from balpoe.files import read_json, write_json
from balpoe.training.concurrent import TRAININGS_AT_ONCE, can_share_a_gpu, complete, side_by_side
from balpoe.training.interrupts import Interrupt, time_limit
from balpoe.training.launchers import in_one_process

__all__ = ["searched"]


def searched(
    out: Console,
    recipes: Mapping[str, Recipe],
    names: Sequence[str],
    *,
    trials: int,
    seeds: Sequence[int],
    folder: Path,
    budget: Budget,
) -> dict[str, Search]:
    """Search settings of each method that has them, as long as there is time; return the searches.

    Args:
        out: Console to print on.
        recipes: Recipe of each method that is trained.
        names: What to search for.
        trials: Number of trials of each method.
        seeds: Seeds of each trial; one that is below the median of the others after some of them is given up.
        folder: Folder of the searches.
        budget: Time that is left.
    """
    found = {name: Search(recipe, names, folder / f"{name}.jsonl") for name, recipe in recipes.items()}
    found = {name: search for name, search in found.items() if search.space}
    for search in found.values():
        _check_start(search, seeds)
    first = next(iter(recipes.values()))
    sharing = can_share_a_gpu(first.device, first.devices)
    with Interrupt() as interrupt, time_limit(budget.left, interrupt):
        ours = interrupt if in_one_process(first.devices, first.num_nodes) else None
        works = (_search(out, search, trials, seeds, folder, budget, ours) for search in found.values())
        try:
            for _ in side_by_side(works, TRAININGS_AT_ONCE) if sharing else map(complete, works):
                pass
        except KeyboardInterrupt:
            if budget.left > 0:
                raise  # somebody's
    return found


def _check_start(search: Search, seeds: Sequence[int]) -> None:
    """Refuse to go on with trials of another recipe, other data or other seeds; keep those that a search begins with.

    Args:
        search: Search of one method.
        seeds: Seeds of each trial.
    """
    file = search.file.with_suffix(".start.json")
    if file.exists():
        start = read_json(file)
        try:
            before, theirs = updated(Recipe(), toml_values(start["recipe"])), list(start["seeds"])
        except (KeyError, TypeError, UserError) as error:
            raise UserError(f"{file} is garbled ({error}); choose another --name, or --fresh") from error
        changes = [text] if (text := differences_text(search.recipe, before)) else []
        changes += [f"seeds {','.join(map(str, seeds))}"] if list(seeds) != theirs else []
        if changes:
            what = ", ".join(changes)
            raise UserError(f"{search.file} is another search (yours has {what}); choose another --name, or --fresh")
    elif search.file.exists():
        return  # of an earlier version, which did not keep it
    write_json(file, {"recipe": recipe_toml(search.recipe.without_places()), "seeds": list(seeds)})


def _search(
    out: Console,
    search: Search,
    trials: int,
    seeds: Sequence[int],
    folder: Path,
    budget: Budget,
    interrupt: Interrupt | None,
) -> Generator[Any, None, None]:
    """Try settings of one method until there are as many trials as wanted, or no more time."""
    title = search.recipe.title
    while len(search.trials) < trials and budget.left > 0:
        values = search.propose()
        place = folder / search.recipe.method / f"trial-{len(search.trials)}"
        trial = yield from _tried(search, values, seeds, place, interrupt)
        search.record(trial)
        shutil.rmtree(place, ignore_errors=True)
        shown = ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
        )
        given_up = ", given up" if trial.pruned else ""
        out.print(
            f"{budget.spent / 60:6.1f} min  {title}, trial {len(search.trials)} of {trials}: held-out balanced "
            f"accuracy {100 * trial.score:.1f} %{given_up} ({shown})"
        )


def _tried(
    search: Search, values: dict[str, Any], seeds: Sequence[int], place: Path, interrupt: Interrupt | None
) -> Generator[Any, None, Trial]:
    """The scores of some settings with each seed, as long as they are worth going on with."""
    scores: list[float] = []
    for seed in seeds:
        try:
            recipe = updated(with_values(search.recipe, values), {"seed": seed})
            scores.append((yield from _held_out_score(recipe, place / f"seed-{seed}", interrupt)))
        except UserError:
            if not search.trials:  # the recipe as it stands
                raise
            # Such as a rate under which it diverges, or values that no recipe has together.
            return Trial(values, (*scores, 0.0), pruned=True)
        if len(scores) < len(seeds) and not search.is_worth_going_on(scores):
            return Trial(values, tuple(scores), pruned=True)
    return Trial(values, tuple(scores))


def _held_out_score(recipe: Recipe, folder: Path, interrupt: Interrupt | None) -> Generator[Any, None, float]:
    """Balanced accuracy of held-out samples; where these are cross-fitted, no network is trained on all samples."""
    made: list[Assembly] = []
    yield lambda: made.append(assemble(recipe))
    if made[0].held_out is None:
        yield from cross_fitted_by_step(recipe, made[0], folder, fitting(interrupt, made[0].stages))
    else:
        yield from train_run_by_step(recipe, folder, interrupt=interrupt)
    try:
        predictions = Predictions.load(folder / "predictions" / "held-out")
    except UserError as error:
        raise UserError(f"{recipe.method} has no held-out samples to be judged by; leave it out of --tune") from error
    return evaluate(predictions, num_resamples=0).balanced_accuracy
