"""Small models for export, with statistics and a calibration that are not those of a beginning."""

import torch

import balpoe
from balpoe.experiments.recipe import Recipe
from balpoe.method.expert_calibration import ExpertCalibration

COUNTS = torch.tensor([300, 120, 60, 15])
NAMES = ("oak", "ash", "elm", "yew")
SIZE = (3, 16, 16)


def model_of(trained, size, lambdas=(1.0, 0.5, -1.0), source_prior=None, calibration=None, **recipe):
    """A model of four trees."""
    statistics = ((0.5, 0.4, 0.3), (0.2, 0.25, 0.3)) if len(size) == 3 else ((0.5,), (2.0,))
    lambdas = None if lambdas is None else torch.tensor(lambdas)
    return balpoe.Model(
        trained.eval(), NAMES, COUNTS, balpoe.Preprocessing(size, *statistics), COUNTS / COUNTS.sum(), lambdas,
        Recipe(**recipe), source_prior, calibration,
    )  # fmt: skip


def made_image_model():
    """A network for images; the fixture `eight_layers` makes it small."""
    torch.manual_seed(0)
    network = balpoe.expert_network("resnet32", num_classes=4, num_experts=3, width=4, cosine_scale=8.0)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(module.weight, 0.5, 2)
    return model_of(network, SIZE, calibration=ExpertCalibration((1.5, 0.8, 1.2), frequency_bias=0.1))


def made_feature_model(**settings):
    """A network for feature vectors."""
    torch.manual_seed(0)
    network = balpoe.expert_network("mlp", num_classes=4, num_experts=3, num_features=6, width=8, cosine_scale=8.0)
    return model_of(network, (6,), **settings, network="mlp", width=(8,), cosine_scale=8.0)


def made_images(number, seed=1):
    return torch.randint(0, 256, (number, *SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def made_features(number, seed=1):
    return torch.randn(number, 6, generator=torch.Generator().manual_seed(seed))
