"""A router: after each expert but the last, whether a further one is asked about a sample (RIDE, Wang et al. 2021).

Experts are asked in order, and the answer is the mean of the logits of those that were. An expert that was not asked
stands in the expert logits with exactly that mean, so that the mean over all experts is the mean over those asked: what
is made of expert logits elsewhere (products, calibration, decisions) need not know of the router.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Router", "experts_asked", "join_scores", "number_asked", "running_means", "split_scores", "unasked_filled"]

ROWS_AT_ONCE = 4096


class Router(nn.Module):
    """Scores above 0 where a further expert is to be asked, from the features and the logits of those before.

    With the features f_e of expert e, of length 1, and the mean v of the logits of the experts up to it,

        score_e = a . relu(W_e f_e + b_e) + c . top(v) + d,

    where top(v) are the largest logits, largest first; a, c and d are the same for all experts. Its parameters are
    not trained before somebody asks for it.

    Args:
        num_features: Number of features in front of an expert's classifier.
        num_classes: Number of classes.
        num_experts: Number of experts, two at least.
        hidden: Number of units of W_e.
        top_logits: Number of logits that are looked at; all, if there are fewer.

    >>> router = Router(num_features=8, num_classes=5, num_experts=3)
    >>> router(torch.randn(4, 3, 8), torch.randn(4, 3, 5)).shape
    torch.Size([4, 2])
    """

    def __init__(
        self, num_features: int, num_classes: int, num_experts: int, hidden: int = 16, top_logits: int = 30
    ) -> None:
        super().__init__()
        self.num_decisions, self.top_logits = num_experts - 1, min(top_logits, num_classes)
        inputs = hidden + self.top_logits
        # Features of length 1 give units of variance 1.
        self.hidden_weight = nn.Parameter(torch.randn(self.num_decisions, hidden, num_features))
        self.hidden_bias = nn.Parameter(torch.zeros(self.num_decisions, hidden))
        self.weight = nn.Parameter(torch.empty(inputs).uniform_(-1, 1) * inputs**-0.5)
        self.bias = nn.Parameter(torch.zeros(1))
        self.requires_grad_(False)

    @property
    def is_trained(self) -> bool:
        """Whether training changes it."""
        return self.weight.requires_grad

    @property
    def multiply_adds(self) -> int:
        """Cost of one decision."""
        return self.hidden_weight[0].numel() + self.weight.numel()

    def forward(self, features: Tensor, means: Tensor, first: int = 0) -> Tensor:
        """Return the scores (batch, decisions) behind some experts; behind the last of all there is none.

        Args:
            features: Features of the experts, (batch, experts or 1, features).
            means: Mean logits of all experts up to each of them, (batch, experts, classes).
            first: Number of the first of these experts.
        """
        last = min(first + means.shape[1], self.num_decisions)
        with torch.autocast(features.device.type, enabled=False):
            unit = F.normalize(features.to(self.weight.dtype), dim=-1).expand(-1, means.shape[1], -1)[:, : last - first]
            weight, bias = self.hidden_weight[first:last], self.hidden_bias[first:last]
            hidden = F.relu(torch.einsum("bef,ehf->beh", unit, weight) + bias)
            best = means[:, : last - first].to(hidden).topk(self.top_logits, dim=2).values
            return torch.cat([hidden, best], dim=2) @ self.weight + self.bias


def running_means(expert_logits: Tensor) -> Tensor:
    """Return the mean logits of the experts up to each, (batch, experts, classes).

    Experts are added one after the other, so that every device finds the same bits.

    >>> running_means(torch.tensor([[[4.0], [2.0], [0.0]]])).flatten()
    tensor([4., 3., 2.])
    """
    total, *others = expert_logits.unbind(dim=1)
    means = [total]
    for number, logits in enumerate(others, start=2):
        total = total + logits
        means.append(total * (1 / number))
    return torch.stack(means, dim=1)


def number_asked(scores: Tensor) -> Tensor:
    """Return how many experts are asked about each sample, (batch,): one more as long as scores are above 0.

    >>> number_asked(torch.tensor([[-1.0, 2.0], [1.0, -2.0], [1.0, 2.0]]))
    tensor([1, 2, 3])
    """
    stops = (~(scores > 0)).long().cumsum(dim=1)  # not a product: other runtimes have sums alone
    return 1 + (stops == 0).long().sum(dim=1)


def unasked_filled(expert_logits: Tensor, asked: Tensor) -> Tensor:
    """Return expert logits in which each expert that was not asked says the mean of those that were.

    Args:
        expert_logits: Expert logits, (batch, experts, classes).
        asked: Number of experts asked about each sample, (batch,).

    >>> unasked_filled(torch.tensor([[[4.0], [2.0], [9.0]]]), torch.tensor([2])).flatten()
    tensor([4., 2., 3.])
    """
    experts = torch.arange(expert_logits.shape[1], device=asked.device)
    place = (asked - 1)[:, None, None].expand(-1, -1, expert_logits.shape[2])
    answer = running_means(expert_logits).gather(1, place)
    return torch.where((experts < asked[:, None])[..., None], expert_logits, answer)


def experts_asked(expert_logits: Tensor) -> Tensor:
    """Return how many experts were asked about each sample, (samples,), of expert logits that a router has filled.

    An expert that was asked never says exactly the mean of those before it, to the last bit of all classes.

    >>> experts_asked(torch.tensor([[[4.0], [2.0], [3.0]], [[4.0], [4.0], [4.0]], [[4.0], [2.0], [9.0]]]))
    tensor([2, 1, 3])
    """
    found = []
    for block in expert_logits.split(ROWS_AT_ONCE):
        own = (block[:, 1:] != running_means(block)[:, :-1]).any(dim=2)
        found.append(1 + own.long().cumprod(dim=1).sum(dim=1))
    return torch.cat(found)


def join_scores(expert_logits: Tensor, scores: Tensor) -> Tensor:
    """Return expert logits with the router's scores behind the classes, (batch, experts, classes + 1), for its loss.

    >>> join_scores(torch.zeros(1, 2, 3), torch.ones(1, 1))[..., -1]
    tensor([[1., 0.]])
    """
    return torch.cat([expert_logits.to(scores), F.pad(scores, (0, 1))[..., None]], dim=2)


def split_scores(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return expert logits (batch, experts, classes) and scores (batch, experts - 1) of what `join_scores` made.

    >>> [part.shape for part in split_scores(torch.zeros(1, 2, 4))]
    [torch.Size([1, 2, 3]), torch.Size([1, 1])]
    """
    return outputs[..., :-1], outputs[:, :-1, -1]
