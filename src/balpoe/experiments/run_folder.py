"""The folder of a run: what is written where, and reading it back.

    runs/NAME/seed-0/   recipe.toml  environment.json  classes.json  history.jsonl  timing.jsonl
                        calibration.json  checkpoint.pt  model.safetensors  predictions/ (held-out/)  evaluation.json

Every file is written whole or not at all, evaluation.json last: where it is, the run is finished.
"""

import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import balpoe
from balpoe.errors import UserError
from balpoe.evaluation.saved import current_evaluation, is_evaluation
from balpoe.experiments.recipe import Recipe, recipe_toml, toml_values, updated
from balpoe.files import locked, read_json, read_text, write_json, write_text

__all__ = [
    "Run",
    "evaluate_model",
    "fitting",
    "runs_of",
    "samples_to_test",
    "set_aside",
    "train_run",
    "train_run_by_step",
]

STARTED = ("recipe.toml", "environment.json", "classes.json")
"""What is known before training begins."""

Value = TypeVar("Value")


class Run:
    """A run on disk."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def name(self) -> str:
        """Such as digits-lt/seed-0."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def exists(self) -> bool:
        """Whether the run has been started."""
        return (self.folder / "recipe.toml").exists()

    @property
    def finished(self) -> bool:
        """Whether training, prediction and evaluation are done."""
        return (self.folder / "evaluation.json").exists()

    def recipe(self) -> Recipe:
        """Return the resolved recipe that the run was started with."""
        path = self.folder / "recipe.toml"
        try:
            return updated(Recipe(), toml_values(read_text(path)))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    def evaluation(self) -> dict[str, Any]:
        """Return the saved evaluation."""
        self._check_finished()
        path = self.folder / "evaluation.json"
        evaluation = current_evaluation(read_json(path))
        if not is_evaluation(evaluation, self.recipe().experts):
            raise UserError(f"{path} is not an evaluation of this run; delete it and train the same run again")
        whole: dict[str, Any] = evaluation
        return whole

    def predictions(self):  # type: ignore[no-untyped-def]  # torch is imported when predictions are wanted
        """Return the saved predictions."""
        from balpoe.evaluation.predictions import Predictions

        self._check_finished()
        return Predictions.load(self.folder / "predictions")

    def seconds(self) -> float:
        """Return the time that training took, over all its sessions and stages."""
        later = (path.relative_to(self.folder) for path in sorted(self.folder.glob("stage-*/timing.jsonl")))
        return sum(
            sum(self._lines(str(name), lambda entry: float(entry["seconds"]))) for name in ("timing.jsonl", *later)
        )

    def losses(self) -> list[float]:
        """Return the mean training loss of each epoch."""
        return self._lines("history.jsonl", lambda entry: float(entry["loss"]))

    def steps(self) -> list[str]:
        """Return the kinds of training step that were really taken, as eager or fused; recipes may say auto."""
        return sorted(set(self._lines("timing.jsonl", lambda entry: str(entry.get("step", "unknown")))))

    def _lines(self, name: str, value: Callable[[dict[str, Any]], Value]) -> list[Value]:
        path = self.folder / name
        try:
            return [value(json.loads(line)) for line in read_text(path).splitlines()]
        except UserError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise UserError(f"{path} is garbled ({error}); train the run anew with --fresh") from error

    def environment(self) -> dict[str, Any]:
        """Return where the run was trained, as far as the file says so."""
        found = read_json(self.folder / "environment.json")
        return found if isinstance(found, dict) else {}

    def record(self) -> dict[str, Any]:
        """Return what a published result rests on, in one value: recipe, environment, evaluation, cost, last loss."""
        recipe = toml_values(read_text(self.folder / "recipe.toml"))
        return {
            "recipe": {**recipe, "data_root": "", "weights": self.recipe().without_places().weights},
            "environment": read_json(self.folder / "environment.json"),
            "evaluation": self.evaluation(),
            "seconds": self.seconds(),
            "steps": self.steps(),
            "loss": self.losses()[-1],
        }

    def _check_finished(self) -> None:
        if not self.exists:
            raise UserError(f"{self.folder} is not the folder of a run; runs are in runs/NAME/seed-N")
        if not self.finished:
            raise UserError(f"{self.folder} is a run that is not finished; continue it with the command that began it")


