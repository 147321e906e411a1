"""Distances to class means against plain formulas."""

import pytest
import torch

import balpoe
from balpoe.deployment import class_means
from balpoe.deployment.class_means import ClassMeans, classifier_features
from balpoe.errors import UserError

GENERATOR = torch.Generator().manual_seed(0)
MIX = torch.randn(5, 5, generator=GENERATOR, dtype=torch.float64)
TARGETS = torch.tensor([0] * 400 + [1] * 50 + [3] * 1)
CENTRES = 3 * torch.randn(4, 5, generator=GENERATOR, dtype=torch.float64)


def features_of(targets):
    return CENTRES[targets] + torch.randn(len(targets), 5, generator=GENERATOR, dtype=torch.float64) @ MIX


FEATURES = features_of(TARGETS)


def test_mahalanobis_by_the_formula(monkeypatch):
    monkeypatch.setattr(class_means, "SHRINK", 0.0)
    found = ClassMeans.fit(FEATURES, TARGETS, 4)
    new = features_of(torch.tensor([0, 1, 3, 3, 0]))
    means = {label: FEATURES[label == TARGETS].mean(dim=0) for label in (0, 1, 3)}
    left = torch.stack([row - means[int(label)] for row, label in zip(FEATURES, TARGETS, strict=True)])
    inverse = torch.linalg.inv(left.T @ left / (len(TARGETS) - 3))
    for row, distance in zip(new, found.mahalanobis(new), strict=True):
        every = [
            float((row - mean) @ inverse @ (row - mean)) / (1 + 1 / int((label == TARGETS).sum()))
            for label, mean in means.items()
        ]
        assert float(distance) == pytest.approx(min(every))


def test_cosine_by_the_formula():
    found = ClassMeans.fit(FEATURES, TARGETS, 4)
    means = torch.stack([FEATURES[label == TARGETS].mean(dim=0) for label in (0, 1, 3)])
    new = torch.randn(20, 5, generator=GENERATOR, dtype=torch.float64)
    new = torch.cat([new, means.mean(dim=0) + torch.ones(1, 5)])  # near nothing, also not to a class without samples
    expected = 1 - torch.cosine_similarity(
        (new - means.mean(dim=0))[:, None], (means - means.mean(dim=0))[None], dim=2
    ).amax(dim=1)
    torch.testing.assert_close(found.cosine(new), expected)


def test_blocks_change_nothing(monkeypatch):
    whole = ClassMeans.fit(FEATURES, TARGETS)
    monkeypatch.setattr(class_means, "ROWS_AT_ONCE", 7)
    again = ClassMeans.fit(FEATURES, TARGETS)
    torch.testing.assert_close(again.mahalanobis(FEATURES), whole.mahalanobis(FEATURES))


def test_more_features_than_samples():
    few = torch.randn(6, 40, generator=GENERATOR)
    distances = ClassMeans.fit(few, torch.tensor([0, 0, 1, 1, 2, 2])).mahalanobis(10 * few)
    assert bool(torch.isfinite(distances).all())
    assert float(distances.min()) > 1


@pytest.mark.parametrize("kind", ["mlp", "resnet32"])
def test_features_are_what_the_classifier_sees(kind):
    """The classifier, given the directions, says what the network says."""
    if kind == "mlp":
        data = balpoe.Dataset(torch.randn(9, 8, generator=GENERATOR), torch.zeros(9, dtype=torch.long))
        network = balpoe.expert_network("mlp", num_classes=4, num_experts=3, num_features=8)
    else:
        data = balpoe.Dataset(torch.zeros(5, 3, 32, 32, dtype=torch.uint8), torch.zeros(5, dtype=torch.long))
        network = balpoe.expert_network("resnet32", num_classes=4, num_experts=3, width=4)
    features = classifier_features(network, data, batch_size=4)
    assert network.training
    network.eval()
    expected = network(data.preprocessing.normalise(data.images)).detach()
    logits = network.classifier(features.unflatten(1, (3, -1))).detach()
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("features", "targets", "message"),
    [
        (torch.zeros(3, 2), [0, 1], "features of 3 samples, but 2 targets"),
        (torch.zeros(3), [0, 1, 1], r"shape \(samples, features\), but have \(3,\)"),
        (torch.full((2, 2), torch.nan), [0, 1], "features must be numbers"),
    ],
)
def test_bad_features(features, targets, message):
    with pytest.raises(UserError, match=message):
        ClassMeans.fit(features, targets)
