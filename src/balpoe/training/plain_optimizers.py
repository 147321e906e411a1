"""Torch's optimisers without what they do for torch's compiler, whose import takes seconds.

Torch wraps some of their methods, so that its compiler leaves them out; each wrapper imports it, whether or not
anything is compiled. Here are the same methods without it.
"""

from inspect import unwrap
from typing import Any

import torch

__all__ = ["SGD", "AdamW"]


class _Plain(torch.optim.Optimizer):
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add weights with settings of their own."""
        unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        unwrap(torch.optim.Optimizer.zero_grad)(self, set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return what has to be kept to go on."""
        state: dict[str, Any] = unwrap(torch.optim.Optimizer.state_dict)(self)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with what was kept."""
        unwrap(torch.optim.Optimizer.load_state_dict)(self, state_dict)


class SGD(_Plain, torch.optim.SGD):
    """`torch.optim.SGD`."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class AdamW(_Plain, torch.optim.AdamW):
    """`torch.optim.AdamW`."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
