"""A model of some of its experts: less to compute, and the prior of those that are left."""

from collections.abc import Sequence
from dataclasses import replace

from balpoe.deployment.model import Model
from balpoe.errors import UserError

__all__ = ["with_experts"]


def with_experts(model: Model, experts: Sequence[int]) -> Model:
    """Return a model of some experts; without a router, as all of them are asked.

    The mean of their lambdas is another than that of all, and so is the prior that their product is made for; it
    follows from the lambdas (Theorem 1), and with it every move to a deployment prior is exact again.

    Args:
        model: Model of several experts.
        experts: Numbers of those that stay, from 0.

    >>> import torch
    >>> from balpoe import Preprocessing, expert_network
    >>> from balpoe.experiments.recipe import Recipe
    >>> network = expert_network("mlp", num_classes=2, num_experts=3, num_features=4)
    >>> counts, prior, lambdas = torch.tensor([90, 10]), torch.tensor([0.9, 0.1]), torch.tensor([1.0, 0.0, -1.0])
    >>> model = Model(network, ("common", "rare"), counts, Preprocessing((4,)), prior, lambdas, Recipe())
    >>> with_experts(model, [0]).source_prior, with_experts(model, [0, 2]).source_prior
    (tensor([0.9000, 0.1000]), tensor([0.5000, 0.5000]))
    """
    network, chosen = model.network, list(experts)
    if not hasattr(network, "some_experts"):
        raise UserError("the experts of this model cannot be told apart; export all of them")
    known = range(network.num_experts)
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(known):
        raise UserError(f"experts must be different numbers from 0 to {known[-1]}, but are {chosen}")
    calibration = model.calibration
    if calibration is not None:
        calibration = replace(calibration, temperatures=tuple(calibration.temperatures[index] for index in chosen))
    lambdas = None if model.lambdas is None else model.lambdas[chosen]
    return replace(model, network=network.some_experts(chosen), lambdas=lambdas, calibration=calibration)
