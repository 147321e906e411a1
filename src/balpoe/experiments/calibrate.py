"""Calibration of a run by samples outside of training; rate, mixup's alpha and number of epochs chosen by them.

Heads on features are cheap: several are trained side by side, each without a part of the samples, once for each choice.
A network that is trained as a whole is calibrated by samples that its training goes without.
"""

import copy
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from balpoe.data.dataset import Dataset
from balpoe.data.loading.image_files import Samples
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.random_error import random_error_notes
from balpoe.experiments.build import Assembly
from balpoe.experiments.recipe import Recipe
from balpoe.files import read_json, write_json
from balpoe.method.expert_calibration import (
    are_earned,
    fit_expert_calibration,
    fit_one_temperature,
    held_out_losses,
    read_calibration,
    training_offsets,
)
from balpoe.training.cross_fit import Folds, can_be_repeated, fold_training, held_out_logits, repeated, split_folds
from balpoe.training.settings import FitSettings

__all__ = [
    "ALPHAS",
    "Choice",
    "Fit",
    "are_of_cross_fitting",
    "below_middle_expert",
    "calibrated_by",
    "calibration_notes",
    "choice_by_held_out",
    "cross_fitted_networks",
    "held_out_predictions",
    "is_cross_fitted",
]

ALPHAS = 0.0, 0.1, 0.2, 0.4
RATES = 1.0, 3.0, 10.0, 30.0  # times the recipe's learning rate
NETWORKS = ((1_000, 5), (5_000, 2))  # up to so many samples, so many networks side by side; beyond, one
FOLDS = 5
WORTH_DOUBLING = 0.03  # part of the held-out NLL that twice the epochs must save, or must have saved to be advised
MOST_DOUBLINGS = 4
CLEAR = 1.0  # standard errors by which they must save it: too many epochs cost time, too few cost accuracy

Fit = Callable[[nn.Module, Any, Samples, Samples | None, FitSettings], Generator[Any, None, Tensor | None]]
"""Trains a network in place, step by step, and returns its expert logits of further samples, if there are any."""


@dataclass(frozen=True)
class Choice:
    """What samples outside of training decided."""

    mixup_alpha: float
    held_out: Predictions
    """What the experts said of those samples; its calibration is the model's."""
    tried: tuple[dict[str, float], ...] = ()
    """What was tried, in this order: lr, mixup_alpha, epochs, and the held-out NLL at one temperature, in nats."""
    epochs: int = 0
    """Number of epochs that these samples asked for; 0 where they were not asked."""
    lr: float = 0.0
    """Learning rate that they asked for; 0 where they were not asked."""
    rising: bool = False
    """Whether the likelihood of these samples still rose where training ended."""
    cross_fitted: bool = False
    """Whether networks other than the run's own said it, each trained on a part of the samples."""

    def save(self, folder: Path) -> None:
        """Write predictions/held-out and then calibration.json, which says that both are there."""
        self.held_out.save(folder / "predictions" / "held-out")
        calibration = self.held_out.calibration
        assert calibration is not None
        write_json(
            folder / "calibration.json",
            {
                **asdict(calibration),
                "mixup_alpha": self.mixup_alpha,
                "epochs": self.epochs,
                "lr": self.lr,
                "rising": self.rising,
                "cross_fitted": self.cross_fitted,
                "tried": self.tried,
                "samples": len(self.held_out),
            },
        )

    @staticmethod
    def load(folder: Path) -> "Choice | None":
        """Return what an earlier call has saved in a run's folder; None if there is nothing."""
        path = folder / "calibration.json"
        if not path.exists():
            return None
        try:
            about = read_json(path)
            calibration = read_calibration(about)
            held_out = replace(Predictions.load(folder / "predictions" / "held-out"), calibration=calibration)
            tried = tuple(dict(each) for each in about.get("tried", ()))  # neither this nor lr in earlier versions
            flags = {name: bool(about[name]) for name in ("rising", "cross_fitted")}
            numbers = int(about["epochs"]), float(about.get("lr", 0))
            return Choice(float(about["mixup_alpha"]), held_out, tried, *numbers, **flags)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is garbled ({error}); train the run anew with --fresh") from error


def are_of_cross_fitting(predictions: str | Path) -> bool:
    """Return whether saved predictions are a run's held-out ones, said by networks other than the run's own.

    Args:
        predictions: Folder of the predictions.
    """
    about = Path(predictions).resolve().parents[1] / "calibration.json"
    return Path(predictions).name == "held-out" and about.exists() and bool(read_json(about).get("cross_fitted", True))


