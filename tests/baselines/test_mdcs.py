import math

import pytest
import torch

from balpoe import UserError
from balpoe.baselines.mdcs import MDCSLoss
from balpoe.cli.main import main
from balpoe.data.augment.operations import AUGMENTATIONS, Flip
from balpoe.data.dataset import Dataset
from balpoe.data.loading.epoch_plan import plan_epoch
from balpoe.data.loading.in_memory import ResidentData
from commands import sentence

PRIOR = torch.tensor([0.7, 0.2, 0.1])
LAMBDAS = (1.5, 0.0, -1.5)


def softmax(values):
    shifted = [math.exp(value - max(values)) for value in values]
    return [value / sum(shifted) for value in shifted]


@pytest.mark.parametrize("progress", [0.0, 0.04, 0.7])
def test_the_loss_is_the_formula(progress):
    """A loop over samples, views, experts and classes."""
    logits = 3 * torch.randn(10, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    targets = torch.tensor([0, 1, 2, 0, 0])
    values = []
    for row, label in enumerate(targets.tolist()):
        value = 0.0
        for expert, lambda_ in enumerate(LAMBDAS):
            weak, strong = (logits[place, expert].tolist() for place in (row, row + 5))
            for view in (weak, strong):
                moved = [v + (1 - lambda_) * math.log(float(p)) for v, p in zip(view, PRIOR, strict=True)]
                value -= math.log(softmax(moved)[label]) / 2 / 3
            if max(range(3), key=weak.__getitem__) == label:
                pairs = zip(*(softmax([v / 2 for v in view]) for view in (weak, strong)), strict=True)
                value += 0.6 * min(1, progress / 0.1) * 4 * sum(p * math.log(p / q) for p, q in pairs) / 3
        values.append(value)
    loss = MDCSLoss(PRIOR.double(), torch.tensor(LAMBDAS))
    assert loss(logits, targets, progress, "none").tolist() == pytest.approx(values, rel=1e-6)


def test_the_weak_view_is_not_taught():
    loss = MDCSLoss(PRIOR, torch.tensor(LAMBDAS))
    logits = torch.randn(8, 3, 3, requires_grad=True)
    targets = logits[:4, 0].argmax(dim=1)
    (whole,) = torch.autograd.grad(loss(logits, targets, 1.0), logits)
    (without,) = torch.autograd.grad(loss(logits, targets, 0.0), logits)
    assert torch.equal(whole[:4], without[:4])
    assert not torch.equal(whole[4:], without[4:])


def test_two_views_of_the_same_images():
    images = torch.randint(256, (12, 3, 8, 8), dtype=torch.uint8)
    data = Dataset(images, torch.arange(12) % 3)
    strong = ResidentData(data, torch.device("cpu"), (Flip(),), 0, AUGMENTATIONS["autoaugment-cutout"])
    plain = ResidentData(data, torch.device("cpu"), (Flip(),), 0)
    plan = plan_epoch(0, 1, 12, 6)
    for both, one in zip(strong.batches(plan, 1), plain.batches(plan, 1), strict=True):
        assert (len(both.images), len(both.targets)) == (12, 6)
        assert torch.equal(both.images[:6], one.images)
        assert not torch.equal(both.images[6:], one.images)
    nothing = ResidentData(data, torch.device("cpu"), (), 0, ())
    for batch in nothing.batches(plan, 1):
        assert torch.equal(batch.images[:6], batch.images[6:])


def test_one_view_is_refused():
    with pytest.raises(UserError, match="two views of each of 4 samples"):
        MDCSLoss(PRIOR, torch.tensor(LAMBDAS))(torch.zeros(4, 3, 3), torch.tensor([0, 1, 2, 0]))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("train --method mdcs", "mdcs compares two views of an image, which features do not have"),
        ("train --method cmo", "cmo pastes parts of images, which features do not have"),
        ("train --cutmix-probability 0.5", "CutMix pastes parts of images, which features do not have"),
        ("compare --methods cmo,balpoe", "cmo does not fit these data: cmo pastes parts of images"),
        ("compare --methods balpoe --cutmix-probability 0.5", "balpoe does not fit these data: CutMix pastes parts"),
    ],
)
def test_features_have_neither_views_nor_parts(command, why, tmp_path, capsys):
    """It is said before anything is trained, be it cross-entropy to compare with."""
    import numpy as np

    np.savez(tmp_path / "x.npz", features=np.random.default_rng(0).normal(size=(60, 4)), labels=np.arange(60) % 3)
    assert main([*command.split(), str(tmp_path / "x.npz"), "--runs", str(tmp_path / "runs")]) == 2
    assert why in sentence(capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()
