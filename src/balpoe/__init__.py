"""Balanced product of calibrated experts: long-tailed recognition with probabilities that can be trusted."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from balpoe.data.dataset import Dataset as Dataset
    from balpoe.data.dataset import Preprocessing as Preprocessing
    from balpoe.data.loading.image_files import PictureFiles as PictureFiles
    from balpoe.data.registry import load_data as load_data
    from balpoe.deployment.abstaining import Abstention as Abstention
    from balpoe.deployment.conformal import ConformalSets as ConformalSets
    from balpoe.deployment.decision_rule import DecisionRule as DecisionRule
    from balpoe.deployment.decisions import decide as decide
    from balpoe.deployment.decisions import fit_rule as fit_rule
    from balpoe.deployment.export import export as export
    from balpoe.deployment.loaded_model import Model as Model
    from balpoe.deployment.loaded_model import load as load
    from balpoe.deployment.prior_tables import PriorTable as PriorTable
    from balpoe.deployment.prior_tracking import PriorTracker as PriorTracker
    from balpoe.deployment.prior_tracking import track_prior as track_prior
    from balpoe.deployment.selective_risk import risk_coverage as risk_coverage
    from balpoe.deployment.taxonomy import Taxonomy as Taxonomy
    from balpoe.deployment.thresholds import Thresholds as Thresholds
    from balpoe.deployment.unknown import UnknownDetector as UnknownDetector
    from balpoe.deployment.unknown_scores import unknown_scores as unknown_scores
    from balpoe.deployment.validation_split import split_validation as split_validation
    from balpoe.errors import UserError as UserError
    from balpoe.estimator import BalPoEClassifier as BalPoEClassifier
    from balpoe.evaluation.deployment_prior import read_prior as read_prior
    from balpoe.evaluation.deployment_prior import target_prior as target_prior
    from balpoe.evaluation.evaluate import Evaluation as Evaluation
    from balpoe.evaluation.evaluate import compare as compare
    from balpoe.evaluation.evaluate import evaluate as evaluate
    from balpoe.evaluation.forward import predict as predict
    from balpoe.evaluation.predictions import Predictions as Predictions
    from balpoe.evaluation.predictions import load_predictions as load_predictions
    from balpoe.evaluation.prior_estimate import TargetEstimate as TargetEstimate
    from balpoe.evaluation.prior_estimate import estimate_target as estimate_target
    from balpoe.method.calibration import fit_temperature as fit_temperature
    from balpoe.method.ensemble import at_temperature as at_temperature
    from balpoe.method.ensemble import product_of_experts as product_of_experts
    from balpoe.method.ensemble import shift_prior as shift_prior
    from balpoe.method.ensemble import source_prior as source_prior
    from balpoe.method.label_shift import PriorEstimate as PriorEstimate
    from balpoe.method.label_shift import estimate_prior as estimate_prior
    from balpoe.method.losses import BalPoELoss as BalPoELoss
    from balpoe.method.losses import LogitAdjustedLoss as LogitAdjustedLoss
    from balpoe.method.losses import logit_adjusted_cross_entropy as logit_adjusted_cross_entropy
    from balpoe.method.mixing import Mixed as Mixed
    from balpoe.method.mixing import cutmix as cutmix
    from balpoe.method.mixing import mixed_loss as mixed_loss
    from balpoe.method.mixing import mixup as mixup
    from balpoe.method.priors import class_counts as class_counts
    from balpoe.method.priors import class_prior as class_prior
    from balpoe.method.priors import equidistant_lambdas as equidistant_lambdas
    from balpoe.method.priors import logit_offsets as logit_offsets
    from balpoe.method.priors import tempered_prior as tempered_prior
    from balpoe.networks import CosineClassifier as CosineClassifier
    from balpoe.networks import ExpertHead as ExpertHead
    from balpoe.networks import ExpertNetwork as ExpertNetwork
    from balpoe.networks import expert_network as expert_network
    from balpoe.training.fit import fit as fit

__version__ = "0.1.0"

_HOMES = {
    "data.dataset": ("Dataset", "Preprocessing"),
    "data.loading.image_files": ("PictureFiles",),
    "data.registry": ("load_data",),
    "deployment.abstaining": ("Abstention",),
    "deployment.conformal": ("ConformalSets",),
    "deployment.decision_rule": ("DecisionRule",),
    "deployment.decisions": ("decide", "fit_rule"),
    "deployment.export": ("export",),
    "deployment.loaded_model": ("Model", "load"),
    "deployment.prior_tables": ("PriorTable",),
    "deployment.prior_tracking": ("PriorTracker", "track_prior"),
    "deployment.selective_risk": ("risk_coverage",),
    "deployment.taxonomy": ("Taxonomy",),
    "deployment.thresholds": ("Thresholds",),
    "deployment.unknown": ("UnknownDetector",),
    "deployment.unknown_scores": ("unknown_scores",),
    "deployment.validation_split": ("split_validation",),
    "errors": ("UserError",),
    "estimator": ("BalPoEClassifier",),
    "evaluation.deployment_prior": ("read_prior", "target_prior"),
    "evaluation.evaluate": ("Evaluation", "compare", "evaluate"),
    "evaluation.forward": ("predict",),
    "evaluation.predictions": ("Predictions", "load_predictions"),
    "evaluation.prior_estimate": ("TargetEstimate", "estimate_target"),
    "method.calibration": ("fit_temperature",),
    "method.ensemble": ("at_temperature", "product_of_experts", "shift_prior", "source_prior"),
    "method.label_shift": ("PriorEstimate", "estimate_prior"),
    "method.losses": ("BalPoELoss", "LogitAdjustedLoss", "logit_adjusted_cross_entropy"),
    "method.mixing": ("Mixed", "cutmix", "mixed_loss", "mixup"),
    "method.priors": ("class_counts", "class_prior", "equidistant_lambdas", "logit_offsets", "tempered_prior"),
    "networks": ("CosineClassifier", "ExpertHead", "ExpertNetwork", "expert_network"),
    "training.fit": ("fit",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name on its first use (PEP 562): `import balpoe` alone costs nothing."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'balpoe' has no attribute {name!r}")
    value = getattr(import_module(f"balpoe.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
