"""What a table of priors is worth at each of its places, printed."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch

from balpoe.data.loading.image_files import PictureFiles
from balpoe.deployment.loaded_model import load
from balpoe.deployment.prior_tables import PriorTable, unknown_keys_sentence
from balpoe.deployment.sample_keys import sample_keys
from balpoe.deployment.site_gains import SiteGains, site_gains
from balpoe.deployment.table_source import TableSource
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions, load_predictions
from balpoe.experiments.build import recipe_data
from balpoe.experiments.recipe import Recipe, updated
from balpoe.experiments.run_folder import evaluate_model, runs_of
from balpoe.experiments.run_paths import is_file_of_run
from balpoe.files import TABLE_SUFFIXES, is_among, write_json
from balpoe.report.console import console
from balpoe.report.site_gains import site_gains_table

__all__ = ["check_out", "evaluate_sites", "keys_of", "predictions_of"]


def evaluate_sites(
    path: str,
    flags: TableSource,
    *,
    key_table: str | None = None,
    out: str | None = None,
    data_root: str = "",
    weights: str = "",
) -> SiteGains:
    """Print and return what each place's own prior is worth on the test samples of a run, a model or predictions.

    Args:
        path: The run, model or predictions.
        flags: The table of priors.
        key_table: Table with the keys of the test samples; by default the one that the run was trained on.
        out: File .json to write, too.
        data_root: Folder of the test set of a model's file.
        weights: File of the backbone's weights, for a model's file that holds adapters alone.
    """
    check_out(out, [path, flags.path, key_table])
    predictions, recipe = predictions_of(path, data_root, weights)
    table = flags.read(predictions.class_names, predictions.source_prior)
    keys = keys_of(predictions, recipe, flags, key_table)
    gains = site_gains(predictions, table, keys)
    screen = console()
    screen.print(site_gains_table(gains, f"{path}: accuracy % and NLL with the prior of each {'/'.join(flags.keys)}"))
    screen.print(_about(table, gains))
    if gains.unknown:
        screen.print(f"Note: {unknown_keys_sentence(gains.unknown, len(predictions))}.")
    if out is not None:
        write_json(Path(out), {"table": flags.path, "keys": flags.keys, "kind": table.kind, **gains.to_dict()})
    return gains


def check_out(out: str | None, read: Iterable[str | None]) -> None:
    """Refuse to write what is not .json, or where something is read.

    Args:
        out: File to write; None: none.
        read: What the command is given to read; None for what it is not given.
    """
    if out is None:
        return
    if Path(out).suffix != ".json":
        raise UserError(f"--out {out} is not a .json file; give one")
    given = [Path(each) for each in read if each]
    if is_among(out, [*given, *(each / "predictions.json" for each in given)]):
        raise UserError(f"--out {out} is read, and would be lost; give another name")
    if is_file_of_run(out):
        raise UserError(f"--out {out} is a file that a run keeps; give another name")


def predictions_of(path: str, data_root: str = "", weights: str = "") -> tuple[Predictions, Recipe | None]:
    """Return the predictions of one run, of a model or of a folder, and the recipe of their run where they are of one.

    Args:
        path: The run, model or predictions.
        data_root: Folder of the test set of a model's file.
        weights: File of the backbone's weights, for a model's file that holds adapters alone.
    """
    if Path(path).suffix == ".npz" or (Path(path) / "predictions.json").is_file():
        return load_predictions(path), None
    if Path(path).is_file():
        with tempfile.TemporaryDirectory() as folder:
            run = evaluate_model(load(path, weights=weights), Path(folder) / "seed-0", data_root)
            predictions = run.predictions()
            # Out of the file, which goes with the folder.
            return predictions.subset(torch.arange(len(predictions))), run.recipe()
    runs = runs_of(path)
    if len(runs) > 1:
        raise UserError(f"{path} holds {len(runs)} runs; give one of them, such as {runs[0].folder}")
    recipe = runs[0].recipe()
    return runs[0].predictions(), updated(recipe, {"data_root": data_root}) if data_root else recipe


def keys_of(
    predictions: Predictions, recipe: Recipe | None, flags: TableSource, key_table: str | None
) -> list[tuple[str, ...]]:
    """Return the keys of each test sample.

    Args:
        predictions: Predictions of the test samples.
        recipe: Recipe of their run, where they are of one.
        flags: The table of priors.
        key_table: Table with the keys; by default the one that the run was trained on.
    """
    own = recipe is not None and Path(recipe.data_root).suffix.lower() in TABLE_SUFFIXES
    source = key_table or (recipe.data_root if own and recipe else None)
    if source is None:
        raise UserError(
            f"nothing says {', '.join(flags.keys)} of the test samples; give --key-table FILE with these columns"
        )
    return sample_keys(source, flags.keys, len(predictions), _paths(predictions, recipe))


def _paths(predictions: Predictions, recipe: Recipe | None) -> list[str] | None:
    """Files of the test samples, where they are somebody's own images."""
    if recipe is None or recipe.dataset != "own":
        return None
    _, test = recipe_data(recipe)
    if not isinstance(test, PictureFiles):
        return None
    if not torch.equal(test.targets, predictions.targets):
        raise UserError(f"{recipe.data_root} has changed since the run was measured; train again, or restore it")
    return list(test.paths)


def _about(table: PriorTable, gains: SiteGains) -> str:
    excluded = f"The list excludes the right class of {100 * gains.overall.excluded:.1f} % of the samples."
    if table.kind == "shares":
        return f"Shares as the table has them; 95 % paired intervals over the samples of each place. {excluded}"
    strengths = ", ".join(f"{each:.3g}" for each in table.strengths)
    return (
        f"Each place's counts are mixed with {strengths} counts of its wider area (from all places down); 95 % paired "
        f"intervals over the samples of each place. {excluded}"
    )
