import pytest
import torch
from torch import nn
from torch.nn import functional as F

from balpoe import CosineClassifier, Dataset, ExpertHead, ExpertNetwork, Preprocessing, product_of_experts
from balpoe.experiments.class_mean_start import start_from_class_means


def clouds(counts, features=16):
    """Samples around a point of their own for each class."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    centres = torch.randn(len(counts), features, generator=generator)
    samples = centres[targets] + 0.3 * torch.randn(len(targets), features, generator=generator)
    names = tuple(f"class {number}" for number in range(len(counts)))
    return Dataset(samples, targets, names, Preprocessing((features,)))


def test_weights_are_the_normalised_means_of_what_the_classifier_sees():
    data = clouds([150, 20, 1])
    head = ExpertHead(16, 3, num_experts=2, hidden=8)
    start_from_class_means(head, data)
    layer = head.branches[0]
    hidden = [F.relu(data.images @ layer.weight[expert].T + layer.bias[expert]) for expert in range(2)]
    for expert in range(2):
        features = torch.cat([data.images, hidden[expert]], dim=1)
        for label in range(3):
            mean = features[data.targets == label].mean(dim=0)
            torch.testing.assert_close(head.classifier.weight[expert, label], mean / mean.norm(), rtol=1e-4, atol=1e-5)
    assert head.training
    assert head.classifier.weight.requires_grad
    answers = product_of_experts(head(data.images)).argmax(dim=1)
    assert (answers == data.targets).double().mean() > 0.95  # without any training


def test_experts_that_share_their_features_start_alike():
    data = clouds([5, 3])
    network = ExpertNetwork(nn.Identity(), [], CosineClassifier(16, 2, num_experts=3))
    start_from_class_means(network, data)
    first, *others = network.classifier.weight
    assert all(torch.equal(first, other) for other in others)
    torch.testing.assert_close(first[1], F.normalize(data.images[data.targets == 1].mean(dim=0), dim=0))


def test_a_class_without_samples_keeps_its_start_and_is_named():
    data, head = clouds([4, 0, 2]), ExpertHead(16, 3, hidden=8)
    before = head.classifier.weight.detach().clone()
    with pytest.warns(UserWarning, match="classes without training samples start from random weights: class 1$"):
        start_from_class_means(head, data)
    assert torch.equal(head.classifier.weight[:, 1], before[:, 1])
    assert not torch.equal(head.classifier.weight[:, 0], before[:, 0])


def test_images_are_taken_in_blocks_and_counted():
    data = clouds([130, 7])
    done = []
    start_from_class_means(ExpertHead(16, 2), data, progress=done.append)
    assert done == [64, 64, 9]
