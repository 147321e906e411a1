import pytest
import torch

from balpoe import Dataset
from balpoe.data.augment.operations import AlternatingFlip, Flip, SmallAtFirst
from balpoe.data.loading.epoch_plan import plan_epoch, rng
from balpoe.data.loading.in_memory import ResidentData

DATA = Dataset(torch.arange(23 * 12, dtype=torch.uint8).view(23, 3, 2, 2), torch.arange(23) % 4)


def test_a_batch_is_the_plan_carried_out():
    resident = ResidentData(DATA, torch.device("cpu"), (Flip(),), seed=5)
    plan = plan_epoch(5, 2, 23, 8, mixup_alpha=1.0)
    augmented = Flip()(DATA.images, rng(5, 2, "Flip"))
    inputs = DATA.preprocessing.normalise(augmented)
    for planned, batch in zip(plan.batches, resident.batches(plan, 2), strict=True):
        rows = plan.order[planned.start : planned.stop]
        mixed = planned.weight * inputs[rows] + (1 - planned.weight) * inputs[rows[planned.partners]]
        torch.testing.assert_close(batch.images, mixed)
        assert torch.equal(batch.targets, DATA.targets[rows])
        assert torch.equal(batch.partner_targets, DATA.targets[rows[planned.partners]])
        assert float(batch.weight) == pytest.approx(planned.weight)
        assert batch.part == 1.0


def test_each_image_is_seen_in_both_orientations_of_two_epochs():
    """Half of them mirrored in each; with flips drawn anew a quarter of them would be mirrored in both."""
    images = torch.arange(200 * 4, dtype=torch.float32).view(200, 1, 2, 2).to(torch.uint8)
    data = Dataset(images, torch.arange(200) % 2)
    source, seen = ResidentData(data, torch.device("cpu"), [AlternatingFlip()], seed=3), []
    for epoch in range(4):
        plan = plan_epoch(3, epoch, 200, 64)
        made = torch.cat([batch.images for batch in source.batches(plan, epoch)])
        raw = data.preprocessing.normalise(images)[plan.order]
        mirrored = (made == raw.flip(-1)).flatten(1).all(dim=1)
        assert bool((mirrored | (made == raw).flatten(1).all(dim=1)).all())
        seen.append(mirrored[plan.order.argsort()])
    assert bool((seen[0] ^ seen[1]).all())
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert 70 < int(seen[0].sum()) < 130


def test_cutmix_and_mixup_in_one_epoch():
    resident = ResidentData(DATA, torch.device("cpu"), (), seed=0)
    plan = plan_epoch(0, 0, 23, 4, mixup_alpha=0.4, cutmix_probability=0.5)
    assert {batch.centre is None for batch in plan.batches} == {True, False}
    inputs = DATA.preprocessing.normalise(DATA.images)
    for planned, batch in zip(plan.batches, resident.batches(plan, 0), strict=True):
        own = inputs[plan.order[planned.start : planned.stop]]
        share = planned.share((3, 2, 2))
        torch.testing.assert_close(batch.images, share * own + (1 - share) * own[planned.partners])
        assert float(batch.weight) == pytest.approx(float(share.mean()))


def test_images_are_small_in_the_first_epochs():
    """Mixed and cut in their own size, and the mean of the pixels that they stand for."""
    data = Dataset(torch.randint(256, (23, 3, 8, 8), dtype=torch.uint8), torch.arange(23) % 4)
    source = ResidentData(data, torch.device("cpu"), (SmallAtFirst(pixels=4, epochs=2),), seed=0)
    for epoch in range(4):
        plan = plan_epoch(0, epoch, 23, 4, mixup_alpha=0.4, cutmix_probability=0.5)
        side = 4 if epoch < 2 else 8
        assert {batch.images.shape[1:] for batch in source.batches(plan, epoch)} == {(3, side, side)}
    plan = plan_epoch(0, 1, 23, 23)
    (batch,) = source.batches(plan, 1)
    kernel = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8  # a triangle, two pixels to either side
    inner = data.images[plan.order, :, 1:7, 1:7].float().flatten(0, 1)[:, None]
    small = torch.nn.functional.conv2d(inner, torch.outer(kernel, kernel)[None, None], stride=2).view(23, 3, 2, 2)
    raw = batch.images[:, :, 1:3, 1:3] * torch.tensor(data.preprocessing.std).view(-1, 1, 1)
    raw = 255 * (raw + torch.tensor(data.preprocessing.mean).view(-1, 1, 1))
    torch.testing.assert_close(raw, small, atol=0.51, rtol=0)


def test_cutmix_alone_leaves_the_other_batches_as_they_are():
    resident = ResidentData(DATA, torch.device("cpu"), (), seed=0)
    plan = plan_epoch(0, 0, 23, 4, cutmix_probability=0.5)
    inputs = DATA.preprocessing.normalise(DATA.images)
    whole = [(p, b) for p, b in zip(plan.batches, resident.batches(plan, 0), strict=True) if p.partners is None]
    assert 0 < len(whole) < len(plan.batches)
    for planned, batch in whole:
        assert torch.equal(batch.images, inputs[plan.order[planned.start : planned.stop]])
        assert float(batch.weight) == 1.0


def test_blocks_make_no_difference(monkeypatch):
    resident = ResidentData(DATA, torch.device("cpu"), (Flip(),), seed=0)
    plan = plan_epoch(0, 0, 23, 4, mixup_alpha=0.4, cutmix_probability=0.5)
    together = list(resident.batches(plan, 0))
    monkeypatch.setattr("balpoe.data.loading.in_memory.SAMPLES_AT_ONCE", 8)
    for one, other in zip(together, resident.batches(plan, 0), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.tensors(), other.tensors(), strict=True))


def test_processes_share_a_batch_without_overlap():
    resident = ResidentData(DATA, torch.device("cpu"), (), seed=0)
    plan = plan_epoch(0, 0, 23, 8, mixup_alpha=1.0, smallest_batch=6)
    whole = list(resident.batches(plan, 0))
    parts = [list(resident.batches(plan, 0, rank=rank, world=3)) for rank in range(3)]
    for number, batch in enumerate(whole):
        for rank in range(3):
            for field in ("images", "targets", "partner_targets"):
                assert torch.equal(getattr(parts[rank][number], field), getattr(batch, field)[rank::3])
        assert abs(sum(parts[rank][number].part for rank in range(3)) - 1) < 1e-12


def test_an_epoch_can_be_entered_in_the_middle():
    resident = ResidentData(DATA, torch.device("cpu"), (Flip(),), seed=0)
    plan = plan_epoch(0, 0, 23, 8)
    late = list(resident.batches(plan, 0, first=2))
    assert len(late) == 1
    assert torch.equal(late[0].images, list(resident.batches(plan, 0))[2].images)
