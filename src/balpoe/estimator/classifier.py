"""BalPoE as a scikit-learn classifier, for tables, embeddings and arrays of images."""

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self, overload

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from balpoe.data.dataset import Dataset
from balpoe.deployment.conformal import ConformalSets
from balpoe.deployment.export import Export, export
from balpoe.deployment.model import Model
from balpoe.errors import UserError, unknown_name
from balpoe.estimator.backbones import (
    BackboneFeatures,
    BackboneImages,
    backbone_name,
    image_rows,
    tuned_network,
    usual_recipe,
)
from balpoe.estimator.decisions import Deployed, answers, check_decision, fitted_sets, predictions_of, sets_guarantee
from balpoe.estimator.deployed import deployed_model
from balpoe.estimator.inputs import FeatureInputs, ImageInputs, group_numbers, numbers_alone, sample_weights
from balpoe.estimator.parameters import (
    checked_number,
    checked_whole,
    default_batch_size,
    default_weight_decay,
    deployment_weights,
    hidden_units,
    least_steps,
    operations_of,
)
from balpoe.evaluation.predictions import Predictions
from balpoe.experiments.class_mean_start import start_from_class_means
from balpoe.experiments.recipe import updated
from balpoe.method.ensemble import shift_prior, source_prior
from balpoe.method.label_shift import PriorEstimate, estimate_prior
from balpoe.method.losses import BalPoELoss
from balpoe.method.priors import Lambdas, checked_lambdas
from balpoe.networks import NETWORKS, expert_network
from balpoe.networks.experts import ExpertNetwork
from balpoe.networks.timm_backbones import backbone_names, is_backbone
from balpoe.training.cross_fit import (
    CrossFitted,
    cross_fit,
    expert_means,
    feature_experts,
    network_means,
    split_folds,
    weighted_prior,
)
from balpoe.training.distributed import chosen_device
from balpoe.training.random_state import first_weights
from balpoe.training.schedules import Cosine
from balpoe.training.settings import FitSettings

__all__ = ["BalPoEClassifier"]

EMBEDDING = 256  # from so many features on they are taken for an embedding, which the classifier is to see itself
SMALL = {"mlp": 10_000, "head": 1_000}  # up to so many samples five networks are trained, beyond, one
HIDDEN = {"mlp": (64, 64), "head": (256,)}
ALPHAS = 0.0, 0.2  # what "auto" chooses from
OVERCONFIDENT = 1.05  # at a lower temperature the training without mixup left it nothing to cure
LEAST_EPOCHS = 20
LR = 0.3
IMAGES_AT_ONCE = 256  # decoded together, to be predicted
UNSEEN_KEPT = 2_000  # labelled predictions that are kept, to estimate a deployment prior


