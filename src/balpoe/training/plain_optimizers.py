"""Torch's optimisers without what they do for torch's compiler, whose import takes seconds.

Torch wraps some of their methods, so that its compiler leaves them out; each wrapper imports it, whether or not
anything is compiled. Here are the same methods without it.
"""

from inspect import unwrap

import torch

__all__ = ["SGD", "AdamW"]


class _Plain(torch.optim.Optimizer):
    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class SGD(_Plain, torch.optim.SGD):
    """`torch.optim.SGD`."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class AdamW(_Plain, torch.optim.AdamW):
    """`torch.optim.AdamW`."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
