"""Every operation against torchvision's or timm's, one image at a time, with the same parameters."""

import itertools
import math

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment as timm_augment
from torchvision.transforms import AutoAugment as TorchvisionAutoAugment
from torchvision.transforms import AutoAugmentPolicy
from torchvision.transforms import functional as V
from torchvision.transforms.autoaugment import _apply_op

from balpoe.data.augment import operations as augment
from balpoe.data.augment import randaugment
from balpoe.data.augment.autoaugment import MAGNITUDES, OPERATIONS, SIGNED, group_rows
from balpoe.data.augment.geometry import shear, stretch, translate
from balpoe.data.augment.operations import (
    AUGMENTATIONS,
    CROPS_WHILE_DECODING,
    AutoAugment,
    ColourJitter,
    Crop,
    Cutout,
    Flip,
    RandAugment,
    Rotate,
    StretchedCrop,
    crop,
    cutout,
    flip,
    rotate,
)

GEOMETRY = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
EVERY = (Crop(), Flip(), Rotate(), AutoAugment(), Cutout(), ColourJitter(), RandAugment(), StretchedCrop())


@pytest.fixture
def images():
    return torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def hard_images(size, channels=3):
    """Noise, noise of two values and of few, smooth slopes, one with a lone bright pixel, and flat grey values."""
    rng, (height, width) = torch.Generator().manual_seed(1), size
    noise = torch.randint(0, 256, (3, channels, *size), generator=rng)
    two = 3 + 200 * torch.randint(0, 2, (1, channels, *size), generator=rng)
    few = torch.randint(100, 104, (1, channels, *size), generator=rng)
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
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (300, 3, *size), dtype=torch.uint8, generator=rng)
    angles = torch.rand(300, generator=rng, dtype=torch.float64) * 30 - 15
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
    """torchvision's own table of magnitudes and its dispatcher, for every level and sign, all in one call here.

    It takes many images at once as one by one, which would take long: for the last level both are compared.
    """
    images, magnitudes = hard_images(size, channels), every_magnitude(name)
    many = images.repeat(len(magnitudes), 1, 1, 1)
    ours = OPERATIONS[name](many, torch.tensor(magnitudes).repeat_interleave(len(images)), 128)
    levels = torchvision_magnitudes(name, size)
    theirs = [_apply_op(images, name, level, V.InterpolationMode.NEAREST, [128.0] * channels) for level in levels]
    assert torch.equal(theirs[-1], torch.stack([one_by_one(name, image, levels[-1]) for image in images]))
    different = (ours != torch.cat(theirs)).flatten(1).any(dim=1).nonzero().flatten().tolist()
    assert [(magnitudes[i // len(images)], i % len(images)) for i in different] == []
    assert ours.dtype == torch.uint8


def draws(samples):
    rng = np.random.default_rng(5)
    policy = rng.integers(0, 25, size=samples)
    return policy, rng.random((2, samples)), rng.random((2, samples)) < 0.5


@pytest.mark.parametrize("block", [4096, 7])
def test_autoaugment_follows_the_policy(images, block, monkeypatch):
    """Replayed image by image from the same draws, with torchvision's functions."""
    monkeypatch.setattr(augment, "AUGMENTED_AT_ONCE", block)
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


@pytest.mark.parametrize("operation", EVERY, ids=lambda o: type(o).__name__)
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
    images = hard_images((32, 32))
    for name, operation in OPERATIONS.items():
        magnitudes = torch.tensor(every_magnitude(name)).repeat_interleave(len(images))
        many = images.repeat(len(magnitudes) // len(images), 1, 1, 1)
        expected = operation(many, magnitudes, 128)
        found = operation(many.cuda(), magnitudes.cuda(), 128).cpu()
        if name in GEOMETRY:
            assert (found != expected).double().mean() <= 0.005, name
        else:
            assert (found.int() - expected.int()).abs().max() <= 1, name
    for operation in (Crop(), Flip(), Cutout()):
        expected = operation(images, np.random.default_rng(0))
        assert torch.equal(operation(images.cuda(), np.random.default_rng(0)).cpu(), expected)
    for operation in (Rotate(), AutoAugment(), ColourJitter(), RandAugment()):
        many = images.repeat(20, 1, 1, 1)
        found = operation(many.cuda(), np.random.default_rng(0)).cpu()
        far = (found.int() - operation(many, np.random.default_rng(0)).int()).abs() > 1
        assert far.double().mean() <= 0.005, operation


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


FILL = (124, 116, 104)
OF_TIMM = {"TranslateX": "TranslateXRel", "TranslateY": "TranslateYRel"}  # names that differ


def rows_of(images, rows, draws):
    return images[rows], [values[..., rows] for values in draws]


@pytest.mark.parametrize("operation", EVERY, ids=lambda o: type(o).__name__)
def test_parts_of_a_batch_with_parts_of_the_draws(images, operation):
    """What processes do that share a batch, and loaders that hold any rows of a data set."""
    draws = operation.draw(len(images), (32, 32), np.random.default_rng(3))
    assert all(values.shape[-1] == len(images) for values in draws)
    whole = operation.apply(images, *draws)
    assert torch.equal(whole, operation(images, np.random.default_rng(3)))
    for rows in (np.arange(0, 40, 2), np.arange(1, 40, 2), np.array([7, 3, 3, 39])):
        part, drawn = rows_of(images, rows, draws)
        assert torch.equal(operation.apply(part, *drawn), whole[rows])


@pytest.mark.parametrize(
    "operation", [Rotate(), AutoAugment(), ColourJitter(), RandAugment()], ids=lambda o: type(o).__name__
)
def test_blocks_of_large_images_give_the_same(operation, monkeypatch):
    many = hard_images((40, 50)).repeat(2, 1, 1, 1)
    whole = operation(many, np.random.default_rng(0))
    monkeypatch.setattr(augment, "AUGMENTED_AT_ONCE", 1)  # less than one image of this size
    assert torch.equal(operation(many, np.random.default_rng(0)), whole)


@pytest.mark.parametrize("channels", [3, 1])
def test_colour_jitter(channels):
    """torchvision's functions, image by image, in the order of each."""
    images = hard_images((24, 32), channels).repeat(20, 1, 1, 1)
    order, factors = ColourJitter(0.4, 0.3, 0.5).draw(len(images), (24, 32), np.random.default_rng(0))
    ours = ColourJitter().apply(images, order, factors)
    functions = (V.adjust_brightness, V.adjust_contrast, V.adjust_saturation)
    for i, image in enumerate(images):
        for number in list(itertools.permutations(range(3)))[order[i]]:
            image = functions[number](image, float(factors[number, i]))
        assert torch.equal(ours[i], image), i


def test_colour_jitter_is_uniform_in_factors_and_orders():
    order, factors = ColourJitter(0.4, 0.2, 1.5).draw(60_000, (8, 8), np.random.default_rng(0))
    assert np.bincount(order, minlength=6) == pytest.approx(10_000, rel=0.05)
    for values, low, high in zip(factors, (0.6, 0.8, 0.0), (1.4, 1.2, 2.5), strict=True):
        assert (values.min(), values.max()) == pytest.approx((low, high), abs=0.01)
        assert np.quantile(values, [0.25, 0.5, 0.75]) == pytest.approx(np.linspace(low, high, 5)[1:4], abs=0.02)


def between_pixels(image, matrix, shift):
    """Slowly: the mean of the four pixels around (x, y) @ matrix + shift, measured from the centre, before rounding."""
    channels, height, width = image.shape
    found = torch.zeros(image.shape, dtype=torch.float64)
    for row, column in itertools.product(range(height), range(width)):
        at = np.array([column - (width - 1) / 2, row - (height - 1) / 2]) @ matrix + shift
        x, y = at[0] + (width - 1) / 2, at[1] + (height - 1) / 2
        for channel in range(channels):
            for i, j in itertools.product((math.floor(y), math.floor(y) + 1), (math.floor(x), math.floor(x) + 1)):
                inside = 0 <= i < height and 0 <= j < width
                weight = (1 - abs(y - i)) * (1 - abs(x - j))
                value = int(image[channel, i, j]) if inside else FILL[channel]
                found[channel, row, column] += weight * value
    return found


@pytest.mark.parametrize("amount", [0.3, -0.12])
@pytest.mark.parametrize(("height", "width", "channels"), [(9, 14, 3), (8, 8, 1)])
def test_geometry_between_pixels(height, width, channels, amount):
    image = hard_images((height, width), channels)[:1]
    one, turn = torch.tensor([amount]), math.radians(100 * amount)
    turned = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    cases = [
        (rotate(image, 100 * one, FILL, "bilinear"), turned, (0, 0)),
        (shear(image, one, 0, FILL, "bilinear"), np.array([[1, 0], [amount, 1]]), (amount * height / 2, 0)),
        (shear(image, one, 1, FILL, "bilinear"), np.array([[1, amount], [0, 1]]), (0, amount * width / 2)),
        (translate(image, 10 * one, 0, FILL, "bilinear"), np.eye(2), (-10 * amount, 0)),
        (translate(image, 10 * one, 1, FILL, "bilinear"), np.eye(2), (0, -10 * amount)),
    ]
    for number, (ours, matrix, shift) in enumerate(cases):
        far = (ours[0] - between_pixels(image[0], matrix, shift)).abs()
        assert far.max() < 0.501, number  # no more than rounded


def test_an_image_moved_by_half_a_pixel():
    image = torch.tensor([[[[0, 100, 200]]]], dtype=torch.uint8)
    moved = translate(image, torch.tensor([0.5]), 0, (60,), "bilinear")
    assert moved.flatten().tolist() == [30, 50, 150]


@pytest.mark.parametrize("level", [10.0, 9.99, 9.3, 7.5, 5.0, 2.5, 0.1, 0.0])
@pytest.mark.parametrize("name", randaugment.OPERATIONS)
def test_amounts_of_randaugment(name, level, monkeypatch):
    """timm's own arguments, in both directions where it has two."""
    arguments = timm_augment.LEVEL_TO_ARG[OF_TIMM.get(name, name)]
    amount, signed = randaugment.OPERATIONS[name][1:]
    found = []
    for sign in (1, -1):
        monkeypatch.setattr(timm_augment, "_randomly_negate", lambda value, sign=sign: sign * value)
        found.append(0.0 if arguments is None else arguments(level, {})[0])
    assert signed == (found[0] != found[1] or name in GEOMETRY)
    enhances = name in ("Color", "Contrast", "Brightness", "Sharpness")
    assert float(amount(np.array(level / 10))) == pytest.approx(found[0] - enhances, abs=1e-12)


def smooth_images():
    """With slopes and noise, as photographs have them, and their edges in other colours than the fill."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:96, :128]
    waves = np.stack([110 + 80 * np.sin(x / 17 + k) + 50 * np.cos(y / 23 - k) for k in range(3)])
    return torch.from_numpy(np.clip(waves + rng.normal(0, 8, (4, *waves.shape)), 0, 255).astype(np.uint8))


@pytest.mark.parametrize("level", [10.0, 9.4, 6.0])
@pytest.mark.parametrize("name", randaugment.OPERATIONS)
def test_operations_of_randaugment(name, level):
    """timm's of Pillow images: to one grey level, but for a rim where ours blends with the fill."""
    operation, images = randaugment.OPERATIONS[name], smooth_images()
    amount = float(operation.amount(np.array(level / 10)))
    ours = operation.change(images, torch.full((len(images),), amount), FILL)
    enhances = name in ("Color", "Contrast", "Brightness", "Sharpness")
    arguments = {"AutoContrast": (), "Equalize": (), "Invert": (), "TranslateX": (-amount,), "TranslateY": (-amount,)}
    bits_and_greys = int(amount) if name in ("Posterize", "Solarize", "SolarizeAdd") else amount
    given = arguments.get(name, (amount + 1 if enhances else bits_and_greys,))
    change = timm_augment.NAME_TO_OP[OF_TIMM.get(name, name)]
    theirs = [change(V.to_pil_image(image), *given, fillcolor=FILL, resample=Image.BILINEAR) for image in images]
    far = (ours.int() - torch.stack([V.pil_to_tensor(image) for image in theirs]).int()).abs()
    if name in GEOMETRY:
        assert (far > 1).double().mean() < 0.02  # 448 of 12,288 pixels are at the border of the image
        assert far.double().mean() < 1
    else:
        assert far.max() <= 1


def test_randaugment_applies_what_was_drawn(images):
    """Replayed image by image, one operation after the other."""
    many = images.repeat(10, 1, 1, 1)
    draws = RandAugment().draw(len(many), (32, 32), np.random.default_rng(1))
    ours = RandAugment().apply(many, *draws)
    operations = list(randaugment.OPERATIONS.values())
    for i, (number, taken, levels, sign) in enumerate(zip(*(values.T for values in draws), strict=True)):
        expected = many[i : i + 1]
        for step in range(2):
            operation = operations[number[step]]
            amount = operation.amount(levels[step] / 10) * (sign[step] if operation.signed else 1)
            if taken[step]:
                expected = operation.change(expected, torch.tensor([amount], dtype=torch.float32), FILL)
        assert torch.equal(ours[i : i + 1], expected), i


def test_randaugment_draws_as_the_reference_does():
    """Of fifteen, with replacement; taken half of the time; level N(10, 0.5), clipped at 10."""
    number, taken, levels, sign = RandAugment().draw(60_000, (8, 8), np.random.default_rng(0))
    assert number.shape == taken.shape == levels.shape == sign.shape == (2, 60_000)
    assert np.bincount(number.ravel(), minlength=15) == pytest.approx(8_000, rel=0.05)
    assert (number[0] == number[1]).mean() == pytest.approx(1 / 15, abs=0.005)
    assert taken.mean(axis=1) == pytest.approx(0.5, abs=0.01)
    assert (levels == 10).mean() == pytest.approx(0.5, abs=0.01)
    assert (levels < 9.5).mean() == pytest.approx(0.1587, abs=0.005)  # one deviation below
    assert sign.mean() == pytest.approx(0, abs=0.01)


def test_augmentations_of_images_that_are_cropped_while_they_are_decoded():
    assert AUGMENTATIONS["resized-crop"] == (Flip(),)
    assert AUGMENTATIONS["imagenet"] == (Flip(), ColourJitter(0.4, 0.4, 0.4))
    assert AUGMENTATIONS["randaugment"] == (Flip(), ColourJitter(0.4, 0.4, 0.4), RandAugment(2, 10, 0.5, 0.5, FILL))
    with_a_crop = {name for name, operations in AUGMENTATIONS.items() if any(isinstance(o, Crop) for o in operations)}
    assert set(AUGMENTATIONS) - with_a_crop - {"none"} == CROPS_WHILE_DECODING


def test_a_stretched_part_is_a_resized_crop(images):
    """Of whole pixels: torchvision's crop, resized without antialiasing, but for what the crop's edge repeats."""
    for left, top, wide, tall in [(0, 0, 32, 32), (4, 8, 16, 16), (16, 0, 16, 32)]:
        part = torch.tensor([[(left + wide / 2) / 32, (top + tall / 2) / 32, wide / 32, tall / 32]])
        ours = stretch(images, part.expand(len(images), -1))
        theirs = V.resized_crop(images, top, left, tall, wide, [32, 32], antialias=False)
        inside = (..., slice(1, -1), slice(1, -1))
        assert (ours[inside].int() - theirs[inside].int()).abs().max() <= 1


def test_stretched_parts_lie_in_the_image_and_have_the_area_and_shape_that_is_asked():
    (drawn,) = StretchedCrop(scale=(0.2, 0.6), ratio=(0.5, 2.0)).draw(2000, (32, 32), np.random.default_rng(0))
    centres, sides = drawn[:2], drawn[2:]
    assert (centres - sides / 2).min() >= -1e-6
    assert (centres + sides / 2).max() <= 1 + 1e-6
    area, shape = sides.prod(axis=0), sides[0] / sides[1]
    assert 0.2 <= area.min() + 1e-6 < 0.21
    assert 0.58 < area.max() <= 0.6 + 1e-6
    assert 0.5 <= shape.min() + 1e-6 < 0.52
    assert 1.95 < shape.max() <= 2 + 1e-6
    assert abs(np.log(shape).mean()) < 0.03  # wide and tall ones alike
