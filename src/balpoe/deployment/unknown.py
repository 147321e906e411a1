"""A threshold on how much a sample looks like none of the classes, which keeps as many known samples as asked for."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.deployment.class_means import ClassMeans
from balpoe.deployment.set_inputs import resolved_prior
from balpoe.deployment.unknown_scores import OF_FEATURES, SCORES, num_classes, unknown_scores
from balpoe.deployment.unknown_threshold import Basis, coverage_notes
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.files import read_json, write_json
from balpoe.method.expert_calibration import ExpertCalibration, read_calibration
from balpoe.method.priors import class_counts
from balpoe.settings import checked

__all__ = ["OTHER_NETWORKS", "SCORES", "UnknownDetector", "unknown_scores"]

TINY = 1e-12  # a deviation to divide by, where all values are the same
GROUPED = "Held-out samples come in groups, and are taken for independent: the share that is kept is approximate."
OTHER_NETWORKS = "The promise is approximate: networks other than the model predicted the held-out samples."


@dataclass(frozen=True, eq=False)
class UnknownDetector:
    """A threshold on how unknown a sample looks; made by `UnknownDetector.fit`.

    >>> generator = torch.Generator().manual_seed(0)
    >>> known = torch.randn(500, 3, 10, generator=generator)
    >>> known[:, :, 0] += 8
    >>> detector = UnknownDetector.fit(known, keep=0.95)
    >>> detector.predict(torch.zeros(2, 3, 10))
    tensor([True, True])
    >>> bool(detector.predict(known).double().mean() < 0.06)
    True
    """

    scores: tuple[str, ...]
    """Names of the scores; of several, the mean, each in units of its spread."""
    threshold: float
    """Score above which a sample is called unknown."""
    keep: float
    """Share of known samples that is not called so."""
    references: tuple[tuple[float, float], ...]
    """Mean and deviation of each score over held-out samples that did not set the threshold."""
    means: ClassMeans | None = None
    """Class means of features, for scores of distance."""
    calibration: ExpertCalibration | None = None
    """Calibration of the held-out logits: `predict` applies it to `Predictions` instead of theirs."""
    expert_priors: Tensor | None = None
    """Prior that each expert's bare logits are made for."""
    uncovered: tuple[str, ...] = ()
    """Names of the classes of which no held-out sample set the threshold: nothing is promised of them."""
    notes: tuple[str, ...] = ()
    """What is not promised, in sentences."""

    @staticmethod
    def fit(
        held_out: Any,
        score: str | Sequence[str] = "energy",
        *,
        keep: float = 0.95,
        targets: Any = None,
        target_prior: Any = None,
        expert_priors: Any = None,
        features: Any = None,
        means: ClassMeans | None = None,
        seed: int = 0,
    ) -> "UnknownDetector":
        """Return a detector whose threshold keeps a share of known samples, measured on held-out ones.

        Of new samples of known classes at least this share is kept on average, if they come like the held-out ones
        (conformal prediction, as for `balpoe.ConformalSets`) and these fitted nothing before. What else is fitted here,
        class means and the units of several scores, takes samples of its own. Nothing is promised of unknown samples,
        nor of a class without held-out samples: `notes` names those.

        Args:
            held_out: Predictions of samples that fitted nothing, such as the second half of `balpoe.split_validation`;
                or expert logits (samples, experts, classes).
            score: Name of a score, or several.
            keep: Share of known samples that is to be kept, between 0 and 1.
            targets: Labels of bare logits, for `target_prior` and class means. Predictions have theirs.
            target_prior: Deployment prior under which the share is kept; by default that of the held-out samples.
            expert_priors: Prior that each expert's bare logits are made for, (experts, classes).
            features: Features of the held-out samples, for scores of distance.
            means: Class means of training features, for scores of distance; held-out samples must not be among them.
                None: means of half of the held-out samples, so that the other half sets the threshold.
            seed: Seed of the split, where samples are set apart.
        """
        names = _checked_settings(score, keep)
        own = _Samples.of(held_out, targets, features, expert_priors)
        prior, _ = resolved_prior(target_prior, held_out, own.num_classes)
        if prior is not None and own.labels is None:
            raise UserError("target_prior weights the held-out samples by their labels; give targets")
        basis, means = own.basis(names, means, prior, seed)
        values = [unknown_scores(held_out, name, **own.given, means=means) for name in names]
        if len({len(each) for each in values}) > 1:
            raise UserError("features and logits are of different numbers of samples; give those of the same samples")
        seen = [each[basis.reference] for each in values]
        units = tuple((float(each.mean()), max(float(each.std()), TINY)) for each in seen)
        mix = own.train_prior if prior is None else prior
        absent = basis.uncovered(mix, own.num_classes)
        distances = means if any(name in OF_FEATURES for name in names) else None
        notes = coverage_notes(absent, own.class_names, mix, keep, distances)
        detector = UnknownDetector(
            names, torch.inf, keep, units, means, own.calibration, expert_priors,
            tuple(own.class_names[label] for label in absent.tolist()), (*notes, *own.notes),
        )  # fmt: skip
        return replace(detector, threshold=basis.limit(detector._combined(values), keep, own.num_classes))

    @staticmethod
    def of_run(
        folder: str | Path, score: str | Sequence[str] = "probability", *, seed: int = 0, **settings: Any
    ) -> "UnknownDetector":
        """Return a detector of a run's held-out samples: one half calibrates anew, the other sets the threshold.

        Args:
            folder: Folder of the run.
            score: Name of a score, or several.
            seed: Seed of the split, and of `fit`.
            settings: Other settings of `fit`.
        """
        from balpoe.deployment.validation_split import run_validation  # which knows of training

        validation, cross_fitted = run_validation(folder, seed)
        detector = UnknownDetector.fit(validation, score, seed=seed, **settings)
        return replace(detector, notes=(*detector.notes, OTHER_NETWORKS)) if cross_fitted else detector

    def score(self, samples: Any, features: Any = None) -> Tensor:
        """Return how unknown each sample looks, (samples,).

        Args:
            samples: Predictions, or expert logits (samples, experts, classes), of the same model.
            features: Features of the samples, for scores of distance.
        """
        if isinstance(samples, Predictions):
            samples = replace(samples, calibration=self.calibration)
        own: dict[str, Any] = {"expert_priors": self.expert_priors, "features": features, "means": self.means}
        return self._combined([unknown_scores(samples, name, **own) for name in self.scores])

    def predict(self, samples: Any, features: Any = None) -> Tensor:
        """Return whether each sample is of no known class, (samples,), true or false.

        Args:
            samples: Samples, as `score` takes them.
            features: Features of the samples, for scores of distance.
        """
        return self.score(samples, features) > self.threshold

    def save(self, path: str | Path) -> None:
        """Write the detector to a .json file; class means have a file of their own, of `ClassMeans.save`."""
        names = ("scores", "threshold", "keep", "references", "uncovered", "notes")
        about = {name: getattr(self, name) for name in names}
        about["calibration"] = self.calibration and asdict(self.calibration)
        about["expert_priors"] = None if self.expert_priors is None else torch.as_tensor(self.expert_priors).tolist()
        write_json(Path(path), about)

    @staticmethod
    def load(path: str | Path, means: ClassMeans | None = None) -> "UnknownDetector":
        """Read what `save` wrote.

        Args:
            path: Path of the file.
            means: Class means of training features, for scores of distance.
        """
        about = read_json(Path(path))
        try:
            references = tuple((float(centre), float(spread)) for centre, spread in about["references"])
            priors = None if about["expert_priors"] is None else torch.tensor(about["expert_priors"])
            calibration = read_calibration(about["calibration"])
            numbers = float(about["threshold"]), float(about["keep"])
            words = (tuple(about.get(name, ())) for name in ("uncovered", "notes"))  # not in files of earlier versions
            return UnknownDetector(tuple(about["scores"]), *numbers, references, means, calibration, priors, *words)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} holds no detector of unknown samples ({error}); save it again") from error

    def _combined(self, values: Sequence[Tensor]) -> Tensor:
        """One score as it is; of several, the mean of how many deviations each lies above the held-out samples."""
        if len(values) == 1:
            return values[0]
        units = zip(self.references, values, strict=True)
        return torch.stack([(each - centre) / spread for (centre, spread), each in units]).mean(dim=0)


