"""Every operation against torchvision's tensor function, one picture at a time, with the same parameters."""

import numpy as np
import pytest
import torch
from torchvision.transforms import AutoAugment as TorchvisionAutoAugment
from torchvision.transforms import AutoAugmentPolicy
from torchvision.transforms import functional as V
from torchvision.transforms.autoaugment import _apply_op

from balpoe.data import augment
from balpoe.data.augment import (
    AUGMENTATIONS,
    AutoAugment,
    Crop,
    Cutout,
    Flip,
    Rotate,
    crop,
    cutout,
    flip,
    rotate,
)
from balpoe.data.autoaugment import MAGNITUDES, OPERATIONS, SIGNED, group_rows

GEOMETRY = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


@pytest.fixture
def images():
    return torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def hard_images(size, channels=3):
    """Noise, noise of two values and of few, smooth slopes, one with a lone bright pixel, and flat grey values."""
    chance, (height, width) = torch.Generator().manual_seed(1), size
    noise = torch.randint(0, 256, (3, channels, *size), generator=chance)
    two = 3 + 200 * torch.randint(0, 2, (1, channels, *size), generator=chance)
    few = torch.randint(100, 104, (1, channels, *size), generator=chance)
    slope = (
        torch.linspace(20, 200, height)[:, None] + torch.linspace(0, 50, width) + torch.arange(channels)[:, None, None]
    )
    spot = torch.full((1, channels, *size), 9)
    spot[..., -1, -1] = 250
    flat = torch.tensor([0, 1, 77, 128, 254, 255])[:, None, None, None].expand(-1, channels, *size)
    return torch.cat([noise, two, few, slope[None], slope[None] / 40, spot, flat]).to(torch.uint8)


def every_magnitude(name):
    """Each level, in both directions where the operation has two."""
    levels = MAGNITUDES.get(name, [0.0])
    return [sign * level for sign in ((1, -1) if name in SIGNED else (1,)) for level in levels]


def torchvision_magnitudes(name, size):
    """The same from torchvision's own table."""
    levels, signed = TorchvisionAutoAugment(AutoAugmentPolicy.CIFAR10)._augmentation_space(10, size)[name]
    return [sign * float(level) for sign in ((1, -1) if signed else (1,)) for level in levels.reshape(-1)]


def one_by_one(name, image, magnitude):
    return _apply_op(image, name, magnitude, V.InterpolationMode.NEAREST, [128.0] * len(image))


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


@pytest.mark.parametrize("fill", [0, 128])
@pytest.mark.parametrize("size", [(32, 32), (8, 8), (9, 14)])
def test_rotate(size, fill):
    chance = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (300, 3, *size), dtype=torch.uint8, generator=chance)
    angles = torch.rand(300, generator=chance, dtype=torch.float64) * 30 - 15
    angles[:4] = torch.tensor([0.0, 15.0, -15.0, 90.0])
    ours = rotate(images, angles, fill)
    for i, image in enumerate(images):
        assert torch.equal(ours[i], V.rotate(image, float(angles[i]), fill=[float(fill)] * 3)), float(angles[i])


@pytest.mark.parametrize("size", [(32, 32), (9, 14), (5, 3)])
def test_cutout(size):
    height, width = size
    images = torch.full((height * width, 3, height, width), 7, dtype=torch.uint8)
    rows, columns = torch.arange(height).repeat_interleave(width), torch.arange(width).repeat(height)
    for length in (16, 4, 3, 1, 0):
        ours = cutout(images, rows, columns, length)
        for i in range(len(images)):
            expected, top, left = images[i].clone(), int(rows[i]) - length // 2, int(columns[i]) - length // 2
            expected[:, max(top, 0) : max(top + length, 0), max(left, 0) : max(left + length, 0)] = 0
            assert torch.equal(ours[i], expected), (length, i)


