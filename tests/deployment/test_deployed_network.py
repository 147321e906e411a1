"""Experts beside each other say what they said together."""

import pytest
import torch

import balpoe
from balpoe.deployment.deployed_network import DeployedNetwork, SeparateExperts
from balpoe.networks import add_adapters
from exported_models import made_feature_model, made_features, made_image_model, made_images

TIMM = {"num_classes": 4, "num_experts": 3, "image_size": 32}


def adapted(kind, split):
    network = balpoe.expert_network("test_vit", **TIMM)
    add_adapters(network, kind, split=split)
    for name, weight in network.named_parameters():
        if name.endswith(".up"):
            torch.nn.init.normal_(weight, std=0.3)
    return network


def routed():
    network = balpoe.expert_network("resnet32", num_classes=4, num_experts=3, width=2)
    network.add_router(hidden=4)
    network.router.weight.copy_(torch.randn(len(network.router.weight)))
    return network


def scaled_by_class():
    network = balpoe.expert_network("resnet32", num_classes=4, num_experts=3, width=2, split=3)
    network.classifier.add_class_scale()
    network.classifier.class_scale.uniform_(0.5, 2)
    return network


@pytest.mark.parametrize(
    "make",
    [
        routed,
        scaled_by_class,
        lambda: balpoe.expert_network("resnet32", num_classes=4, num_experts=2, width=2, split=0),
        lambda: balpoe.expert_network("resnet32", num_classes=4, num_experts=1, width=2),
        lambda: balpoe.expert_network("test_resnet", split=2, **TIMM),
        lambda: balpoe.expert_network("test_vit", split=2, **TIMM),
        lambda: balpoe.expert_network("test_efficientnet", **TIMM),
        lambda: adapted("lora", 0),
        lambda: adapted("lora", 1),
        lambda: adapted("adaptformer", 1),
    ],
)
def test_every_kind_of_network(make, eight_layers):
    torch.manual_seed(0)
    network = make().eval()
    images = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(SeparateExperts(network)(images), network(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prior", [[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0, 0]])
def test_the_whole_way_is_the_models(prior, eight_layers):
    for model, samples in ((made_image_model(), made_images(5)), (made_feature_model(), made_features(5))):
        deployed = DeployedNetwork(model).eval()
        with torch.no_grad():
            logits, probabilities, expert_logits = deployed(samples, torch.tensor(prior).log())
            _, default, _ = deployed(samples, model.source_prior.log())
        torch.testing.assert_close(probabilities, model.predict(samples, prior), atol=2e-6, rtol=0)
        torch.testing.assert_close(default, model.predict(samples), atol=2e-6, rtol=0)
        torch.testing.assert_close(expert_logits, model.expert_logits(samples), atol=2e-5, rtol=0)
        torch.testing.assert_close(logits.softmax(dim=1), probabilities)


def test_the_model_stays_as_it_was():
    model = made_feature_model()
    before = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    DeployedNetwork(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.network.state_dict().items())
    assert all(weight.requires_grad for weight in model.network.parameters())
