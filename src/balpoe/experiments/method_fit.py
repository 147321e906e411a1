"""Whether a method fits some data, and whether held-out samples can judge it: asked before anything is trained."""

from typing import NamedTuple

import torch

from balpoe.baselines.method import MethodInputs
from balpoe.errors import UserError
from balpoe.experiments.build import check_fits, data_parts, method_parts
from balpoe.experiments.calibrate import FOLDS, NETWORKS
from balpoe.experiments.recipe import Recipe, updated
from balpoe.method.intervals import evidence_counts
from balpoe.method.priors import class_prior

__all__ = ["DataFacts", "check_held_out", "data_facts", "has_posterior", "misfit"]


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
    images = len(parts.train.preprocessing.size) == 3 and not recipe.frozen
    outside = parts.held_out is not None
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
    counts = torch.tensor(facts.class_counts)
    prior = class_prior(counts, method=recipe.prior_method, smoothing=recipe.smoothing)
    inputs = MethodInputs(counts, prior, recipe.expert_lambdas, recipe.experts, recipe.cosine_scale)
    return method_parts(recipe, inputs)[2] is not None


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
