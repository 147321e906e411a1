"""Whether a method fits some data, and whether held-out samples can judge it: asked before anything is trained."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from balpoe.baselines.catalogue import load_method
from balpoe.baselines.method import Method, MethodInputs
from balpoe.errors import UserError
from balpoe.experiments.build import check_fits, data_parts, method_parts, takes_images
from balpoe.experiments.calibrate import FOLDS, NETWORKS
from balpoe.experiments.recipe import Recipe, updated
from balpoe.method.intervals import evidence_counts
from balpoe.method.losses import BalPoELoss
from balpoe.method.priors import class_prior

__all__ = ["DataFacts", "check_held_out", "data_facts", "has_posterior", "misfit", "trained_as"]


class DataFacts(NamedTuple):
    """What a comparison knows of its data."""

    class_names: tuple[str, ...]
    class_counts: tuple[int, ...]
    """Training samples of each class."""
    evidence: tuple[int, ...]
    """Independent training samples of each class: its groups, where samples come in groups."""
    held_out: bool
    """Whether labelled samples outside of training are there; otherwise cross-fitting makes them."""
    spared: int
    """Number of training samples that a run goes without, to be calibrated by."""
    images: bool = True
    """Whether the network is trained on images; otherwise on features."""


def data_facts(recipe: Recipe) -> DataFacts:
    """Return what is known of a recipe's data."""
    parts = data_parts(recipe)
    names = tuple(parts.train.class_names)
    evidence = evidence_counts(parts.train.targets, len(names), parts.groups)
    counts = parts.train.class_counts
    spared = len(data_parts(updated(recipe, {"calibrate": False})).train) - len(parts.train) if parts.held_out else 0
    outside, images = parts.held_out is not None, takes_images(recipe, parts.train)
    return DataFacts(names, tuple(counts.tolist()), tuple(evidence.tolist()), outside, spared, images)


def misfit(recipe: Recipe, facts: DataFacts) -> str | None:
    """Return why a recipe's method cannot be trained on some data; None if it can."""
    try:
        check_fits(recipe, facts.images)
        has_posterior(recipe, facts)
    except UserError as error:
        return str(error)
    return None


def has_posterior(recipe: Recipe, facts: DataFacts) -> bool:
    """Return whether the scores of a recipe's method are posteriors of a known prior."""
    return method_parts(recipe, _inputs(recipe, facts))[2] is not None


def _inputs(recipe: Recipe, facts: DataFacts) -> MethodInputs:
    counts = torch.tensor(facts.class_counts)
    prior = class_prior(counts, method=recipe.prior_method, smoothing=recipe.smoothing)
    return MethodInputs(counts, prior, recipe.expert_lambdas, recipe.experts, recipe.cosine_scale)


def trained_as(recipes: Mapping[str, Recipe], facts: DataFacts) -> dict[str, str]:
    """Return for each method the first one whose training is the same, which then need not be done twice.

    Logit adjustment at tau 1 is balanced softmax, and mixup with an alpha of 0 cross-entropy.

    Args:
        recipes: Recipe of each method.
        facts: What is known of the data.
    """
    first: dict[object, str] = {}
    return {name: first.setdefault(_training(recipe, facts), recipe.method) for name, recipe in recipes.items()}


def _training(recipe: Recipe, facts: DataFacts) -> object:
    """What tells one training from another: of methods that are BalPoE's loss and no more, its offsets."""
    method, (loss, _, _) = load_method(recipe.method), method_parts(recipe, _inputs(recipe, facts))
    if type(loss) is not BalPoELoss or replace(method, loss=loss, lambdas=None) != Method(loss):
        return recipe.method
    own = ("method", "method_settings", "lambdas", "num_experts")
    others = [(name, repr(value)) for name, value in vars(recipe).items() if name not in own]
    return (*others, tuple(loss.offsets.flatten().tolist()), loss.offsets.shape)


def check_held_out(facts: DataFacts) -> None:
    """Refuse to choose by held-out samples where a class has none to spare.

    Cross-fitting deals the samples of a class out to folds one after the other, and as many networks as there are go
    without one fold each: so many samples are wanted that one of them is in a fold of theirs.
    """
    if facts.held_out:
        return
    samples = sum(facts.class_counts)
    networks = next((networks for most, networks in NETWORKS if samples <= most), 1)
    wanted = max(2, FOLDS - networks + 1)
    few = [name for name, count in zip(facts.class_names, facts.evidence, strict=True) if count < wanted]
    if few:
        count = facts.evidence[facts.class_names.index(few[0])]
        more = f" (and {len(few) - 1:,} more such classes)" if len(few) > 1 else ""
        raise UserError(
            f"class {few[0]!r} has {count} training sample{'s' * (count != 1)}{more}, too few to hold one out and to "
            f"choose by it: {wanted} are wanted; add some, leave the class out, or compare without --choose and --tune"
        )
