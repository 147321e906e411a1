import pytest
import torch

import balpoe
from balpoe.evaluation.random_error import random_error, random_error_notes


@pytest.mark.parametrize("samples", [36, 400, 5000])
def test_the_random_error_is_the_mean_ece_of_labels_drawn_from_the_probabilities(samples):
    generator = torch.Generator().manual_seed(samples)
    logits = 2 * torch.randn(samples, 6, generator=generator)
    drawn = []
    for _ in range(60):
        targets = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
        predictions = balpoe.Predictions(logits[:, None], targets, [1] * 6)
        drawn.append(balpoe.evaluate(predictions, num_resamples=0).to_dict())
    mean = sum(each["ece"] for each in drawn) / len(drawn)
    assert random_error(drawn[0]["reliability"], samples) == pytest.approx(mean, rel=0.15)
    said = sum(bool(random_error_notes(each)) for each in drawn)
    assert said == 0 if samples == 5000 else said > 50  # an ECE of a per cent needs no excuse


def test_an_overconfident_model_gets_no_excuse():
    targets = torch.arange(400) % 2
    wrong = targets.clone()
    wrong[::4] = 1 - wrong[::4]
    logits = 8.0 * torch.nn.functional.one_hot(wrong, 2)
    evaluation = balpoe.evaluate(balpoe.Predictions(logits[:, None], targets, [1, 1]), num_resamples=0).to_dict()
    assert evaluation["ece"] > 0.2
    assert random_error_notes(evaluation) == []