def runs_of(path: str | Path) -> list[Run]:
    """Return the run in a folder, or the runs of all seeds below it."""
    folder = Path(path)
    if (folder / "recipe.toml").exists():
        return [Run(folder)]
    found = {path.parent.name.removeprefix("seed-"): path.parent for path in folder.glob("seed-*/recipe.toml")}
    # Not the runs that were set aside, nor folders that somebody named alike.
    seeds = sorted(int(seed) for seed in found if seed.isdecimal() and str(int(seed)) == seed)
    if not seeds:
        raise UserError(f"{folder} is neither a run nor a folder with runs seed-0, seed-1, ...; see `balpoe train`")
    return [Run(found[str(seed)]) for seed in seeds]


def train_run(recipe: Recipe, folder: Path, **options: Any) -> Run:
    """Train, predict and evaluate a recipe in a folder, from wherever an earlier call has got to.

    Args:
        recipe: What to train.
        folder: Folder of the run.
        options: Options of `train_run_by_step`.
    """
    from balpoe.training.concurrent import complete

    return complete(train_run_by_step(recipe, folder, **options))


def train_run_by_step(
    recipe: Recipe,
    folder: Path,
    *,
    fresh: bool = False,
    progress: bool = True,
    say: Callable[[str], object] = lambda text: None,
    interrupt: Any = None,
    look_longer: bool = True,
) -> Generator[Any, None, Run]:
    """Do what `train_run` does as a generator, for `concurrent`.

    Args:
        recipe: What to train.
        folder: Folder of the run.
        fresh: Whether to move an earlier run aside and begin anew.
        progress: Whether to show how far it is.
        say: Gets a sentence about what was found in the folder.
        interrupt: Given, training pauses after each step and ends when it asks to; otherwise it is done at one go.
        look_longer: As for `choice_by_held_out`.
    """
    from balpoe.experiments.build import assemble
    from balpoe.experiments.calibrate import Choice, choice_by_held_out, is_cross_fitted
    from balpoe.training.distributed import check_devices
    from balpoe.training.loggers import check_tracking

    run = Run(folder)
    if run.finished and not fresh:
        say(f"{folder} is finished already; --fresh trains it anew")
        return run
    # Before the folder is made: what is wrong leaves nothing behind.
    check_devices(recipe.device, recipe.devices, recipe.num_nodes, recipe.sync_batchnorm, recipe.shard)
    check_tracking(recipe.track, folder)
    made: list[Any] = []
    yield lambda: made.append(assemble(recipe, progress))  # aside: to read the data takes seconds
    (parts,) = made
    if fresh and (aside := set_aside(folder)):
        say(f"The earlier run is kept in {aside}")
    elif (folder / "checkpoint.pt").exists():
        say(f"{folder} continues where it stopped")
    with locked(folder), _nothing_left(folder):
        _write_start(folder, recipe, parts)
        label = f"{recipe.title}, seed {recipe.seed}"
        parts = replace(parts, settings=replace(parts.settings, run=folder, progress=progress, label=label))
        fit, choice = fitting(interrupt, parts.stages), Choice.load(folder)
        if choice is None and is_cross_fitted(recipe, parts):
            choice = yield from choice_by_held_out(recipe, parts, folder, fit, look_longer=look_longer)
        if choice is not None:
            found = {"mixup_alpha": choice.mixup_alpha}
            found |= {name: value for name in ("epochs", "lr") if (value := getattr(choice, name))}  # if asked for
            parts = replace(parts, settings=replace(parts.settings, **found))
        logits = yield from fit(parts.trained, parts.loss, parts.train, parts.test, parts.settings)
        yield functools.partial(_finish, recipe, parts, folder, logits, choice)
    return run


