"""Some of the experts: their own product, with the prior that their lambdas give it."""

import pytest
import torch

from balpoe.deployment.some_experts import with_experts
from balpoe.method.ensemble import shift_prior
from balpoe.method.expert_calibration import ExpertCalibration
from exported_models import made_feature_model, made_features


@pytest.mark.parametrize("chosen", [[0], [2, 0], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("lambdas", [(1.0, 0.0, -1.0), ((1.0, 2, 0, 0.5), (0.0, 0, 1, 1), (-1.0, -1, 0, 3))])
def test_product_calibration_and_prior_are_those_of_the_chosen_ones(chosen, lambdas):
    """By Theorem 1: posteriors of the training set, calibrated, less what the loss added, and then any prior."""
    model = made_feature_model(lambdas=lambdas, calibration=ExpertCalibration((1.5, 0.8, 1.2), frequency_bias=0.1))
    rows, prior = made_features(6), torch.tensor([0.4, 0.3, 0.2, 0.1])
    some, logits = with_experts(model, chosen), model.expert_logits(rows).double()
    torch.testing.assert_close(some.expert_logits(rows), logits[:, chosen].float())
    log_train = model.train_prior.double().log()
    parts, log_source = [], 0
    for expert in chosen:
        power = torch.tensor(lambdas[expert]).double() * torch.ones(4)
        offset = (1 - power) * log_train
        scale = 1 / model.calibration.temperatures[expert]
        parts.append((logits[:, expert] + offset) * scale - offset + 0.1 * log_train)
        log_source = log_source + power * log_train / len(chosen)
    product = torch.stack(parts).mean(dim=0)
    expected = shift_prior(product, prior, log_source.softmax(dim=0)).softmax(dim=1).float()
    torch.testing.assert_close(some.predict(rows, prior), expected)


def test_a_prior_that_no_lambda_moves_stays():
    model = made_feature_model(lambdas=None, source_prior=torch.full((4,), 0.25), method="ride")
    assert torch.equal(with_experts(model, [1]).source_prior, model.source_prior)
    model = made_feature_model(lambdas=None, method="ride")
    assert with_experts(model, [1]).source_prior is None


def test_without_its_router_all_that_are_left_are_asked():
    model = made_feature_model()
    whole = model.expert_logits(made_features(5))
    model.network.add_router()
    torch.testing.assert_close(with_experts(model, [0, 2]).expert_logits(made_features(5)), whole[:, [0, 2]])
