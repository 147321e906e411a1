"""SADE's loss against its own formula."""

import torch

from balpoe import class_prior, logit_offsets
from balpoe.baselines.sade import backward_lambdas


def test_backward_lambdas_give_the_loss_of_sade_s_third_expert():
    generator = torch.Generator().manual_seed(0)
    prior = class_prior(torch.rand(7, generator=generator, dtype=torch.float64) + 0.01)
    ranked = prior.argsort(descending=True)
    backward = torch.empty_like(prior)
    for rank, label in enumerate(ranked):
        backward[label] = prior[ranked[len(ranked) - 1 - rank]]
    lambdas = torch.stack([torch.ones(7).double(), torch.zeros(7).double(), backward_lambdas(prior, 2.0)])
    offsets = logit_offsets(prior, lambdas)
    expected = torch.stack([torch.zeros(7).double(), prior.log(), prior.log() - 2 * backward.log()])
    torch.testing.assert_close(offsets, expected, atol=1e-12, rtol=0)