def test_cutout_is_centred_on_any_pixel():
    images = torch.full((4000, 3, 6, 9), 7, dtype=torch.uint8)
    holes = (Cutout(1)(images, np.random.default_rng(0)) == 0).all(dim=1)
    assert holes.flatten(1).sum(dim=1).tolist() == [1] * 4000
    assert holes.sum(dim=0).min() > 40  # of 74 on average


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("size", [(32, 32), (9, 14), (8, 8), (2, 5)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_autoaugment(name, size, channels):
    """torchvision's own table of magnitudes and its dispatcher, for every level and sign, all in one call here."""
    pictures, magnitudes = hard_images(size, channels), every_magnitude(name)
    many = pictures.repeat(len(magnitudes), 1, 1, 1)
    ours = OPERATIONS[name](many, torch.tensor(magnitudes).repeat_interleave(len(pictures)), 128)
    theirs = [
        one_by_one(name, picture, magnitude) for magnitude in torchvision_magnitudes(name, size) for picture in pictures
    ]
    different = (ours != torch.stack(theirs)).flatten(1).any(dim=1).nonzero().flatten().tolist()
    assert [(magnitudes[i // len(pictures)], i % len(pictures)) for i in different] == []
    assert ours.dtype == torch.uint8


def draws(samples):
    chance = np.random.default_rng(5)
    policy = chance.integers(0, 25, size=samples)
    return policy, chance.random((2, samples)), chance.random((2, samples)) < 0.5


@pytest.mark.parametrize("block", [4096, 7])
def test_autoaugment_follows_the_policy(images, block, monkeypatch):
    """Replayed picture by picture from the same draws, with torchvision's functions."""
    monkeypatch.setattr(augment, "BLOCK", block)
    many = images.repeat(10, 1, 1, 1)
    ours = AutoAugment()(many, np.random.default_rng(5))
    policies = TorchvisionAutoAugment(AutoAugmentPolicy.CIFAR10).policies
    assert len(policies) == 25
    policy, applied, negative = draws(len(many))
    for i, image in enumerate(many):
        expected = image
        for position, (name, probability, level) in enumerate(policies[policy[i]]):
            if applied[position, i] < probability:
                magnitude = torchvision_magnitudes(name, (32, 32))[level or 0]
                sign = -1 if name in SIGNED and negative[position, i] else 1
                expected = one_by_one(name, expected, sign * magnitude)
        assert torch.equal(ours[i], expected), i
    assert set(policy.tolist()) == set(range(25))


def test_rows_are_grouped_by_step_and_operation():
    policy, applied, negative = draws(3000)
    rows, magnitudes, sizes = group_rows(policy, applied, np.where(negative, -1, 1))
    policies = TorchvisionAutoAugment(AutoAugmentPolicy.CIFAR10).policies
    found = iter(zip(rows.tolist(), magnitudes.tolist(), strict=True))
    for number, size in enumerate(sizes):
        position, name = number // 14, list(OPERATIONS)[number % 14]
        steps = [policies[p][position] for p in policy]
        chosen = [i for i, step in enumerate(steps) if step[0] == name and applied[position, i] < step[1]]
        assert size == len(chosen)
        for i in chosen:
            magnitude = MAGNITUDES[name][steps[i][2]] if name in MAGNITUDES else 0.0
            assert next(found) == (i, -magnitude if name in SIGNED and negative[position, i] else magnitude)
    assert next(found, None) is None


@pytest.mark.parametrize(
    "operation", [Crop(), Flip(), Rotate(), AutoAugment(), Cutout()], ids=lambda o: type(o).__name__
)
def test_draws_decide_and_the_input_stays_as_it_was(images, operation):
    before = images.clone()
    first, second, other = (operation(images, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(images, before)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert first.shape == images.shape
    assert first.dtype == torch.uint8
    assert operation(images[:0], np.random.default_rng(1)).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_nothing_is_read_from_the_device(images, name):
    """A tensor without values: whoever asks for one, or for a shape that depends on one, gets an error."""
    changed = images.repeat(10, 1, 1, 1).to("meta")
    for operation in AUGMENTATIONS[name]:
        changed = operation(changed, np.random.default_rng(0))
    assert changed.shape == (400, 3, 32, 32)
    assert changed.dtype == torch.uint8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu():
    """Float32 may round the other way there: by a grey level, or to the neighbour of a pixel half-way between two."""
    pictures = hard_images((32, 32))
    for name, operation in OPERATIONS.items():
        magnitudes = torch.tensor(every_magnitude(name)).repeat_interleave(len(pictures))
        many = pictures.repeat(len(magnitudes) // len(pictures), 1, 1, 1)
        expected = operation(many, magnitudes, 128)
        found = operation(many.cuda(), magnitudes.cuda(), 128).cpu()
        if name in GEOMETRY:
            assert (found != expected).double().mean() <= 0.005, name
        else:
            assert (found.int() - expected.int()).abs().max() <= 1, name
    for operation in (Crop(), Flip(), Cutout()):
        expected = operation(pictures, np.random.default_rng(0))
        assert torch.equal(operation(pictures.cuda(), np.random.default_rng(0)).cpu(), expected)
    for operation in (Rotate(), AutoAugment()):
        many = pictures.repeat(20, 1, 1, 1)
        found = operation(many.cuda(), np.random.default_rng(0)).cpu()
        far = (found.int() - operation(many, np.random.default_rng(0)).int()).abs() > 1
        assert far.double().mean() <= 0.01, operation


def test_the_named_augmentations():
    assert AUGMENTATIONS["standard"] == (Crop(4), Flip(), Rotate(15.0))
    assert AUGMENTATIONS["autoaugment"] == (Crop(4), Flip(), AutoAugment(128))
    assert AUGMENTATIONS["autoaugment-cutout"] == (Crop(4), Flip(), AutoAugment(128), Cutout(16))
    assert AUGMENTATIONS["crop-flip"] == (Crop(4), Flip())
    assert AUGMENTATIONS["none"] == ()


def test_how_often_and_how_far(images):
    many = images.repeat(50, 1, 1, 1)
    flipped = (Flip()(many, np.random.default_rng(0)) != many).flatten(1).any(dim=1).double().mean()
    assert float(flipped) == pytest.approx(0.5, abs=0.05)
    still = (Crop()(many, np.random.default_rng(0)) == many).flatten(1).all(dim=1).double().mean()
    assert float(still) == pytest.approx(1 / 81, abs=0.01)
