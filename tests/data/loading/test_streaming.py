from dataclasses import replace

import numpy as np
import pytest
import torch

from balpoe import Dataset, UserError
from balpoe.data.augment.operations import AUGMENTATIONS, AlternatingFlip, Crop, Flip, Rotate
from balpoe.data.loading.decode import ResizedCrop, read_crop
from balpoe.data.loading.epoch_plan import plan_epoch, rng, sample_rng
from balpoe.data.loading.image_files import ImageLoader, PictureFiles, decoded, raw_blocks
from balpoe.data.loading.in_memory import ResidentData
from balpoe.data.loading.streaming import batch_source
from balpoe.data.png import png

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def held():
    """Images in memory."""
    images = torch.randint(0, 256, (23, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Dataset(images, torch.arange(23) % 4)


@pytest.fixture(scope="module")
def files(held, tmp_path_factory):
    """The same images as files, which lose nothing."""
    folder = tmp_path_factory.mktemp("images")
    for number, image in enumerate(held.images):
        (folder / f"{number:02}.png").write_bytes(png(image))
    paths = [str(path) for path in sorted(folder.iterdir())]
    return PictureFiles(paths, held.targets, held.class_names, held.preprocessing)


@pytest.mark.parametrize(
    ("augmentation", "settings"),
    [
        ((), {}),
        ((Crop(2), Flip(), Rotate()), {"mixup_alpha": 0.4}),
        ((Flip(),), {"mixup_alpha": 0.4, "cutmix_probability": 0.5}),
        (AUGMENTATIONS["autoaugment"], {"mixup_alpha": 1.0}),
        ((AlternatingFlip(),), {"drop_last": True}),
    ],
    ids=["plain", "standard", "cutmix", "autoaugment", "alternating"],
)
def test_batches_are_those_of_data_held_in_memory(held, files, augmentation, settings):
    plan = plan_epoch(3, 1, len(held), 5, **settings)
    resident = ResidentData(held, CPU, augmentation, seed=3).batches(plan, 1)
    streamed = batch_source(files, CPU, augmentation, seed=3, workers=0).batches(plan, 1)
    for ours, theirs in zip(streamed, resident, strict=True):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.targets, theirs.targets)
        if plan.mixes:
            assert torch.equal(ours.partner_targets, theirs.partner_targets)
            torch.testing.assert_close(ours.weight, theirs.weight)


def test_workers_make_no_difference_and_stay_for_the_next_epoch(files):
    crop = (ResizedCrop(), Flip())
    alone, several = (batch_source(files, CPU, crop, seed=3, workers=workers) for workers in (0, 2))
    for epoch in range(2):
        plan = plan_epoch(3, epoch, len(files), 5, mixup_alpha=0.4)
        for ours, theirs in zip(alone.batches(plan, epoch), several.batches(plan, epoch), strict=True):
            assert torch.equal(ours.images, theirs.images)
    assert several.loader.loader._iterator is not None


def test_an_epoch_goes_on_in_its_middle(files):
    source = batch_source(files, CPU, (ResizedCrop(), Flip()), seed=1, workers=0)
    plan = plan_epoch(1, 0, len(files), 4)
    whole, rest = list(source.batches(plan, 0)), list(source.batches(plan, 0, first=3))
    assert len(rest) == len(whole) - 3
    assert all(torch.equal(a.images, b.images) for a, b in zip(whole[3:], rest, strict=True))


def test_each_image_is_cropped_by_its_own_draw(files):
    source = batch_source(files, CPU, (ResizedCrop(),), seed=9, workers=0)
    plan = plan_epoch(9, 4, len(files), 6)
    (batch, *_), rows = source.batches(plan, 4), plan.order[:6].tolist()
    expected = [read_crop(files.paths[row], 16, ResizedCrop(), sample_rng(9, 4, "crop", row)) for row in rows]
    assert torch.equal(batch.images, files.preprocessing.normalise(torch.stack(expected)))


def test_parts_of_two_processes_make_up_the_batch(files):
    augmentation = (Crop(2), Flip())
    plan = plan_epoch(2, 0, len(files), 7)
    source = batch_source(files, CPU, augmentation, seed=2, workers=0)
    whole = list(source.batches(plan, 0))
    parts = [list(source.batches(plan, 0, rank=rank, world=2)) for rank in range(2)]
    for batch, *halves in zip(whole, *parts, strict=True):
        for rank, half in enumerate(halves):
            assert torch.equal(half.images, batch.images[rank::2])
        assert sum(half.part for half in halves) == pytest.approx(1)


def test_a_process_mixes_within_its_part(files):
    plan = plan_epoch(2, 0, len(files), 8, mixup_alpha=1.0)
    source = batch_source(files, CPU, (), seed=2, workers=0)
    plain = plan_epoch(2, 0, len(files), 8)
    for rank in range(2):
        pairs = zip(
            plan.batches, source.batches(plan, 0, rank=rank, world=2), source.batches(plain, 0, rank=rank, world=2),
            strict=True,
        )  # fmt: skip
        for planned, mixed, own in pairs:
            others = (mixed.images - planned.weight * own.images) / (1 - planned.weight)
            found = torch.cdist(others.flatten(1), own.images.flatten(1)).argmin(dim=1)
            assert sorted(found.tolist()) == list(range(len(own.images)))  # each is somebody's partner, once
            assert torch.equal(mixed.partner_targets, own.targets[found])


def test_a_crop_while_decoding_wants_files(held):
    with pytest.raises(UserError, match="cannot be cropped while they are decoded; use --augmentation crop-flip"):
        batch_source(held, CPU, (ResizedCrop(), Flip()), seed=0)


def test_blocks_are_in_order_with_and_without_workers(held, files):
    for workers in (0, 1):
        state = torch.get_rng_state()
        blocks = list(raw_blocks(files, 5, workers))
        assert torch.equal(torch.get_rng_state(), state)  # another thread may be drawing first weights
        assert [len(block) for block in blocks] == [5, 5, 5, 5, 3]
        assert torch.equal(torch.cat(blocks), held.images)
    assert torch.equal(torch.cat(list(raw_blocks(held, 5))), held.images)


def test_a_sample_has_a_generator_of_its_own():
    draws = {
        (seed, epoch, index): tuple(sample_rng(seed, epoch, "crop", index).random(40))
        for seed in range(2)
        for epoch in range(2)
        for index in range(3)
    }
    values = np.array(list(draws.values()))
    assert len(np.unique(values)) == values.size  # not even a part of a stream is shared
    assert tuple(rng(0, 1, "crop").random(40)) == draws[0, 1, 0]


def test_an_image_set_knows_itself(files):
    assert len(files) == 23
    image, target = files[3]
    assert image.shape == (3, 16, 16)
    assert int(target) == 3
    part = files.subset(torch.tensor([4, 1]))
    assert part.paths == [files.paths[4], files.paths[1]]
    assert part.targets.tolist() == [0, 1]
    assert part.class_counts.tolist() == [1, 1, 0, 0]
    assert part.checksum() != files.checksum()
    with pytest.raises(UserError, match="there are 1 images but 2 labels"):
        PictureFiles(["a.png"], [0, 1], ("a", "b"), files.preprocessing)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_gets_the_same_batches(files):
    plan = plan_epoch(3, 1, len(files), 5, mixup_alpha=0.4)
    augmentation = (ResizedCrop(), Flip())
    there = batch_source(files, torch.device("cuda"), augmentation, seed=3, workers=2).batches(plan, 1)
    here = batch_source(files, CPU, augmentation, seed=3, workers=0).batches(plan, 1)
    for ours, theirs in zip(there, here, strict=True):
        torch.testing.assert_close(ours.images.cpu(), theirs.images, atol=1e-5, rtol=1e-5)
        assert torch.equal(ours.targets.cpu(), theirs.targets)
        assert torch.equal(ours.partner_targets.cpu(), theirs.partner_targets)
        assert ours.images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("crop", [None, ResizedCrop()])
def test_images_are_resized_as_the_preprocessing_says(files, crop):
    """In the middle of an image and in a random part of it."""
    wanted = [replace(files.preprocessing, resize=20, interpolation=each) for each in ("bilinear", "bicubic")]
    sets = [PictureFiles(files.paths, files.targets, files.class_names, each) for each in wanted]
    blocks = [next(ImageLoader(each, crop, seed=3, workers=0).blocks(0, [range(4)])) for each in sets]
    assert not torch.equal(*blocks)
    for row in range(4):
        rng = sample_rng(3, 0, "crop", row)
        expected = (
            read_crop(files.paths[row], 16, crop, rng, "bicubic") if crop else decoded(files.paths[row], wanted[1])
        )
        assert torch.equal(blocks[1][row], expected)