def fitting(interrupt: Any, stages: Any = ()) -> Any:
    """Return how a run trains a network, as a generator: at one go, or, for trainings side by side, step by step."""
    from balpoe.training.fit import fit_and_predict, fit_and_predict_by_step
    from balpoe.training.stages import fit_stages

    def fit(network: Any, loss: Any, train: Any, test: Any, settings: Any) -> Generator[Any, None, Any]:
        if interrupt is None:
            return fit_and_predict(network, loss, train, test, settings)[1]
        return (yield from fit_and_predict_by_step(network, loss, train, test, settings, interrupt))[1]

    return functools.partial(fit_stages, fit, stages) if stages else fit


def _finish(recipe: Recipe, parts: Any, folder: Path, logits: Any, choice: Any) -> None:
    """Calibrate the trained network where that is still to be done, and measure it."""
    from balpoe.evaluation.forward import logits_of
    from balpoe.experiments.calibrate import Choice, calibrated_by, held_out_predictions
    from balpoe.experiments.model_file import Model, save_model
    from balpoe.method.expert_calibration import at_known_temperature

    if recipe.calibrate and choice is None and parts.held_out is not None:
        theirs = logits_of(parts.trained, parts.held_out, workers=recipe.workers)
        choice = Choice(recipe.mixup_alpha, calibrated_by(held_out_predictions(parts, theirs, parts.held_out.targets)))
        choice.save(folder)
    calibration = choice and choice.held_out.calibration
    if recipe.temperature != 1:
        calibration = at_known_temperature(recipe.temperature, logits.shape[1])
    parts.network.to(next(parts.trained.parameters()).device)  # a frozen trunk stayed behind
    model = Model(
        parts.network, parts.train.class_names, parts.train.class_counts, parts.preprocessing, parts.train_prior,
        parts.lambdas, recipe, parts.source_prior, calibration,
    )  # fmt: skip
    save_model(folder / "model.safetensors", model)
    _measure(model, parts.test, folder, logits, parts.trained)


def _write_start(folder: Path, recipe: Recipe, parts: Any) -> None:
    """Write what is known before training begins."""
    recipe_file, environment_file, classes_file = (folder / name for name in STARTED)
    write_text(recipe_file, recipe_toml(recipe.from_anywhere()))
    write_json(environment_file, environment())
    write_json(classes_file, _classes(parts.train, parts.preprocessing))


@contextmanager
def _nothing_left(folder: Path) -> Iterator[None]:
    """Take away what a run wrote that cannot be trained as it is: its name stays free for what the error advises.

    Where anything was trained, it stays.
    """
    try:
        yield
    except UserError:
        if {path.name for path in folder.iterdir()} <= {*STARTED, ".lock"}:
            for name in STARTED:
                (folder / name).unlink(missing_ok=True)
        raise


def samples_to_test(model: Any, recipe: Recipe) -> Any:
    """Return the labelled test samples of a recipe as a model takes them; those of other classes are refused.

    Args:
        model: Loaded model.
        recipe: Recipe that says which samples.
    """
    from balpoe.data.loading.image_files import PictureFiles
    from balpoe.experiments.build import recipe_data

    _, test = recipe_data(recipe)
    if test.class_names != model.class_names:
        missing = sorted({*test.class_names} ^ {*model.class_names}) or ["their order"]
        raise UserError(f"the test samples have other classes than the model ({missing[0]!r}); give its own data")
    if isinstance(test, PictureFiles):
        test.preprocessing = model.preprocessing  # an older model's images were resized in another way
    return test


