"""The prior that a server assumes; what requests ask for is in test_app.py."""

from dataclasses import replace

import pytest
import torch

from balpoe.deployment.serve.priors import Priors
from served import image_model


@pytest.mark.parametrize("asked", [None, "uniform"])
def test_a_model_with_a_prior_of_its_own_is_asked_under_it_unless_the_server_is_told_another(asked):
    model = image_model()
    own = torch.arange(1.0, len(model.class_names) + 1)
    assumed = Priors(replace(model, default_prior=own / own.sum()), asked)(None)
    expected = torch.ones_like(own) if asked else own
    torch.testing.assert_close(assumed.target, (expected / expected.sum()).double(), rtol=1e-6, atol=0)
    assert assumed.name == (asked or "the model's own")
    assert Priors(model)(None).target is None