def is_cross_fitted(recipe: Recipe, parts: Assembly) -> bool:
    """Return whether a run asks networks that go without some samples, before the one that sees all is trained."""
    return recipe.calibrate and (parts.held_out is None or recipe.choose_mixup)


def choice_by_held_out(
    recipe: Recipe, parts: Assembly, folder: Path, fit: Fit, *, look_longer: bool = True
) -> "Generator[Any, None, Choice | None]":
    """Train networks without some samples, again and again; return what is best for these, calibrated by them.

    First the learning rate grows, then mixup's alpha, then the epochs, each as long as held-out samples gain by it:
    mixup helps networks that have learnt enough, and a larger rate costs nothing where more epochs do.

    Args:
        recipe: Recipe of the run.
        parts: Objects of the recipe; its network stays as it is.
        folder: Folder of the run, below which the trainings are kept until all are done.
        fit: How to train.
        look_longer: Whether to see, where the number of epochs is given, if more would be better: half as many are
            trained, to compare with.
    """
    folds = None if parts.held_out is not None else _folds(parts)
    if folds is not None and not bool((folds.fold >= 0).any()):
        return None  # no class has a sample to spare
    search = _Search(parts, folder / "cross-fit", fit, folds)
    lr, epochs = parts.settings.lr, parts.settings.epochs
    if recipe.epochs == 0 and folds is not None:
        epochs = max(1, epochs // 2)  # enough to choose by; twice as many are tried below
    best = yield from search.trial(ALPHAS[0] if recipe.choose_mixup else recipe.mixup_alpha, lr, epochs)
    if recipe.choose_lr and folds is not None:
        best = yield from search.climb(best, ({"lr": round(factor * lr, 9)} for factor in RATES[1:]))
    if recipe.choose_mixup:
        best = yield from search.climb(best, ({"mixup_alpha": alpha} for alpha in ALPHAS[1:]))
    if folds is not None and (look_longer or recipe.epochs == 0):
        best = yield from _long_enough(search, best, recipe.epochs == 0)
    groups = None if folds is None or parts.groups is None else parts.groups[folds.fold >= 0]
    held_out = calibrated_by(best.held_out, groups)
    choice = replace(best, held_out=held_out, tried=tuple(search.tried), cross_fitted=folds is not None)
    choice.save(folder)
    shutil.rmtree(folder / "cross-fit", ignore_errors=True)
    return choice


@dataclass
class _Search:
    """Trainings without some samples, and what came of them."""

    parts: Assembly
    place: Path
    fit: Fit
    folds: Folds | None
    tried: "list[dict[str, float]]" = field(default_factory=list)

    def trial(self, mixup_alpha: float, lr: float, epochs: int) -> Generator[Any, None, Choice]:
        """Train once; one temperature is enough to judge by."""
        run = self.place / f"lr-{lr:g}-alpha-{mixup_alpha:g}-epochs-{epochs}"
        label = f"{self.parts.settings.label}, held-out samples, rate {lr:g}, mixup {mixup_alpha:g}"
        chosen: dict[str, Any] = {"lr": lr, "mixup_alpha": mixup_alpha, "epochs": epochs}
        settings = replace(self.parts.settings, **chosen, run=run, label=label)
        if self.folds is None:
            held_out = yield from _held_out_part(self.parts, self.fit, settings)
        else:
            held_out = yield from _cross_fitted(self.parts, self.fit, settings, self.folds)
        held_out = calibrated_by(held_out, one_temperature=True)
        self.tried.append({**chosen, "nll": float(_losses(held_out).mean())})
        return Choice(mixup_alpha, held_out, epochs=epochs, lr=lr)

    def climb(
        self, best: Choice, changes: "Iterable[Mapping[str, Any]]", share: float = 0.0
    ) -> Generator[Any, None, Choice]:
        """Make one change after the other, as long as each saves this share of the held-out NLL."""
        for change in changes:
            now: dict[str, Any] = {"mixup_alpha": best.mixup_alpha, "lr": best.lr, "epochs": best.epochs}
            further = yield from self.trial(**{**now, **change})
            if not _gains(best.held_out, further.held_out, share):
                break
            best = further
        return best


def _long_enough(search: _Search, choice: Choice, may_grow: bool) -> Generator[Any, None, Choice]:
    """Twice the epochs as long as held-out samples gain by it, if nobody gave a number; otherwise whether they would.

    Experts whose lambda is far from 0 learn slowest: too few steps make an ensemble that is worse than its parts.
    """
    if may_grow:
        numbers = [2**doublings * choice.epochs for doublings in range(1, MOST_DOUBLINGS + 1)]
        longest = yield from search.climb(choice, ({"epochs": number} for number in numbers), WORTH_DOUBLING)
        return replace(longest, rising=longest.epochs == numbers[-1])
    half = yield from search.trial(choice.mixup_alpha, choice.lr, max(1, choice.epochs // 2))
    return replace(choice, rising=_gains(half.held_out, choice.held_out, WORTH_DOUBLING))


def _gains(before: Predictions, after: Predictions, share: float) -> bool:
    """Whether a share of the held-out NLL is saved; where it is to be paid for, beyond what random samples give."""
    gains = _losses(before) - _losses(after)
    saved = float(gains.mean()) > share * float(_losses(before).mean())
    return saved and (share == 0 or are_earned(gains, errors=CLEAR))


def calibration_notes(folder: Path, recipe: Recipe, evaluation: Mapping[str, Any]) -> list[str]:
    """Return what samples outside of training said of a finished run: what they changed, and what they advise.

    Args:
        folder: Folder of the run.
        recipe: Its recipe.
        evaluation: Its evaluation.
    """
    choice = Choice.load(folder)
    found = evaluation.get("calibration")
    if found is None:
        return ["Not calibrated: no class had a sample to spare."] if recipe.calibrate else []
    ece = [f"{100 * value:.1f} %" for value in (found["before"]["ece"], evaluation["ece"])]
    changed = f"on the test samples the ECE was {ece[0]} before, and is {ece[1]}."
    if not found.get("fitted", True):
        return [f"Logits divided by a temperature of {found['temperatures'][0]:g}: {changed}"]
    if choice is None:  # it was given later
        return []
    temperatures = ", ".join(f"{value:.2f}" for value in dict.fromkeys(found["temperatures"]))
    chosen = f"learning rate {choice.lr:g} chosen, " if recipe.choose_lr and choice.lr else ""
    chosen += f"mixup alpha {choice.mixup_alpha:g} chosen, " if recipe.choose_mixup else ""
    notes = [
        f"Calibrated by {len(choice.held_out):,} samples outside of training: {chosen}temperature {temperatures}; "
        f"{changed}",
        *random_error_notes(evaluation),
    ]
    if choice.rising:
        either = "leave out --epochs, so that enough are chosen, or " if recipe.epochs else ""
        notes.append(
            "The likelihood of samples outside of training was still rising where training ended; "
            f"{either}try --epochs {2 * choice.epochs}."
        )
    if below_middle_expert(choice.held_out):
        notes.append(
            "On samples outside of training the ensemble is below its middle expert: its experts are undertrained; "
            f"try --epochs {4 * (choice.epochs or recipe.epochs)}."
        )
    return notes


def below_middle_expert(predictions: Predictions) -> bool:
    """Return whether the expert whose lambda is nearest to zero is right more often, beyond two standard errors.

    Both answer for equally frequent classes, and each class counts alike.
    """
    lambdas, priors = predictions.lambdas, predictions.expert_priors
    if lambdas is None or priors is None or lambdas.ndim > 1 or len(lambdas) < 2:
        return False
    middle = int(lambdas.abs().argmin())
    alone = predictions.calibrated()[:, middle] - priors[middle].log()
    uniform = torch.full_like(predictions.train_prior, 1 / predictions.num_classes)
    together = predictions.adjusted(predictions.logits, uniform)
    right = [(logits.argmax(dim=1) == predictions.targets).double() for logits in (together, alone)]
    gain, counts = right[1] - right[0], torch.bincount(predictions.targets).double()
    weighted = gain / counts[predictions.targets]
    return float(weighted.sum()) > 2 * float(weighted.square().sum().sqrt())


def calibrated_by(
    predictions: Predictions, groups: Tensor | None = None, *, one_temperature: bool = False
) -> Predictions:
    """Return predictions of samples outside of training with the calibration that fits them.

    Args:
        predictions: What a network said of samples that it has not seen.
        groups: Number of each sample's group, (samples,); groups are judged as wholes.
        one_temperature: Whether one temperature of all experts will do; scores that are no posterior get no more.

    >>> sure = Predictions(torch.eye(2)[[0, 0, 0, 1] * 9][:, None] * 9.0, torch.tensor([0, 0, 1, 1] * 9), [18, 18])
    >>> calibrated_by(sure).calibration.temperatures[0] > 2
    True
    """
    logits, targets, prior = predictions.expert_logits, predictions.targets, predictions.train_prior
    source = predictions.source_prior
    offsets = training_offsets(prior, predictions.lambdas, source)
    if one_temperature or source is None:
        fitted = fit_one_temperature(logits, targets, offsets, source)
    else:
        fitted = fit_expert_calibration(logits, targets, prior, offsets, source, groups=groups)
    return replace(predictions, calibration=fitted)


def _losses(predictions: Predictions) -> Tensor:
    return held_out_losses(predictions.logits, predictions.targets, predictions.source_prior)


def _folds(parts: Assembly) -> Folds:
    """Several networks for few samples; one, without a fifth of them, for many."""
    networks = cross_fitted_networks(len(parts.train))
    generator = torch.Generator().manual_seed(parts.settings.seed)
    return split_folds(parts.train.targets, networks, FOLDS, generator, parts.groups)


def cross_fitted_networks(samples: int) -> int:
    """Return how many networks are trained side by side, each without a part of so many samples.

    >>> cross_fitted_networks(300), cross_fitted_networks(100_000)
    (5, 1)
    """
    return next((networks for most, networks in NETWORKS if samples <= most), 1)


def _cross_fitted(parts: Assembly, fit: Fit, settings: FitSettings, folds: Folds) -> Generator[Any, None, Predictions]:
    """What networks say of the samples that each has not seen."""
    data, networks = parts.train, folds.rows.shape[1]
    assert isinstance(data, Dataset)
    # A method that looks at labels to mix, or draws by them, trains one network at a time.
    if not can_be_repeated(parts.trained) or settings.mixing is not None or parts.stages or networks == 1:
        return (yield from _one_after_the_other(parts, fit, settings, folds))
    network = repeated(parts.trained, networks)
    loss: Any = copy.deepcopy(parts.loss)
    yield from fit(network, *fold_training(data, torch.ones(len(data)), folds, loss), None, settings)
    rows, logits = held_out_logits(network, data, folds)
    return held_out_predictions(parts, logits, data.targets[rows])


def _one_after_the_other(
    parts: Assembly, fit: Fit, settings: FitSettings, folds: Folds
) -> Generator[Any, None, Predictions]:
    """The same, each network with a training, and so a folder, of its own."""
    data, networks = parts.train, folds.rows.shape[1]
    assert isinstance(data, Dataset)
    assert settings.run is not None
    found = []
    for number in range(networks):
        seen = folds.rows[: int((folds.fold != number).sum()), number]  # without what the shorter ones are filled up by
        own = replace(settings, run=settings.run / f"network-{number}", label=f"{settings.label}, network {number + 1}")
        network = copy.deepcopy(parts.trained)
        yield from fit(network, copy.deepcopy(parts.loss), data.subset(seen), None, settings if networks == 1 else own)
        found.append(held_out_logits(network, data, Folds(torch.where(folds.fold == number, 0, -1), seen[:, None])))
    rows, logits = (torch.cat(several) for several in zip(*found, strict=True))
    order = rows.argsort()
    return held_out_predictions(parts, logits[order], data.targets[rows[order]])


def _held_out_part(parts: Assembly, fit: Fit, settings: FitSettings) -> Generator[Any, None, Predictions]:
    """What one network, trained on all training samples, says of a part that is held out."""
    assert parts.held_out is not None
    network, loss = copy.deepcopy(parts.trained), copy.deepcopy(parts.loss)
    logits = yield from fit(network, loss, parts.train, parts.held_out, settings)
    assert logits is not None
    return held_out_predictions(parts, logits, parts.held_out.targets)


def held_out_predictions(parts: Assembly, expert_logits: Tensor, targets: Tensor) -> Predictions:
    """Return what experts of a run said of labelled samples outside of training."""
    return Predictions(
        expert_logits, targets, parts.train.class_counts, parts.lambdas, parts.train.class_names, parts.train_prior,
        source_prior=parts.source_prior,
    )  # fmt: skip