class BalPoEClassifier(ClassifierMixin, BaseEstimator):
    """BalPoE for scikit-learn; the default serves balanced accuracy, `target_prior="train"` serves plain accuracy.

    By default probabilities are made for equally frequent classes (`target_prior="uniform"`), with `"train"` for those
    as frequent as in training. `target_prior` may also be the deployment prior; it can be set after fitting, and takes
    no refit.

    Networks are cross-fitted: each of five is trained without a fifth of the samples, all five answer, and the samples
    that each has not seen give one temperature, by which the probabilities are calibrated. Features are standardised
    inside, those with heavy tails by their ranks. With more than 10,000 samples (1,000 of embeddings) there is one
    network, without a tenth of them.

    Args:
        lambdas: One number per expert; the label distribution that it is trained for is the training prior to this
            power. The default averages to zero, which makes the ensemble unbiased.
        mixup_alpha: Alpha of mixup, which mixes pairs of samples; 0 for none; "auto" trains without, and, where that is
            overconfident about unseen samples, also with 0.2, and keeps what predicts them better; with adapters or
            full it is the preset's.
        hidden: Units of each expert's hidden layers; None for (64, 64), and (256,) of "head".
        tune: For images and a pretrained backbone, how much of it learns: "head", the experts alone, on features that
            are computed once; "adapters", a few weights in every block, too; "full". X is then an array uint8 (samples,
            height, width, 3), or a list of paths, Pillow's images or such arrays, of any size. None for all else.
        weights: First weights of that backbone: "pretrained" for timm's, a file of them, or "random".
        image_size: Pixels a side that its images are brought to; None for its own.
        network: With `tune`, any model of timm, or "auto" for that of the preset `own` ("head"), `own-adapters` or
            `own-full`. Without: "mlp"; "head", whose classifier sees the features themselves beside the hidden layer,
            for embeddings; "auto" is the latter from 256 features on. To both, arrays of images are flattened. Or, for
            images (samples, channels, height, width), another name of `balpoe.expert_network`, such as "resnet32", or
            any function of `num_classes` and `num_experts` that returns a network.
        augmentation: Augmentation of images: "none", "crop-flip", "standard", ...
        cosine_scale: Scale of the classifier of "mlp", "head" and backbones; None for 16, and 25 with adapters or full.
        epochs: Passes over the data (of each training, if mixup_alpha is "auto"); None for at least 20, and as many as
            make 600 steps (300 up to 200 samples).
        batch_size: None for an eighth of the samples, at least 16 and at most 128; of "mlp", from 22,400 samples on, a
            175th of them, at most 512.
        lr: Learning rate, at the beginning of a cosine; None for 0.3, and with adapters or full for the preset's.
        weight_decay: On all parameters; None for 0.0005, and with batches of more than 128 up to 0.001; with adapters
            or full for the preset's.
        target_prior: "uniform", "train", "forward-R" or "backward-R" (of ratio R, see `balpoe.target_prior`), an array
            of weights in the order of `classes_`, a mapping or a Series of pandas from class to weight, or "estimate":
            found from the samples to predict themselves, many at once, and used if the evidence carries it.
        decision: What `predict` answers with: None for the most probable class; "accuracy", "balanced_accuracy",
            "macro_f1" or "recall of CLASS at least R"; costs as `balpoe.decide` takes them, in the order of `classes_`,
            or in a frame of pandas with the classes as its labels; a mapping from class to the cost of missing it; or a
            `balpoe.DecisionRule`, which has its own prior. It can be set after fitting. What a metric needs is fitted
            on samples that the networks had not seen.
        warm_start: Whether another `fit` goes on from the weights of the last one, for `epochs` more. Experts, network,
            mixup_alpha and random_state stay those of the first; on other samples the temperature stays, too.
        device: Device to train on: "auto", "cpu", "cuda" or "mps". Predictions are made on the CPU.
        random_state: A number, or a RandomState of numpy; of the weights, the parts, the order and the mixing.
        verbose: Whether to show progress.

    Attributes:
        classes_: The class labels.
        class_prior_: Their shares in training.
        mixup_alpha_: The one that was used.
        temperature_: The logits were divided by it.
        history_: Epoch, learning rate and loss of each epoch, those of a warm start behind those before.
        network_: The trained `balpoe.ExpertNetwork`; with `tune="head"`, of features.
        n_features_in_: The number of features; not with `tune`.
        feature_names_in_: Their names, if X had any.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = BalPoEClassifier(epochs=20, mixup_alpha=0, random_state=0).fit(X[:110], y[:110])
    >>> classifier.class_prior_.round(2)
    array([0.45, 0.45, 0.09])
    >>> field = classifier.set_params(target_prior={0: 1, 1: 2, 2: 7}).predict_proba(X[:3])
    >>> field.argmax(axis=1)
    array([0, 0, 0])
    """

    classes_: np.ndarray
    class_prior_: np.ndarray
    mixup_alpha_: float
    temperature_: float
    history_: list[dict[str, float]]
    network_: ExpertNetwork
    _plan: "_FirstFit"

    def __init__(
        self,
        *,
        lambdas: Lambdas = (1, 0, -1),
        mixup_alpha: float | str = "auto",
        hidden: int | Sequence[int] | None = None,
        network: str | Callable[..., ExpertNetwork] = "auto",
        tune: str | None = None,
        weights: str = "pretrained",
        image_size: int | None = None,
        augmentation: str = "none",
        cosine_scale: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        target_prior: Any = "uniform",
        decision: Any = None,
        warm_start: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.lambdas = lambdas
        self.mixup_alpha = mixup_alpha
        self.hidden = hidden
        self.network = network
        self.tune = tune
        self.weights = weights
        self.image_size = image_size
        self.augmentation = augmentation
        self.cosine_scale = cosine_scale
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.target_prior = target_prior
        self.decision = decision
        self.warm_start = warm_start
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Train on samples (samples, features), or images, and their labels, numbers or texts.

        A fit that fails leaves the one before as it was.

        Args:
            X: An array or a frame; with `tune`, images.
            y: One label a sample.
            sample_weight: One weight a sample; by default all count alike. What has the weight 0 is left out.
            groups: One label a sample, such as a patient or a track; samples of one group are held out together, so
                that none is predicted by a network that has seen its like. None, NaN or "" for one in no group.
        """
        before = dict(self.__dict__)
        try:
            return self._fit(X, y, sample_weight, groups)
        except BaseException:
            self.__dict__ = before
            raise

    def _fit(self, X: Any, y: Any, sample_weight: Any, groups: Any) -> Self:
        going_on = self.warm_start and hasattr(self, "network_")
        X, y = self._checked(X, y, reset=not going_on)
        check_classification_targets(y)
        weights = sample_weights(sample_weight, len(X))
        if not weights.any():
            raise ValueError("Sample weights must contain at least one that is not zero")
        numbers = group_numbers(groups, len(X))
        numbers = None if numbers is None else numbers[torch.from_numpy(weights > 0)]
        X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]
        classes, targets = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"BalPoEClassifier needs samples of at least 2 classes, but got {len(classes)} class "
                "(samples of weight 0 do not count)"
            )
        if going_on and not np.array_equal(classes, self.classes_):
            raise ValueError("warm_start goes on with the classes of the last fit, but y has others; set it to False")
        if going_on and (self.tune or "") != self._plan.tune:
            raise UserError("warm_start goes on with what learnt in the last fit, but tune is another; set it to False")
        weights = weights / weights.max()  # the sum of the largest floats would be infinite
        if not self._estimates_prior():
            prior = torch.from_numpy(np.bincount(targets, weights=weights))
            deployment_weights(self.target_prior, classes, prior / prior.sum())  # now rather than after the training
        check_decision(self.decision, classes)
        plan = self._plan if going_on else self._new_plan(X, weights)
        data = Dataset(plan.inputs(X), targets, preprocessing=plan.inputs.preprocessing, groups=numbers)
        self._train(plan, data, torch.from_numpy(weights / weights.mean()), going_on)
        self.classes_ = classes
        return self

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Samples and labels, of one length."""
        if self.tune is None:
            X, y = validate_data(self, X, y, allow_nd=True, dtype="numeric", reset=reset, ensure_min_samples=2)
            return numbers_alone(X), y
        usual_recipe(self.tune)  # is known
        labels: np.ndarray = validate_data(self, y=y, reset=reset)
        check_consistent_length(rows := image_rows(X), labels)
        return rows, labels

    def _train(self, plan: "_FirstFit", data: Dataset, weights: Tensor, going_on: bool) -> None:
        trained = {}
        for alpha in (self.mixup_alpha_,) if going_on else _alphas(self.mixup_alpha, plan.tune):
            network = copy.deepcopy(self.network_) if going_on else self._new_network(plan, data)
            trained[alpha] = self._cross_fit(plan, network, data, weights, alpha, going_on)
            if 1 / trained[alpha].scale < OVERCONFIDENT:
                break
        self.mixup_alpha_ = min(trained, key=lambda alpha: trained[alpha].nll)
        best = trained[self.mixup_alpha_]
        self.network_, self.class_prior_ = best.network.cpu().eval(), best.train_prior.numpy()
        self._class_counts = data.class_counts
        earlier = self.history_ if going_on else []
        self.history_ = earlier + [{**entry, "epoch": len(earlier) + entry["epoch"]} for entry in best.history]
        checksum: int | None = data.checksum()
        if not going_on or checksum == plan.checksum:
            self.temperature_, self._unseen = 1 / best.scale, best.unseen
        else:
            checksum = None  # from now on no sample is sure to be unseen, not even one of the first fit
        self._plan = plan._replace(checksum=checksum)

    def _new_plan(self, X: np.ndarray, weights: np.ndarray) -> "_FirstFit":
        lambdas = torch.atleast_1d(checked_lambdas(self.lambdas))
        seed = int(check_random_state(self.random_state).randint(2**31))
        if self.tune is not None:
            return self._new_image_plan(X, weights, lambdas, seed)
        kind = _kind(self.network, X)
        if kind and self.augmentation != "none":
            raise UserError("augmentation is for networks for images, and this one flattens them; set it to 'none'")
        inputs = FeatureInputs(X, weights) if kind else ImageInputs(X)
        networks = 5 if len(X) <= SMALL.get(kind, 0) else 1
        return _FirstFit(kind, inputs, lambdas, networks, seed)

    def _new_image_plan(self, rows: np.ndarray, weights: np.ndarray, lambdas: Tensor, seed: int) -> "_FirstFit":
        """Features, which are a table from there on, or images of the backbone's size."""
        assert self.tune is not None
        inputs: Any = BackboneImages(backbone_name(self.tune, self.network), self._pixels())
        if self.tune != "head":
            return _FirstFit("", inputs, lambdas, 1, seed, tune=self.tune)
        if self.augmentation != "none":
            raise UserError("features that are computed once cannot be varied; set augmentation to 'none', or tune")
        backbone = self._backbone(num_classes=2, num_experts=1, seed=seed)
        features = BackboneFeatures(inputs, backbone, rows, weights, self.device)
        return _FirstFit("head", features, lambdas, 5 if len(rows) <= SMALL["head"] else 1, seed, tune="head")

    def _pixels(self) -> int:
        return 0 if self.image_size is None else checked_whole("image_size", self.image_size)

    def _backbone(self, *, num_classes: int, num_experts: int, seed: int) -> ExpertNetwork:
        assert self.tune is not None
        scale = usual_recipe(self.tune).cosine_scale if self.cosine_scale is None else self.cosine_scale
        with first_weights(seed):
            return tuned_network(
                self.tune, backbone_name(self.tune, self.network), weights=self.weights, image_size=self._pixels(),
                cosine_scale=checked_number("cosine_scale", scale), num_classes=num_classes, num_experts=num_experts,
            )  # fmt: skip

    def _new_network(self, plan: "_FirstFit", data: Dataset) -> ExpertNetwork:
        sizes = {"num_classes": len(data.class_counts), "num_experts": len(plan.lambdas)}
        if plan.kind:
            return feature_experts(
                data.images.shape[1], **sizes, num_networks=plan.networks, beside=plan.kind == "head",
                hidden=HIDDEN[plan.kind] if self.hidden is None else hidden_units(self.hidden),
                cosine_scale=checked_number("cosine_scale", 16.0 if self.cosine_scale is None else self.cosine_scale),
                generator=torch.Generator().manual_seed(plan.seed),
            )  # fmt: skip
        if plan.tune:
            return self._backbone(**sizes, seed=plan.seed)
        make: Any = self.network
        if isinstance(self.network, str):
            channels = {"in_channels": data.images.shape[1]} if self.network == "resnet32" else {}
            make = functools.partial(expert_network, self.network, **channels)
        with first_weights(plan.seed):
            network: ExpertNetwork = make(**sizes)
        return network

    def _cross_fit(
        self, plan: "_FirstFit", network: ExpertNetwork, data: Dataset, weights: Tensor, alpha: float, going_on: bool
    ) -> CrossFitted:
        generator = torch.Generator().manual_seed(plan.seed)
        folds = split_folds(data.targets, plan.networks, 5 if plan.networks == 5 else 10, generator, data.groups)
        if not bool((folds.fold >= 0).any()):
            unit = "samples" if data.groups is None else "groups of samples"
            raise UserError(
                f"there are too few {unit} to hold any out of training, as no class may go without; give two or more "
                "of each class"
            )
        if plan.tune and not plan.kind and not going_on:  # not of what is held out
            start_from_class_means(network, data.subset(folds.rows[:, 0]), device=chosen_device(self.device))
        settings = self._settings(plan, len(data), len(folds.rows), alpha)
        prior = weighted_prior(data.targets, weights)
        loss = BalPoELoss(prior, plan.lambdas).float()
        found = cross_fit(network, data, weights, folds, loss, source_prior(prior, plan.lambdas), settings)
        kept = torch.randperm(len(found.unseen.targets), generator=generator)[:UNSEEN_KEPT]
        return replace(found, unseen=found.unseen.subset(kept))

    def _settings(self, plan: "_FirstFit", samples: int, rows: int, alpha: float) -> FitSettings:
        """Settings of one training, of which an epoch has so many rows."""
        largest = 512 if plan.kind == "mlp" else 128
        batch_size = min(largest, default_batch_size(samples))
        if self.batch_size is not None:
            batch_size = checked_whole("batch_size", self.batch_size)
        epochs = max(LEAST_EPOCHS, math.ceil(least_steps(samples) / math.ceil(rows / max(batch_size, 1))))
        if self.epochs is not None:
            epochs = checked_whole("epochs", self.epochs)
        usual = usual_recipe(plan.tune) if plan.tune and not plan.kind else None
        decay = self.weight_decay
        if decay is None:
            decay = usual.weight_decay if usual else default_weight_decay(batch_size)
        rate = self.lr if self.lr is not None else usual.lr if usual else LR
        same: dict[str, Any] = {
            "epochs": epochs, "batch_size": batch_size, "lr": checked_number("lr", rate),
            "weight_decay": checked_number("weight_decay", decay), "mixup_alpha": alpha, "seed": plan.seed,
            "device": self.device,
            "precision": "32-true" if plan.kind else "auto",  # numbers of a table may differ in the third digit
        }  # fmt: skip
        objects: dict[str, Any] = {
            "augmentation": operations_of(self.augmentation),
            "schedule": Cosine(usual.warmup_epochs if usual else 0),
            "progress": bool(self.verbose),
        }
        return updated(usual, same).fit_settings(**objects) if usual else FitSettings(**same, **objects)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, (samples, classes), under `target_prior`."""
        return self._log_probabilities(X).exp().numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of `predict_proba`."""
        return self._log_probabilities(X).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Return the class that `decision` answers with, by default the most probable one under `target_prior`."""
        if self.decision is None:
            chosen = self._log_probabilities(X).argmax(dim=1)
        else:
            deployed = self._deployed(X)  # which asks whether there was a fit
            chosen = answers(self.decision, deployed, self.classes_)
        labels: np.ndarray = self.classes_[chosen.numpy()]
        return labels

    @overload
    def predict_set(
        self, X: Any, alpha: float = ..., method: str = ..., *, return_guarantee: Literal[False] = ...
    ) -> np.ndarray: ...

    @overload
    def predict_set(
        self, X: Any, alpha: float = ..., method: str = ..., *, return_guarantee: bool
    ) -> np.ndarray | tuple[np.ndarray, str]: ...

    def predict_set(
        self, X: Any, alpha: float = 0.1, method: str = "marginal", *, return_guarantee: bool = False
    ) -> np.ndarray | tuple[np.ndarray, str]:
        """Return which classes are in the prediction set of each sample, (samples, classes), true or false.

        About 1 - alpha of new samples have their class in their set, if classes are as frequent as `target_prior` says.
        With several networks the sets are those of CV+, which promises 1 - 2 alpha less a little: each sample that was
        held out is compared under the network that had not seen it. The temperature has no part in it, as these very
        samples fitted it.

        Args:
            X: Samples.
            alpha: Share of samples whose set may miss their class.
            method: "marginal" for that share of all samples, "per-class" of each class, "pooled" or "prevalence"; see
                `balpoe.ConformalSets`.
            return_guarantee: Whether to return what is promised, too, in words: (sets, guarantee).
        """
        check_is_fitted(self)
        sets = self._sets(X, alpha, method)
        blocks = (network_means(self.network_, data, self._plan.networks) for data in self._datasets(X))
        rows = [sets.predict(logits[: sets.networks]) for block in blocks for logits in block]
        found = torch.cat(rows).numpy()
        return (found, sets_guarantee(sets)) if return_guarantee else found

    def _sets(self, X: Any, alpha: float, method: str) -> ConformalSets:
        """Sets of logits without the temperature, under the deployment prior."""
        if self._estimates_prior():
            known = {"target_prior": self._deployed(X).target_prior, "estimated": True}
        else:
            known = {"target_prior": self._given_prior()}
        unseen = self._unseen._replace(logits=self._unseen.logits * self.temperature_)
        trained_further = self._plan.checksum is None
        return fitted_sets(
            unseen, self._source(), self.classes_, alpha=alpha, method=method, cross_fitted=trained_further, **known
        )

    @property
    def held_out_(self) -> Predictions:
        """Labelled predictions of samples that the networks had not seen: what thresholds and the like are fitted on.

        These samples fitted the temperature, too: one number of all of them.
        """
        check_is_fitted(self)
        return predictions_of(self._unseen, self._source(), self.classes_)

    def unlabelled(self, X: Any) -> Predictions:
        """Return what the ensemble says of samples, for all that decides on predictions; their labels say nothing.

        Args:
            X: Samples.
        """
        logits = self._logits(X)
        nothing = torch.zeros(len(logits), dtype=torch.long)
        return replace(self.held_out_, expert_logits=logits[:, None], targets=nothing, groups=None)

    def predict_expert_proba(self, X: Any) -> np.ndarray:
        """Return what each expert says, (samples, experts, classes), under the prior that it was trained for.

        An expert of lambda 1 answers as if classes were as frequent as in training, one of -1 as if the rare ones
        were as frequent as the common ones, and the other way round. `target_prior` has no part in it.
        """
        return self._expert_logits(X).softmax(dim=2).numpy()

    def deployed_model(self) -> Model:
        """Return the classifier as a model of raw features, (samples, features), as `balpoe.load` gives one.

        Where no other is given, its deployment prior is the classifier's `target_prior`, as it is now; for "estimate",
        which new samples would say, it is the prior that the ensemble is made for.
        """
        check_is_fitted(self)
        return deployed_model(
            self.network_, self._plan.inputs, self.classes_, self._class_counts,
            torch.from_numpy(self.class_prior_), self._plan.lambdas, self.temperature_,
            None if self._estimates_prior() else self._given_prior(),
        )  # fmt: skip

    def export(self, path: Any, **settings: Any) -> Export:
        """Write the classifier as a file for other runtimes, as `balpoe.export` does, its scaling of features included.

        Args:
            path: File to write, such as model.onnx.
            **settings: Settings of `balpoe.export`.
        """
        return export(self, path, **settings)

    def estimate_target_prior(self, X: Any) -> PriorEstimate:
        """Return the label prior behind unlabelled samples, with intervals, and whether it is significant.

        `target_prior="estimate"` uses it. It is found with the samples that the networks had not seen, and wants a
        few hundred of both.
        """
        return self._estimated(self._logits(X))

    def _estimated(self, logits: Tensor) -> PriorEstimate:
        try:
            return estimate_prior(logits, source_prior=self._source(), validation=self._unseen)
        except UserError as error:
            raise UserError(
                "the samples that were held out in training are too few, or predicted too badly, to estimate a prior; "
                "give target_prior yourself"
            ) from error

    def _log_probabilities(self, X: Any) -> Tensor:
        """Log-probabilities of the ensemble, for the target prior, in float64."""
        deployed = self._deployed(X)
        return shift_prior(deployed.logits, deployed.target_prior, deployed.source_prior).log_softmax(dim=1)

    def _deployed(self, X: Any) -> Deployed:
        """Calibrated logits, and the priors between which they are moved."""
        logits, source = self._logits(X), self._source()
        if not self._estimates_prior():
            return Deployed(logits, self._unseen, source, self._given_prior())
        try:
            found = self._estimated(logits)
        except UserError as error:  # as where the evidence is thin
            warnings.warn(f"{error}: the prior stays as it is", stacklevel=4)
            return Deployed(logits, self._unseen, source, source)
        if found.calibration is None:
            return Deployed(logits, self._unseen, source, found.prior)
        unseen = self._unseen._replace(logits=found.calibration(self._unseen.logits))
        return Deployed(found.calibration(logits), unseen, source, found.prior)

    def _logits(self, X: Any) -> Tensor:
        """Calibrated logits of the ensemble, (samples, classes), in float64."""
        return self._expert_logits(X).mean(dim=1)

    def _expert_logits(self, X: Any) -> Tensor:
        """Each expert's logits, calibrated, (samples, experts, classes), in float64."""
        found = [expert_means(self.network_, data, len(self._plan.lambdas)) for data in self._datasets(X)]
        return torch.cat(found).double() / self.temperature_

    def _datasets(self, X: Any) -> Iterator[Dataset]:
        """Samples as the network takes them, images block by block; their labels say nothing."""
        check_is_fitted(self)
        inputs = self._plan.inputs
        if self._plan.tune:
            rows, size = image_rows(X), IMAGES_AT_ONCE
        else:
            rows = numbers_alone(validate_data(self, X, allow_nd=True, dtype="numeric", reset=False))
            size = len(rows)
        for start in range(0, len(rows), size):
            samples = inputs(rows[start : start + size])
            yield Dataset(samples, torch.zeros(len(samples), dtype=torch.long), preprocessing=inputs.preprocessing)

    def _estimates_prior(self) -> bool:
        return isinstance(self.target_prior, str) and self.target_prior == "estimate"

    def _given_prior(self) -> Tensor:
        return deployment_weights(self.target_prior, self.classes_, torch.from_numpy(self.class_prior_))

    def _source(self) -> Tensor:
        return source_prior(torch.from_numpy(self.class_prior_), self._plan.lambdas).double()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


class _FirstFit(NamedTuple):
    """What the first fit decides, and a warm start keeps."""

    kind: str
    """ "mlp" or "head"; empty for a network for images."""
    inputs: Any
    lambdas: Tensor
    networks: int
    seed: int
    checksum: int | None = None
    """Checksum of the samples, as long as they are those of the first fit."""
    tune: str = ""
    """How much of a pretrained backbone learns; empty without one."""


def _kind(network: Any, X: np.ndarray) -> str:
    """Return "mlp" or "head", or nothing for a network for images."""
    if not isinstance(network, str):
        if not callable(network):
            raise UserError(f"network must be a name, or a function that returns a network, but is {network!r}")
        return ""
    if network == "auto":
        return "head" if X[0].size >= EMBEDDING else "mlp"
    if network in SMALL:
        return network
    if network not in NETWORKS and not is_backbone(network):  # before anything is said about images
        raise unknown_name("network", network, ("auto", *NETWORKS, *backbone_names()))
    return ""


def _alphas(mixup_alpha: Any, tune: str) -> tuple[float, ...]:
    if isinstance(mixup_alpha, str) and mixup_alpha == "auto":
        return ALPHAS if tune in ("", "head") else (usual_recipe(tune).mixup_alpha,)
    return (checked_number("mixup_alpha", mixup_alpha, "a number from 0 or 'auto'"),)
