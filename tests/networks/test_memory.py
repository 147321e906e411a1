"""Too little memory, of a GPU that is played here: passes in halves, and parts that fit."""

import pytest
import torch

from balpoe import Dataset, ExpertHead, UserError, predict
from balpoe.experiments.class_mean_start import start_from_class_means
from balpoe.networks.memory import fitting_parts, forward_that_fits


class SmallMemory:
    """A pass that fails, as a GPU does, for more rows than a number; it notes the rows of those that do not."""

    def __init__(self, rows, forward=torch.neg):
        self.rows, self.forward, self.passes = rows, forward, []

    def __call__(self, samples):
        if len(samples) > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        self.passes.append(len(samples))
        return self.forward(samples)


@pytest.mark.parametrize(("rows", "passes"), [(99, [11]), (11, [11]), (10, [6, 5]), (5, [3, 3, 5]), (1, [1] * 11)])
def test_what_does_not_fit_passes_in_halves(rows, passes):
    samples, forward = torch.arange(22.0).view(11, 2), SmallMemory(rows)
    assert torch.equal(forward_that_fits(forward, samples), -samples)
    assert forward.passes == passes


def test_one_sample_that_does_not_fit_is_said():
    with pytest.raises(UserError, match=r"^not even one sample .* of the GPU; take smaller .*, or --device cpu$"):
        forward_that_fits(SmallMemory(0), torch.zeros(3, 2))


def test_predictions_and_class_means_are_those_of_a_large_memory(monkeypatch):
    torch.manual_seed(0)
    data, head = Dataset(torch.randn(20, 4), torch.arange(20) % 2), ExpertHead(4, 2, hidden=3)
    start_from_class_means(head, data)
    expected = predict(head, data, class_counts=data.class_counts).expert_logits
    weight, small = head.classifier.weight.detach().clone(), SmallMemory(3, head.forward)
    monkeypatch.setattr(head, "forward", small)
    torch.testing.assert_close(predict(head, data, class_counts=data.class_counts).expert_logits, expected)
    assert max(small.passes) == 3
    small = SmallMemory(3, head.expert_features)
    monkeypatch.setattr(head, "expert_features", small)
    start_from_class_means(head, data)
    torch.testing.assert_close(head.classifier.weight.detach(), weight)
    assert max(small.passes) == 3


@pytest.mark.parametrize(("fits", "begun", "found"), [(16, 1, 2), (3, 1, 16), (1, 3, 32), (0, 1, None), (9, 32, None)])
def test_parts_are_doubled_until_one_fits(fits, begun, found):
    tried = []

    def attempt(parts):
        tried.append(parts)
        if -(-32 // parts) > fits:
            raise torch.OutOfMemoryError

    assert fitting_parts(32, begun, attempt, torch.OutOfMemoryError()) == found
    assert tried == sorted(set(tried))
    assert all(begun < parts <= 32 for parts in tried)


def test_what_an_attempt_left_is_free_before_the_next():
    """An error holds the variables of the functions that it came through."""
    alive = []

    class Activation:
        def __del__(self):
            alive.remove(self.number)

        def __init__(self, number):
            self.number = number
            alive.append(number)

    def attempt(parts):
        before = list(alive)
        kept = Activation(parts)
        assert before == []
        if kept.number < 8:
            raise torch.OutOfMemoryError

    try:
        attempt(1)
    except torch.OutOfMemoryError as error:
        found = fitting_parts(32, 1, attempt, error)
    assert found == 8
