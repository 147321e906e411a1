import torch

from balpoe import Dataset
from balpoe.data.augment import Flip
from balpoe.data.plan import chance, plan_epoch
from balpoe.data.resident import ResidentData

DATA = Dataset(torch.arange(23 * 12, dtype=torch.uint8).view(23, 3, 2, 2), torch.arange(23) % 4)


def test_a_batch_is_the_plan_carried_out():
    resident = ResidentData(DATA, torch.device("cpu"), (Flip(),), seed=5)
    plan = plan_epoch(5, 2, 23, 8, mixup_alpha=1.0)
    augmented = Flip()(DATA.images, chance(5, 2, "Flip"))
    for planned, batch in zip(plan.batches, resident.batches(plan, 2), strict=True):
        rows = plan.order[planned.start : planned.stop]
        assert torch.equal(batch.images, augmented[rows])
        assert torch.equal(batch.targets, DATA.targets[rows])
        assert torch.equal(batch.partners, augmented[rows[planned.partners]])
        assert torch.equal(batch.partner_targets, DATA.targets[rows[planned.partners]])
        assert batch.part == 1.0


def test_processes_share_a_batch_without_overlap():
    resident = ResidentData(DATA, torch.device("cpu"), (), seed=0)
    plan = plan_epoch(0, 0, 23, 8, mixup_alpha=1.0, smallest_batch=6)
    whole = list(resident.batches(plan, 0))
    parts = [list(resident.batches(plan, 0, rank=rank, world=3)) for rank in range(3)]
    for number, batch in enumerate(whole):
        for rank in range(3):
            for field in ("images", "targets", "partners", "partner_targets"):
                assert torch.equal(getattr(parts[rank][number], field), getattr(batch, field)[rank::3])
        assert abs(sum(parts[rank][number].part for rank in range(3)) - 1) < 1e-12


def test_an_epoch_can_be_entered_in_the_middle():
    resident = ResidentData(DATA, torch.device("cpu"), (Flip(),), seed=0)
    plan = plan_epoch(0, 0, 23, 8)
    late = list(resident.batches(plan, 0, first=2))
    assert len(late) == 1
    assert torch.equal(late[0].images, list(resident.batches(plan, 0))[2].images)
