"""Scores for "none of these classes", and a threshold that keeps as many known samples as asked for.

A closed-set posterior cannot say it: it adds up to 1 over the known classes, however little any of them fits. What can
is the size of the logits, the distance to the classes in feature space, and whether experts that were trained for
different class mixes agree once each is moved to the same one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.class_means import ClassMeans
from balpoe.deployment.class_pools import least_samples
from balpoe.deployment.set_inputs import resolved_prior
from balpoe.deployment.set_thresholds import ROUNDING, label_weights
from balpoe.errors import UserError, unknown_name
from balpoe.evaluation.predictions import Predictions
from balpoe.files import read_json, write_json
from balpoe.method.ensemble import product_of_experts
from balpoe.method.expert_calibration import ExpertCalibration, read_calibration
from balpoe.method.priors import checked_prior

__all__ = ["SCORES", "UnknownDetector", "unknown_scores"]

OF_LOGITS = ("energy", "max-logit", "probability", "disagreement")
OF_FEATURES = ("mahalanobis", "cosine")
SCORES = (*OF_LOGITS, *OF_FEATURES)
TINY = 1e-12  # a deviation to divide by, where all values are the same
BLOCK_VALUES = 2**20  # logits looked at together


def unknown_scores(
    samples: Any,
    score: str = "energy",
    *,
    expert_priors: Any = None,
    features: Any = None,
    means: ClassMeans | None = None,
) -> Tensor:
    """Return how much each sample looks like none of the known classes, (samples,), in float64: higher is more unknown.

    | score | what it is |
    | --- | --- |
    | energy | minus the log of the sum of exponentials of the ensemble's logits (Liu et al. 2020) |
    | max-logit | minus the largest logit |
    | probability | 1 less the largest posterior |
    | disagreement | mean KL divergence of the product from its experts: 0 where all agree |
    | mahalanobis | squared distance to the nearest class mean, in units of the spread within classes |
    | cosine | cosine distance to the nearest class mean |

    All are for equally frequent classes: priors are taken out first, or rare classes would look unknown.

    Args:
        samples: Predictions, or expert logits (samples, experts, classes).
        score: Name of the score.
        expert_priors: Prior that each expert's bare logits are made for, (experts, classes); by default uniform.
            Predictions know theirs.
        features: Features of the samples, (samples, features), for scores of distance.
        means: Class means of training features, for scores of distance.

    >>> experts = torch.tensor([[[4.0, 0.0], [4.0, 0.0]], [[4.0, 0.0], [0.0, 4.0]]])
    >>> unknown_scores(experts, "disagreement") > 1  # of the second sample the experts say different things
    tensor([False,  True])
    """
    if score not in SCORES:
        raise unknown_name("score of unknown samples", score, SCORES)
    if score in OF_FEATURES:
        if features is None or means is None:
            raise UserError(f"the score {score!r} is a distance in feature space; give features and means")
        return means.cosine(features) if score == "cosine" else means.mahalanobis(features)
    log_priors = _log_priors(samples, expert_priors)
    found = [torch.zeros(0, dtype=torch.float64)]
    found += [_of_logits(block.to(log_priors) - log_priors, score) for block in _blocks(samples)]
    scores = torch.cat(found)
    if bool(scores.isnan().any()):
        row = int(scores.isnan().nonzero()[0])
        raise UserError(f"the logits of sample {row} are not numbers; check the network that gave them")
    return scores


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
    """Mean and deviation of each score over the held-out samples."""
    means: ClassMeans | None = None
    """Class means of training features, for scores of distance."""
    calibration: ExpertCalibration | None = None
    """Calibration of the held-out logits: `predict` applies it to `Predictions` instead of theirs."""
    expert_priors: Tensor | None = None
    """Prior that each expert's bare logits are made for."""

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
    ) -> "UnknownDetector":
        """Return a detector whose threshold keeps a share of known samples, measured on held-out ones.

        Of new samples of known classes at least this share is kept on average, if they come like the held-out ones
        (conformal prediction, as for `balpoe.ConformalSets`). Nothing is promised of unknown samples.

        Args:
            held_out: Predictions of samples outside of training, or expert logits (samples, experts, classes).
            score: Name of a score, or several.
            keep: Share of known samples that is to be kept, between 0 and 1.
            targets: Labels of bare logits, for `target_prior`. Predictions have theirs.
            target_prior: Deployment prior under which the share is kept; by default that of the held-out samples.
            expert_priors: Prior that each expert's bare logits are made for, (experts, classes).
            features: Features of the held-out samples, for scores of distance.
            means: Class means of training features, for scores of distance.
        """
        if not 0 < keep < 1:
            raise UserError(f"keep must lie between 0 and 1, such as 0.95, but is {keep}")
        names = (score,) if isinstance(score, str) else tuple(score)
        if not names:
            raise UserError(f"score must name one score or more of {', '.join(SCORES)}")
        own: dict[str, Any] = {"expert_priors": expert_priors, "features": features, "means": means}
        values = [unknown_scores(held_out, name, **own) for name in names]
        if len({len(each) for each in values}) > 1:
            raise UserError("features and logits are of different numbers of samples; give those of the same samples")
        bare = UnknownDetector(
            names, torch.inf, keep, tuple((float(v.mean()), max(float(v.std()), TINY)) for v in values), means,
            held_out.calibration if isinstance(held_out, Predictions) else None, expert_priors,
        )  # fmt: skip
        weights = _sample_weights(held_out, targets, target_prior, len(values[0]))
        return replace(bare, threshold=_threshold(bare._combined(values), weights, 1 - keep))

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
        about = {name: getattr(self, name) for name in ("scores", "threshold", "keep", "references")}
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
            return UnknownDetector(tuple(about["scores"]), *numbers, references, means, calibration, priors)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} holds no detector of unknown samples ({error}); save it again") from error

    def _combined(self, values: Sequence[Tensor]) -> Tensor:
        """One score as it is; of several, the mean of how many deviations each lies above the held-out samples."""
        if len(values) == 1:
            return values[0]
        units = zip(self.references, values, strict=True)
        return torch.stack([(each - centre) / spread for (centre, spread), each in units]).mean(dim=0)