def evaluate_model(model: Any, folder: Path, data_root: str = "", *, views: str = "") -> Run:
    """Return a run, in a new folder, that holds the predictions and the evaluation of a model.

    Args:
        model: Loaded model.
        folder: Folder of the run.
        data_root: Folder of the test set.
        views: Views of each test image over which log-probabilities are averaged; one without.
    """
    from balpoe.evaluation.image_views import logits_of_views
    from balpoe.training.distributed import chosen_device

    recipe = updated(model.recipe, {"data_root": data_root})
    test = samples_to_test(model, recipe)
    if model.network.num_experts != recipe.experts:  # a file of some of them
        recipe = updated(recipe, {"num_experts": model.network.num_experts, "lambdas": ()})
    write_text(folder / "recipe.toml", recipe_toml(recipe))
    logits = None
    if views:
        model.network.to(chosen_device("auto"))  # it takes so many times as long
        logits = logits_of_views(model.network, test, views, workers=recipe.workers)
    _measure(model, test, folder, logits)
    return Run(folder)


def _measure(model: Any, test: Any, folder: Path, logits: Any = None, trained: Any = None) -> None:
    """Write what is known when training has ended: a model's predictions, and last their evaluation.

    Args:
        model: The model.
        test: Test samples.
        folder: Folder of the run.
        logits: Expert logits of these samples, where they are known already.
        trained: What takes these samples: the head of a frozen network; None for the model's network.
    """
    from balpoe.baselines.catalogue import load_method
    from balpoe.evaluation.forward import logits_of
    from balpoe.evaluation.learnt_weights import two_views, with_learnt_weights
    from balpoe.evaluation.shifted_tests import full_evaluation
    from balpoe.training.cuda_graphs import outside_no_capture

    predictions, recipe = model.predictions(test, logits), model.recipe
    views = load_method(recipe.method).test_views
    if views is not None:
        made = two_views(model.network, test, views(test.preprocessing.size), seed=recipe.seed, workers=recipe.workers)
        predictions = replace(predictions, view_logits=made)
    whole = None
    if predictions.experts_asked is not None:
        everybody = logits_of((trained or model.network).without_router(), test, workers=recipe.workers)
        whole = replace(predictions, expert_logits=everybody, experts_asked=None)
    few, many = recipe.shot_groups
    with outside_no_capture():  # seconds on the CPU alone
        if views is not None:
            predictions = with_learnt_weights(predictions)
        predictions.save(folder / "predictions")
        write_json(folder / "evaluation.json", full_evaluation(predictions, (few, many), whole))


def environment() -> dict[str, Any]:
    """Return what a result may depend on: versions and the code itself, processor, GPU, threads."""
    import torch

    names = ("torch", "torchvision", "lightning_fabric", "numpy", "sklearn", "triton")
    return {
        "balpoe": balpoe.__version__,
        "source": _own_digest(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: _version(name) for name in names},
    }


def source_digest(folder: Path) -> str:
    """Return what tells one state of a folder's Python code from another."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


@functools.cache
def _own_digest() -> str:
    """That of our code, read once: what is changed later does not run in this process."""
    return source_digest(Path(balpoe.__file__).parent)


def _version(name: str) -> str | None:
    """The version of a package, if it is there; without importing it, which can take seconds."""
    if known := getattr(sys.modules.get(name), "__version__", None):
        return str(known)
    try:
        return version({"sklearn": "scikit-learn"}.get(name, name))
    except PackageNotFoundError:
        return None


def set_aside(folder: Path) -> Path | None:
    """Move a run out of the way, so that it can be trained anew and nothing is lost; return where to."""
    if not folder.exists():
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.name}.before-{number}")).exists():
        number += 1
    with locked(folder):  # not under the feet of a process that trains there
        try:
            folder.rename(aside)
        except OSError as error:
            raise UserError(f"cannot move {folder} to {aside}: {error.strerror}; choose another --name") from error
    return aside


def _classes(train: Any, preprocessing: Any) -> Mapping[str, Any]:
    return {
        "names": train.class_names,
        "counts": train.class_counts.tolist(),
        "preprocessing": asdict(preprocessing),
    }