class _Samples(NamedTuple):
    """Held-out samples, as far as a fit asks."""

    samples: int
    num_classes: int
    class_names: tuple[str, ...]
    labels: Tensor | None
    groups: Tensor | None
    train_prior: Tensor | None
    calibration: ExpertCalibration | None
    given: dict[str, Any]
    """What scores are given beside the samples and class means."""

    @staticmethod
    def of(held_out: Any, targets: Any, features: Any, expert_priors: Any) -> "_Samples":
        given = {"expert_priors": expert_priors, "features": features}
        if isinstance(held_out, Predictions):
            return _Samples(
                len(held_out), held_out.num_classes, held_out.class_names, held_out.targets, held_out.groups,
                held_out.train_prior, held_out.calibration, given,
            )  # fmt: skip
        classes, labels = num_classes(held_out), None if targets is None else torch.as_tensor(targets)
        if labels is not None:
            class_counts(labels, classes)  # an error names the first label outside of the classes
        return _Samples(len(held_out), classes, tuple(map(str, range(classes))), labels, None, None, None, given)

    def basis(
        self, names: Sequence[str], means: ClassMeans | None, prior: Tensor | None, seed: int
    ) -> tuple[Basis, ClassMeans | None]:
        """Who serves what, and class means, which are fitted where a distance is asked for and none are given."""
        features = self.given["features"]
        for_means = means is None and features is not None and any(name in OF_FEATURES for name in names)
        if not for_means and len(names) == 1:
            return Basis.whole(self.samples, self.labels, prior), means
        if for_means and (self.labels is None or len(features) != self.samples):
            raise UserError(f"class means take features and targets of the {self.samples} held-out samples; give both")
        sizes = self.samples, self.labels, prior, self.num_classes, self.groups, seed
        basis = Basis.split(*sizes, for_means=for_means)
        if for_means and self.labels is not None:
            chosen = basis.reference
            means = ClassMeans.fit(torch.as_tensor(features)[chosen], self.labels[chosen], self.num_classes)
        return basis, means

    @property
    def notes(self) -> tuple[str, ...]:
        """What is approximate for reasons of the samples."""
        return () if self.groups is None else (GROUPED,)


def _checked_settings(score: str | Sequence[str], keep: float) -> tuple[str, ...]:
    if not 0 < checked("keep", float, {}, keep) < 1:
        raise UserError(f"keep must lie between 0 and 1, such as 0.95, but is {keep}")
    names = (score,) if isinstance(score, str) else tuple(score)
    if not names:
        raise UserError(f"score must name one score or more of {', '.join(SCORES)}")
    return names
