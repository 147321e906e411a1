"""Balanced product of calibrated experts: long-tailed recognition with probabilities that can be trusted."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from balpoe.calibration import fit_temperature as fit_temperature
    from balpoe.data import Dataset as Dataset
    from balpoe.data import PictureFiles as PictureFiles
    from balpoe.data import Preprocessing as Preprocessing
    from balpoe.data import load_data as load_data
    from balpoe.ensemble import at_temperature as at_temperature
    from balpoe.ensemble import product_of_experts as product_of_experts
    from balpoe.ensemble import shift_prior as shift_prior
    from balpoe.ensemble import source_prior as source_prior
    from balpoe.errors import UserError as UserError
    from balpoe.estimator import BalPoEClassifier as BalPoEClassifier
    from balpoe.evaluation import Evaluation as Evaluation
    from balpoe.evaluation import compare as compare
    from balpoe.evaluation import evaluate as evaluate
    from balpoe.label_shift import PriorEstimate as PriorEstimate
    from balpoe.label_shift import estimate_prior as estimate_prior
    from balpoe.losses import BalPoELoss as BalPoELoss
    from balpoe.losses import LogitAdjustedLoss as LogitAdjustedLoss
    from balpoe.losses import logit_adjusted_cross_entropy as logit_adjusted_cross_entropy
    from balpoe.mixing import Mixed as Mixed
    from balpoe.mixing import cutmix as cutmix
    from balpoe.mixing import mixed_loss as mixed_loss
    from balpoe.mixing import mixup as mixup
    from balpoe.models import Model as Model
    from balpoe.models import load as load
    from balpoe.networks import CosineClassifier as CosineClassifier
    from balpoe.networks import ExpertHead as ExpertHead
    from balpoe.networks import ExpertNetwork as ExpertNetwork
    from balpoe.networks import expert_network as expert_network
    from balpoe.predictions import Predictions as Predictions
    from balpoe.predictions import load_predictions as load_predictions
    from balpoe.predictions import predict as predict
    from balpoe.priors import class_counts as class_counts
    from balpoe.priors import class_prior as class_prior
    from balpoe.priors import equidistant_lambdas as equidistant_lambdas
    from balpoe.priors import logit_offsets as logit_offsets
    from balpoe.priors import tempered_prior as tempered_prior
    from balpoe.target_estimates import TargetEstimate as TargetEstimate
    from balpoe.target_estimates import estimate_target as estimate_target
    from balpoe.target_priors import read_prior as read_prior
    from balpoe.target_priors import target_prior as target_prior
    from balpoe.training import fit as fit

__version__ = "0.1.0"

_HOMES = {
    "calibration": ("fit_temperature",),
    "data": ("Dataset", "PictureFiles", "Preprocessing", "load_data"),
    "ensemble": ("at_temperature", "product_of_experts", "shift_prior", "source_prior"),
    "errors": ("UserError",),
    "estimator": ("BalPoEClassifier",),
    "evaluation": ("Evaluation", "compare", "evaluate"),
    "label_shift": ("PriorEstimate", "estimate_prior"),
    "losses": ("BalPoELoss", "LogitAdjustedLoss", "logit_adjusted_cross_entropy"),
    "models": ("Model", "load"),
    "mixing": ("Mixed", "cutmix", "mixed_loss", "mixup"),
    "networks": ("CosineClassifier", "ExpertHead", "ExpertNetwork", "expert_network"),
    "predictions": ("Predictions", "load_predictions", "predict"),
    "priors": ("class_counts", "class_prior", "equidistant_lambdas", "logit_offsets", "tempered_prior"),
    "target_estimates": ("TargetEstimate", "estimate_target"),
    "target_priors": ("read_prior", "target_prior"),
    "training": ("fit",),
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
