"""What tests of torch's compiler do in a process of their own, which imports it from here."""

import torch

from balpoe import BalPoELoss
from balpoe.data.loading.in_memory import Batch
from balpoe.networks import CosineClassifier
from balpoe.private_apis import compiling
from balpoe.training.learner import batch_loss


def number_of_compilations():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    def work(x):
        return x * 2

    function = torch.compile(work, dynamic=False, backend=backend)
    with compiling():
        for size in range(2, 14):
            function(torch.zeros(size))
    return len(compiled)


def distances_of_compiled_gradients():
    torch.manual_seed(0)
    classifier, loss = CosineClassifier(16, 5, 1), BalPoELoss([5, 4, 3, 2, 1], (0.0,))
    features, gradients = torch.randn(8, 1, 16, requires_grad=True), []
    for function in (batch_loss, torch.compile(batch_loss, dynamic=False, backend="aot_eager", fullgraph=True)):
        features.grad = classifier.weight.grad = None
        with compiling(), torch.autocast("cpu", torch.bfloat16):
            value = function(classifier, loss, Batch(features, torch.arange(8) % 5), 0.0)
        value.backward()
        gradients.append((features.grad, classifier.weight.grad))
    return [float((ours - eager).norm() / eager.norm()) for eager, ours in zip(*gradients, strict=True)]