def _of_logits(balanced: Tensor, score: str) -> Tensor:
    """Scores of balanced expert logits, (rows, experts, classes)."""
    if score == "disagreement":
        # The product over experts of p_e^(1/experts) sums to Z over the classes, and the mean KL divergence is -log Z.
        return (-product_of_experts(balanced.log_softmax(dim=2)).logsumexp(dim=1)).clamp(min=0.0)
    logits = product_of_experts(balanced)
    if score == "energy":
        return -logits.logsumexp(dim=1)
    return -logits.amax(dim=1) if score == "max-logit" else 1 - logits.softmax(dim=1).amax(dim=1)


def _log_priors(samples: Any, expert_priors: Any) -> Tensor:
    """Logarithm of the prior of each expert's logits over the uniform one, (experts or 1, classes)."""
    if isinstance(samples, Predictions):
        expert_priors = samples.expert_priors
        if expert_priors is None and samples.source_prior is not None:
            expert_priors = samples.source_prior[None]
    if expert_priors is None:
        return torch.zeros(1, 1, dtype=torch.float64)
    rows = [checked_prior(prior, _num_classes(samples), "expert_priors") for prior in torch.as_tensor(expert_priors)]
    log_priors = torch.stack(rows).log()
    return log_priors - log_priors.mean(dim=1, keepdim=True)  # the size of logits stays


def _num_classes(samples: Any) -> int:
    return samples.num_classes if isinstance(samples, Predictions) else int(samples.shape[-1])


def _blocks(samples: Any) -> Iterator[Tensor]:
    if isinstance(samples, Predictions):
        yield from (samples.calibrated(rows) for rows in samples.blocks())
        return
    logits = torch.as_tensor(samples)
    if logits.ndim != 3:
        raise UserError(
            f"expert logits must have shape (samples, experts, classes), but have {tuple(logits.shape)}; "
            "logits[:, None] makes one expert of (samples, classes)"
        )
    yield from logits.split(max(1, BLOCK_VALUES // max(1, logits[:1].numel())))


def _sample_weights(held_out: Any, targets: Any, target_prior: Any, samples: int) -> Tensor:
    """Weight of each held-out sample, (samples,), 1 on average."""
    labels = held_out.targets if isinstance(held_out, Predictions) else targets
    if target_prior is None:
        return torch.ones(samples, dtype=torch.float64)
    if labels is None:
        raise UserError("target_prior weights the held-out samples by their labels; give targets")
    labels, classes = torch.as_tensor(labels), _num_classes(held_out)
    prior, _ = resolved_prior(target_prior, held_out, classes)
    return label_weights(prior, torch.bincount(labels, minlength=classes) / len(labels))[labels]


def _threshold(scores: Tensor, weights: Tensor, alpha: float) -> float:
    """The score up to which 1 - alpha of the samples lie, where the new one is counted among those above."""
    if len(scores) < least_samples(alpha):
        raise UserError(
            f"there are {len(scores)} held-out samples, but to keep {100 * (1 - alpha):g} % takes at least "
            f"{least_samples(alpha)}; hold out more, or keep less"
        )
    values, order = scores.sort()
    sums = weights[order].cumsum(0)
    needed = (1 - alpha) * (sums[-1] + weights.max()) * (1 - ROUNDING)  # its class, and so its weight, is not known
    place = int(torch.searchsorted(sums, needed))
    if place == len(values):
        raise UserError(
            f"target_prior rests on so few held-out samples that no threshold keeps {100 * (1 - alpha):g} %; hold out "
            "more samples of the classes that it makes frequent, or keep less"
        )
    return float(values[place])
