"""Every operation against torchvision's tensor function, one picture at a time, with the same parameters."""

import numpy as np
import pytest
import torch
from torchvision.transforms import AutoAugment as TorchvisionAutoAugment
from torchvision.transforms import AutoAugmentPolicy
from torchvision.transforms import functional as V

from balpoe.data.augment import (
    AUGMENTATIONS,
    MAGNITUDES,
    OPERATIONS,
    SIGNED,
    AutoAugment,
    Crop,
    Flip,
    Rotate,
    crop,
    flip,
    rotate,
)


@pytest.fixture
def images():
    return torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_crop(images):
    top, left = torch.arange(40) % 9, torch.arange(40) // 5
    ours = crop(images, top, left, padding=4)
    for i, image in enumerate(images):
        theirs = V.crop(V.pad(image, [4]), int(top[i]), int(left[i]), 32, 32)
        assert torch.equal(ours[i], theirs)


def test_flip(images):
    flipped = torch.arange(40) % 3 == 0
    ours = flip(images, flipped)
    for i, image in enumerate(images):
        assert torch.equal(ours[i], V.hflip(image) if flipped[i] else image)


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (9, 14)])
def test_rotate(size):
    chance = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (300, 3, *size), dtype=torch.uint8, generator=chance)
    angles = torch.rand(300, generator=chance, dtype=torch.float64) * 30 - 15
    angles[:4] = torch.tensor([0.0, 15.0, -15.0, 90.0])
    ours = rotate(images, angles)
    for i, image in enumerate(images):
        assert torch.equal(ours[i], V.rotate(image, float(angles[i]))), float(angles[i])


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_autoaugment(images, name):
    """torchvision's own table of magnitudes and its dispatcher, for every level and sign."""
    from torchvision.transforms.autoaugment import _apply_op

    table = TorchvisionAutoAugment(AutoAugmentPolicy.CIFAR10)._augmentation_space(10, (32, 32))
    theirs, signed = table[name]
    assert signed == (name in SIGNED)
    assert (theirs.ndim == 1) == (name in MAGNITUDES)
    for level in range(10) if name in MAGNITUDES else [0]:
        for sign in (1, -1) if signed else (1,):
            ours = OPERATIONS[name](images[:6], sign * MAGNITUDES.get(name, [0.0])[level], 128)
            magnitude = sign * float(theirs[level] if theirs.ndim else 0.0)
            for i in range(6):
                expected = _apply_op(images[i], name, magnitude, V.InterpolationMode.NEAREST, [128.0] * 3)
                assert torch.equal(ours[i], expected), (level, sign)


def test_autoaugment_follows_the_policy(images):
    """Replayed picture by picture from the same draws."""
    many = images.repeat(10, 1, 1, 1)
    ours = AutoAugment()(many, np.random.default_rng(5))
    chance = np.random.default_rng(5)
    policies = TorchvisionAutoAugment(AutoAugmentPolicy.CIFAR10).policies
    assert len(policies) == 25
    policy = chance.integers(0, 25, size=len(many))
    applied, negative = chance.random((2, len(many))), chance.random((2, len(many))) < 0.5
    for i, image in enumerate(many):
        expected = image[None]
        for position, (name, probability, level) in enumerate(policies[policy[i]]):
            if applied[position, i] < probability:
                magnitude = MAGNITUDES[name][level] if level is not None else 0.0
                sign = -1 if name in SIGNED and negative[position, i] else 1
                expected = OPERATIONS[name](expected, sign * magnitude, 128)
        assert torch.equal(ours[i], expected[0]), i
    assert set(policy.tolist()) == set(range(25))


@pytest.mark.parametrize("operation", [Crop(), Flip(), Rotate(), AutoAugment()], ids=lambda o: type(o).__name__)
def test_draws_decide_and_the_input_stays_as_it_was(images, operation):
    before = images.clone()
    first, second, other = (operation(images, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(images, before)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert first.shape == images.shape
    assert first.dtype == torch.uint8


def test_the_named_augmentations():
    assert AUGMENTATIONS["standard"] == (Crop(4), Flip(), Rotate(15.0))
    assert AUGMENTATIONS["autoaugment"] == (Crop(4), Flip(), AutoAugment(128))
    assert AUGMENTATIONS["crop-flip"] == (Crop(4), Flip())
    assert AUGMENTATIONS["none"] == ()


def test_how_often_and_how_far(images):
    many = images.repeat(50, 1, 1, 1)
    flipped = (Flip()(many, np.random.default_rng(0)) != many).flatten(1).any(dim=1).double().mean()
    assert float(flipped) == pytest.approx(0.5, abs=0.05)
    still = (Crop()(many, np.random.default_rng(0)) == many).flatten(1).all(dim=1).double().mean()
    assert float(still) == pytest.approx(1 / 81, abs=0.01)
