"""Prediction sets that hold the right class as often as asked for: split conformal prediction, by class or weighted.

A score says how ill a class fits a sample (`set_scores.py`). The scores of validation samples' own classes set the
threshold up to which a class enters a set (`set_thresholds.py`). Nothing is assumed of the network: if validation
samples and new ones of a class come about in the same way, how many sets hold the right class follows from counting.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from balpoe.deployment.class_pools import ALL, Pools, least_samples, own_pools, similar_pools
from balpoe.deployment.set_files import plain_sets, sets_from_plain
from balpoe.deployment.set_inputs import (
    Validation,
    check_settings,
    checked_folds,
    logit_blocks,
    resolved_prior,
    set_score,
)
from balpoe.deployment.set_promise import Promise, cv_plus_level
from balpoe.deployment.set_scores import SetScore
from balpoe.deployment.set_thresholds import (
    coverage_thresholds,
    label_weights,
    shortfall,
    weight_below,
    weight_needed,
)
from balpoe.errors import UserError
from balpoe.evaluation.predictions import Predictions
from balpoe.files import read_json, write_json
from balpoe.method.ensemble import checked_source
from balpoe.method.expert_calibration import ExpertCalibration

__all__ = ["ConformalSets"]


@dataclass(frozen=True, eq=False)
class ConformalSets:
    """Prediction sets with a promise, which `guarantee` states; made by `ConformalSets.fit`.

    >>> generator = torch.Generator().manual_seed(0)
    >>> targets = torch.arange(1000) % 2
    >>> x = 2.0 * targets - 1 + torch.randn(1000, generator=generator)  # one Gaussian around -1, one around 1
    >>> logits = torch.stack([-x, x], dim=1)
    >>> sets = ConformalSets.fit((logits[:500], targets[:500]), alpha=0.1)
    >>> found = sets.predict(logits[500:])
    >>> found.shape, bool(found[torch.arange(500), targets[500:]].double().mean() > 0.85)
    (torch.Size([500, 2]), True)
    >>> print(sets.guarantee)
    At least 90 % of samples have their class in their set, if they come with the class mix of the validation samples.
    """

    alpha: float
    """Share of samples whose set may miss their class."""
    method: str
    score: SetScore
    scores: Tensor
    """Scores of the validation samples' own classes, (samples,): of those that set thresholds."""
    targets: Tensor
    """Their labels, (samples,)."""
    pool_of: Tensor
    """Number of each class's pool, (classes,): its classes share a threshold's samples; -1 takes all samples."""
    rare: Tensor
    """Whether a class has too few samples for what the method does for the others, (classes,)."""
    class_names: tuple[str, ...]
    target_prior: Tensor | None = None
    """Deployment prior, (classes,); None: the class mix of the validation samples."""
    estimated: bool = False
    """Whether that prior is an estimate."""
    validation_prior: Tensor | None = None
    """Prior that the validation labels were drawn from, where it is known; None: their counts stand for it."""
    calibration: ExpertCalibration | None = None
    """Calibration of the validation logits: `predict` applies it to `Predictions` instead of theirs."""
    fold_of: Tensor | None = None
    """Fold of each validation sample, (samples,), for CV+; None for one network."""
    cross_fitted: bool = False
    """Whether other networks than the one in use gave the validation logits."""
    grouped: bool = False
    """Whether validation samples came in groups, such as frames of a track."""
    spare: Tensor | None = None
    """Random numbers of drawn thresholds, (classes,); None for thresholds that cover at least what was asked for."""

    @staticmethod
    def fit(
        validation: "Predictions | tuple[Any, Any]",
        *,
        alpha: float = 0.1,
        method: str = "marginal",
        score: str = "probability",
        target_prior: Any = None,
        source_prior: Any = None,
        estimated: bool = False,
        validation_prior: Any = None,
        power: float = 1.0,
        folds: Any = None,
        cross_fitted: bool = False,
        drawn: bool = False,
        seed: int = 0,
    ) -> "ConformalSets":
        """Return sets whose thresholds come from labelled validation samples.

        These must be new to all that was fitted: the network, its temperature, thresholds. `balpoe.split_validation`
        makes such samples of a run's held-out predictions.

        Args:
            validation: Labelled predictions of the model in use; or (logits, targets), the ensemble's calibrated
                logits (samples, classes) and labels.
            alpha: Share of samples whose set may miss their class, between 0 and 1.
            method: "marginal" for coverage over all samples; "per-class" for each class that has enough samples;
                "pooled" for pools of classes with similar scores; "prevalence" for coverage over all samples, by
                posteriors divided by a power of the prior, which serves rare classes with small sets.
            score: "probability" for the smallest sets, or "aps" for sets that grow with the uncertainty of a sample.
            target_prior: Deployment prior, as `balpoe.evaluate` takes it: the posteriors are moved to it, and the
                samples weighted. By default the new samples have the class mix of the validation samples.
            estimated: Whether that prior is an estimate, which makes the promise approximate; a `PriorEstimate` or
                `TargetEstimate` says so itself.
            source_prior: Prior that bare logits are made for; by default uniform. Predictions know theirs.
            validation_prior: Prior that the validation labels were drawn from; by default their counts stand for it.
            power: Power of the prior for "prevalence": 1 serves the mean over classes, 0 is "marginal".
            folds: Fold of each validation sample, (samples,), for CV+: sample i was predicted by network folds[i],
                and `predict` takes the logits of all these networks, (folds, samples, classes).
            cross_fitted: Whether networks other than the one in use predicted the validation samples.
            drawn: Whether to draw each class's threshold between two neighbouring scores, so that coverage is met on
                average and not exceeded: by up to 1 / (n + 1) for a class of n samples. Not for CV+.
            seed: Seed of the random parts of "aps", of the clusters of "pooled", and of drawn thresholds.
        """
        check_settings(alpha, method, score, power)
        known = Validation.of(validation, source_prior)
        classes = known.num_classes
        prior, is_estimate = resolved_prior(target_prior, validation, classes)
        used = set_score(score, known, prior, power if method == "prevalence" else None, seed)
        scores = known.own_scores(used)
        pools = _pools(method, scores, known.targets, classes, alpha, seed)
        fold_of = None if folds is None else checked_folds(folds, len(scores))[pools.rows]
        sets = ConformalSets(
            alpha=alpha, method=method, score=used,
            scores=scores[pools.rows], targets=known.targets[pools.rows], pool_of=pools.pool_of, rare=pools.rare,
            class_names=known.class_names, target_prior=prior, estimated=estimated or is_estimate,
            validation_prior=None if validation_prior is None else checked_source(validation_prior, classes),
            calibration=known.calibration, fold_of=fold_of, cross_fitted=cross_fitted, grouped=known.grouped,
            spare=_uniform(classes, seed) if drawn and folds is None else None,
        )  # fmt: skip
        sets._check_enough()
        return sets

    @staticmethod
    def of_run(folder: str | Path, *, seed: int = 0, **settings: Any) -> "ConformalSets":
        """Return sets of a run's held-out samples: one half calibrates anew, the other sets thresholds.

        Args:
            folder: Folder of the run.
            seed: Seed of the split, and of `fit`.
            settings: Other settings of `fit`.
        """
        from balpoe.deployment.validation_split import run_validation  # which knows of training

        validation, cross_fitted = run_validation(folder, seed)
        return ConformalSets.fit(validation, cross_fitted=cross_fitted, seed=seed, **settings)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def networks(self) -> int:
        """How many networks there are: several for CV+."""
        return 1 if self.fold_of is None else int(self.fold_of.max()) + 1

    @property
    def thresholds(self) -> Tensor:
        """The score up to which each class enters a set, (classes,); infinite: always; minus infinity: never."""
        return self._thresholds(self.target_prior)

    @property
    def pools(self) -> list[tuple[str, ...]]:
        """Names of the classes that share the samples of a threshold, pool by pool."""
        return [self._named(self.pool_of == pool) for pool in self.pool_of.unique()]

    @property
    def pooled_classes(self) -> tuple[str, ...]:
        """Names of the classes that are too rare for a threshold of their own, or for a pool of similar classes."""
        return self._named(self.rare)

    @property
    def always_included(self) -> tuple[str, ...]:
        """Names of the classes that are in every set, as too few samples say when they may be left out."""
        return self._named(self.thresholds == torch.inf)

    @property
    def guarantee(self) -> str:
        """What is promised, in words."""
        mix = "validation" if self.target_prior is None else "estimated" if self.estimated else "known"
        if mix == "known" and self.validation_prior is None:
            mix = "counted"
        return str(
            Promise(
                self.alpha,
                self.method,
                mix,
                None if self.target_prior is None else shortfall(self.target_prior, self._counts),
                self.pooled_classes,
                not bool((self.pool_of[self.rare] == ALL).any()),
                self.method == "pooled" and bool((self.pool_of == ALL).all()),
                self.always_included,
                cv_plus_level(self.alpha, self._least_in_a_pool, self.networks) if self.networks > 1 else None,
                self.cross_fitted,
                self.grouped,
                self.spare is not None,
            )
        )

    def predict(self, samples: Any, target_prior: Any = None, *, out: Tensor | None = None) -> Tensor:
        """Return which classes are in the set of each sample, (samples, classes), true or false.

        Args:
            samples: Predictions of the same model, or its calibrated logits, (samples, classes); with folds, the
                logits of all networks, (folds, samples, classes).
            target_prior: Deployment prior other than that of the fit: it weights the validation samples anew, while
                scores stay those of the fit. Sets are smaller if `fit` knows it.
            out: Tensor of truth values to write to, (samples, classes).
        """
        rows = len(samples) if self.fold_of is None else len(samples[0])
        if out is None:
            out = torch.empty(rows, self.num_classes, dtype=torch.bool)
        if out.shape != (rows, self.num_classes) or out.dtype != torch.bool:
            raise UserError(
                f"out must hold truth values of shape {(rows, self.num_classes)}, but holds {out.dtype} of shape "
                f"{tuple(out.shape)}"
            )
        start = 0
        for block in self.predict_blocks(samples, target_prior):
            out[start : start + len(block)] = block
            start += len(block)
        return out

    def predict_blocks(self, samples: Any, target_prior: Any = None) -> Iterator[Tensor]:
        """Yield the sets block by block, in constant memory.

        Args:
            samples: Samples, as `predict` takes them; or blocks of logits, one after the other, of any origin.
            target_prior: Deployment prior, as `predict` takes it.
        """
        prior = self.target_prior
        if target_prior is not None:
            prior, _ = resolved_prior(target_prior, samples, self.num_classes)
        if self.fold_of is not None:
            yield from self._cv_plus(samples, prior)
            return
        if isinstance(samples, Predictions):
            samples = self._same_model(samples)
        thresholds = self._thresholds(prior)
        for logits in logit_blocks(samples):
            yield (self.score(logits) <= thresholds).logical_and_(thresholds > -torch.inf)

    def save(self, path: str | Path) -> None:
        """Write all that `load` needs to a .json file."""
        write_json(Path(path), plain_sets({each.name: getattr(self, each.name) for each in fields(self)}))

    @staticmethod
    def load(path: str | Path) -> "ConformalSets":
        """Read what `save` wrote."""
        about = read_json(Path(path))
        try:
            return ConformalSets(**sets_from_plain(about))
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{path} holds no prediction sets ({error}); save them again") from error

    @property
    def _counts(self) -> Tensor:
        return torch.bincount(self.targets, minlength=self.num_classes)

    @property
    def _least_in_a_pool(self) -> int:
        sizes = [int(self._counts[self.pool_of == pool].sum()) for pool in self.pool_of.unique() if int(pool) != ALL]
        return min([*sizes, len(self.targets)])

    def _weights(self, prior: Tensor | None) -> Tensor:
        shares = self._counts.double() / len(self.targets) if self.validation_prior is None else self.validation_prior
        return label_weights(prior, shares)

    def _thresholds(self, prior: Tensor | None) -> Tensor:
        weights = self._weights(prior)
        return coverage_thresholds(self.scores, self.targets, self.pool_of, self.alpha, weights, self.spare)

    def _named(self, chosen: Tensor) -> tuple[str, ...]:
        return tuple(self.class_names[label] for label in chosen.nonzero().squeeze(1).tolist())

    def _check_enough(self) -> None:
        thresholds = self.thresholds
        if bool(thresholds.isfinite().any()):
            return
        needed = least_samples(self.alpha)
        if len(self.scores) < needed:
            raise UserError(
                f"validation has {len(self.scores)} samples, but sets of alpha={self.alpha:g} need at least {needed}; "
                "hold out more, or raise alpha"
            )
        raise UserError(
            f"target_prior rests on so few validation samples that no threshold reaches {100 * (1 - self.alpha):g} %; "
            "hold out more samples of the classes that it makes frequent, or raise alpha"
        )

    def _same_model(self, predictions: Predictions) -> Predictions:
        if predictions.class_names != self.class_names:
            raise UserError(
                f"the predictions have other classes ({predictions.num_classes}) than these sets ({self.num_classes}); "
                "predict with the model that predicted the validation samples"
            )
        return replace(predictions, calibration=self.calibration)

    def _cv_plus(self, samples: Any, prior: Tensor | None) -> Iterator[Tensor]:
        """Sets of several networks, each compared with the validation samples that it has not seen."""
        assert self.fold_of is not None
        if isinstance(samples, Predictions) or len(samples) != self.networks:
            raise UserError(
                f"these sets are CV+ of {self.networks} networks; give the logits of each, ({self.networks}, samples, "
                "classes)"
            )
        weights = self._weights(prior)
        needed = weight_needed(self.targets, self.pool_of, self.alpha, weights)
        for blocks in zip(*map(logit_blocks, samples), strict=True):
            below = torch.zeros(blocks[0].shape, dtype=torch.float64)
            for fold, logits in enumerate(blocks):
                chosen = self.fold_of == fold
                below += weight_below(self.score(logits), self.scores, self.targets, self.pool_of, weights, chosen)
            yield (below < needed).logical_and_(weights > 0)


def _pools(method: str, scores: Tensor, targets: Tensor, classes: int, alpha: float, seed: int) -> Pools:
    if method == "per-class":
        return own_pools(targets, classes, alpha)
    if method == "pooled":
        return similar_pools(scores, targets, classes, alpha, seed)
    everything, none = torch.ones(len(targets), dtype=torch.bool), torch.zeros(classes, dtype=torch.bool)
    return Pools(torch.full((classes,), ALL), everything, none)


def _uniform(classes: int, seed: int) -> Tensor:
    return torch.rand(classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
