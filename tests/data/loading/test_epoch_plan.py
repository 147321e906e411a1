import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import UserError
from balpoe.data.loading.epoch_plan import plan_epoch, rng


def test_every_draw_is_a_function_of_seed_epoch_and_subject():
    draws = {
        (seed, epoch, subject): tuple(rng(seed, epoch, subject).random(3))
        for seed in (0, 1, 2**62)
        for epoch in (0, 1)
        for subject in ("order", "mix")
    }
    assert len(set(draws.values())) == len(draws)
    assert draws[0, 1, "mix"] == tuple(rng(0, 1, "mix").random(3))


@given(st.integers(2, 300), st.integers(2, 64), st.sampled_from([2, 4, 6]))
def test_each_sample_once_and_no_batch_too_small(samples, batch_size, smallest):
    plan = plan_epoch(0, 0, samples, batch_size, smallest_batch=smallest)
    assert sorted(plan.order.tolist()) == list(range(samples))
    bounds = [(batch.start, batch.stop) for batch in plan.batches]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == samples
    assert all(before[1] == after[0] for before, after in itertools.pairwise(bounds))
    if len(bounds) > 1:
        assert bounds[-1][1] - bounds[-1][0] >= min(smallest, batch_size)
    assert all(stop - start == batch_size for start, stop in bounds[:-1])


def test_a_last_batch_of_one_joins_the_one_before():
    sizes = [batch.stop - batch.start for batch in plan_epoch(0, 0, 257, 128).batches]
    assert sizes == [128, 129]
    assert [batch.stop - batch.start for batch in plan_epoch(0, 0, 258, 128).batches] == [128, 128, 2]


@pytest.mark.parametrize(("samples", "batches"), [(9, [4, 4]), (8, [4, 4]), (3, [3]), (4, [4])])
def test_a_smaller_last_batch_can_be_left_out(samples, batches):
    plan = plan_epoch(1, 2, samples, 4, drop_last=True, mixup_alpha=0.2)
    whole = plan_epoch(1, 2, samples, 4, mixup_alpha=0.2)
    assert [batch.stop - batch.start for batch in plan.batches] == batches
    assert torch.equal(plan.order, whole.order)  # what is left out differs from epoch to epoch
    assert plan.batches[0].weight == whole.batches[0].weight


def test_mixup_of_every_batch():
    plan = plan_epoch(0, 0, 1000, 10, mixup_alpha=0.4)
    assert all(sorted(batch.partners.tolist()) == list(range(10)) for batch in plan.batches)
    assert all(batch.centre is None and 0 <= batch.weight <= 1 for batch in plan.batches)
    assert len({batch.weight for batch in plan.batches}) > 90
    assert float(plan.batches[0].share((3, 8, 8))) == pytest.approx(plan.batches[0].weight)


def test_partners_and_weights_of_a_plan_follow_their_distributions():
    """Every row a partner equally often, itself as well; weights from Beta(alpha, alpha), which is symmetric."""
    batches = plan_epoch(0, 0, 9000, 3, mixup_alpha=0.4).batches
    pairs = torch.zeros(3, 3)
    for batch in batches:
        pairs[torch.arange(3), batch.partners] += 1
    torch.testing.assert_close(pairs / 3000, torch.full((3, 3), 1 / 3), rtol=0, atol=0.05)
    weights = torch.tensor([batch.weight for batch in batches])
    assert float(weights.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(weights.var()) == pytest.approx(1 / (4 * 1.8), rel=0.1)


def test_cutmix_takes_its_part_of_the_batches():
    plan = plan_epoch(0, 0, 20_000, 10, mixup_alpha=0.4, cutmix_probability=0.3)
    cut = [batch for batch in plan.batches if batch.centre is not None]
    assert len(cut) / len(plan.batches) == pytest.approx(0.3, abs=0.03)
    assert cut[0].share((3, 8, 8)).shape == (1, 8, 8)
    with pytest.raises(UserError, match="CutMix wants images"):
        cut[0].share((64,), cuts=True)
    alone = plan_epoch(0, 0, 20_000, 10, cutmix_probability=0.3)
    assert sum(batch.partners is None for batch in alone.batches) / 2000 == pytest.approx(0.7, abs=0.03)


def test_epochs_differ():
    first, second = (plan_epoch(0, epoch, 50, 10, mixup_alpha=0.4) for epoch in (0, 1))
    assert not torch.equal(first.order, second.order)
    assert first.batches[0].weight != second.batches[0].weight
