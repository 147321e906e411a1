"""The method in one's own training loop: one loss and two functions, no framework."""

import torch
from torch import Tensor, nn

import balpoe


class ThreeExperts(nn.Module):
    """Any network will do, as long as it returns (batch, experts, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 64), nn.ReLU())
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return expert logits."""
        shared = self.trunk(x)
        return torch.stack([expert(shared) for expert in self.experts], dim=1)


def main() -> None:
    """Train on generated data whose classes have 600, 200, 60 and 20 samples."""
    torch.manual_seed(0)
    class_counts = torch.tensor([600, 200, 60, 20])
    centres = torch.randn(4, 20)
    targets = torch.repeat_interleave(torch.arange(4), class_counts)
    features = centres[targets] + torch.randn(len(targets), 20) * 1.5

    network = ThreeExperts()
    loss = balpoe.BalPoELoss(class_counts, lambdas=(1, 0, -1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    # An ordinary, shuffled loader. Do not resample or re-weight as well: the loss accounts for the counts.
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, targets), 64, shuffle=True)
    for _ in range(20):
        for x, y in loader:
            mixed = balpoe.mixup(x, alpha=0.4)
            value = balpoe.mixed_loss(loss, network(mixed.images), y, mixed)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()

    balanced = torch.arange(400) % 4
    with torch.no_grad():
        logits = balpoe.product_of_experts(network(centres[balanced] + torch.randn(400, 20) * 1.5))
        print(f"balanced accuracy: {(logits.argmax(dim=1) == balanced).float().mean():.3f}")
        # Where the third class makes up most of what comes in:
        moved = balpoe.shift_prior(logits, target_prior=[0.1, 0.1, 0.7, 0.1])
        print(
            f"share of answers that name it, before and after: "
            f"{(logits.argmax(dim=1) == 2).float().mean():.2f}, {(moved.argmax(dim=1) == 2).float().mean():.2f}"
        )


if __name__ == "__main__":
    main()
