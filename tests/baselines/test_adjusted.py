"""Methods of one fixed lambda against the formulas of their papers."""

import pytest
import torch
from torch.nn import functional as F

from balpoe import BalPoELoss, class_prior
from balpoe.baselines.catalogue import checked_settings, load_method
from balpoe.baselines.method import MethodInputs
from balpoe.experiments.build import method_parts
from balpoe.experiments.recipe import Recipe

COUNTS = torch.tensor([500, 100, 20, 5])
LOGITS, TARGETS = torch.randn(9, 1, 4, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 4


def parts_of(name, experts=1, **settings):
    inputs = MethodInputs(COUNTS, class_prior(COUNTS), (), experts)
    return method_parts(Recipe(method=name, method_settings=settings), inputs)


def test_cross_entropy_and_mixup_have_the_training_prior():
    for name in ("cross-entropy", "mixup"):
        loss, lambdas, source = parts_of(name)
        torch.testing.assert_close(loss(LOGITS, TARGETS), F.cross_entropy(LOGITS[:, 0], TARGETS))
        assert lambdas.tolist() == [1.0]
        torch.testing.assert_close(source, class_prior(COUNTS))


def test_balanced_softmax_adds_the_logarithms_of_the_counts():
    loss, lambdas, source = parts_of("balanced-softmax")
    torch.testing.assert_close(loss(LOGITS, TARGETS), F.cross_entropy(LOGITS[:, 0] + COUNTS.log(), TARGETS))
    assert lambdas.tolist() == [0.0]
    torch.testing.assert_close(source, torch.full((4,), 0.25))


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_logit_adjustment_adds_tau_times_the_logarithm_of_the_prior(tau):
    loss, lambdas, source = parts_of("logit-adjustment", tau=tau)
    prior = COUNTS / COUNTS.sum()
    torch.testing.assert_close(loss(LOGITS, TARGETS), F.cross_entropy(LOGITS[:, 0] + tau * prior.log(), TARGETS))
    assert lambdas.tolist() == [1 - tau]
    torch.testing.assert_close(source, torch.softmax((1 - tau) * prior.log(), 0))


def test_the_uniform_ensemble_is_balpoe_with_zeros():
    loss, lambdas, _ = parts_of("logit-adjustment-ensemble", 3)
    assert lambdas.tolist() == [0.0, 0.0, 0.0]
    logits = torch.randn(9, 3, 4)
    assert torch.equal(loss(logits, TARGETS), BalPoELoss(COUNTS, (0, 0, 0))(logits, TARGETS))
    assert Recipe(method="logit-adjustment-ensemble").experts == 3
    assert Recipe(method="logit-adjustment-ensemble", num_experts=7).experts == 7


def test_no_method_here_has_a_setting_but_tau():
    assert checked_settings("logit-adjustment", {}) == {"tau": 1.0}
    assert checked_settings("balanced-softmax", {}) == {}
    assert load_method("cross-entropy") is load_method("mixup")
