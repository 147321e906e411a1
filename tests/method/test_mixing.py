import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import BalPoELoss, UserError, cutmix, mixed_loss, mixup
from balpoe.method.mixing import box_share


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_mixup_is_the_weighted_sum_of_a_sample_and_its_partner():
    images = torch.rand(8, 3, 4, 4)
    mixed = mixup(images, alpha=0.4, generator=generator())
    expected = mixed.weight * images + (1 - mixed.weight) * images[mixed.permutation]
    torch.testing.assert_close(mixed.images, expected)
    assert sorted(mixed.permutation.tolist()) == list(range(8))


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_every_sample_is_a_partner_equally_often(mix):
    """Itself as well, but no more often than the others: a batch mixed with itself would be left as it is."""
    pairs, images, chance = torch.zeros(3, 3), torch.zeros(3, 1, 2, 2), generator()
    for _ in range(600):
        pairs[torch.arange(3), mix(images, generator=chance).permutation] += 1
    torch.testing.assert_close(pairs / 600, torch.full((3, 3), 1 / 3), rtol=0, atol=0.08)


def test_cutmix_pastes_one_box_and_weights_by_what_remains():
    images = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 10, 12)
    for seed in range(20):
        mixed = cutmix(images, generator=generator(seed))
        partners = images[mixed.permutation]
        from_self, from_partner = mixed.images == images, mixed.images == partners
        assert (from_self | from_partner).all()
        moved = mixed.permutation != torch.arange(4)
        if moved.any():
            kept = from_self[moved].double().mean(dim=(1, 2, 3))
            torch.testing.assert_close(kept, torch.full_like(kept, float(mixed.weight)))


@given(st.floats(0, 1), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_box_share_is_one_box_cut_at_the_borders(weight, row, column):
    share = box_share(weight, row, column, 8, 12)
    inside = (share == 0).nonzero()
    assert set(share.unique().tolist()) <= {0.0, 1.0}
    if len(inside):
        top, left = inside.min(dim=0).values.tolist()
        bottom, right = inside.max(dim=0).values.tolist()
        assert share[top : bottom + 1, left : right + 1].sum() == 0
    assert len(inside) <= (1 - weight) * 96 + 1e-6


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_weights_follow_the_beta_distribution(alpha):
    chance, image = generator(), torch.zeros(2, 1)
    weights = torch.stack([mixup(image, alpha, chance).weight for _ in range(4000)])
    variance = 1 / (4 * (2 * alpha + 1))
    assert float(weights.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(weights.var()) == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("alpha", [1e-4, 1e-3, 1e6])
def test_extreme_alphas_stay_finite(alpha):
    chance = generator()
    weights = torch.stack([mixup(torch.zeros(2, 1), alpha, chance).weight for _ in range(200)])
    assert torch.isfinite(weights).all()
    if alpha < 1:  # almost all of one of the two, each half of the time
        assert float(weights.round().mean()) == pytest.approx(0.5, abs=0.1)


def test_alpha_zero_leaves_the_batch_as_it_is():
    images = torch.rand(4, 3)
    assert torch.equal(mixup(images, alpha=0).images, images)
    with pytest.raises(UserError, match="alpha must be a number from 0"):
        mixup(images, alpha=-1)
    with pytest.raises(UserError, match="CutMix wants images"):
        cutmix(images)


def test_mixing_leaves_the_label_marginal_unchanged():
    """Each label is kept by `weight` and given away by the rest: in every batch the soft counts stay the same."""
    targets = torch.tensor([0, 0, 0, 1, 1, 2])
    one_hot = torch.nn.functional.one_hot(targets, 3).double()
    for mix, images in ((mixup, torch.zeros(6, 1)), (cutmix, torch.zeros(6, 1, 8, 8))):
        for seed in range(50):
            mixed = mix(images, generator=generator(seed))
            soft = mixed.weight * one_hot + (1 - mixed.weight) * one_hot[mixed.permutation]
            torch.testing.assert_close(soft.sum(dim=0), one_hot.sum(dim=0))


@pytest.mark.parametrize("lambdas", [(1, 0, -1), (0,), [[0.5, -0.2, 1.0], [-0.5, 0.2, -1.0]]])
def test_mixed_loss_equals_the_loss_of_soft_labels(lambdas):
    torch.manual_seed(0)
    loss = BalPoELoss([70, 20, 10], lambdas)
    logits, targets = torch.randn(6, len(lambdas), 3, dtype=torch.float64), torch.randint(3, (6,))
    mixed = mixup(torch.zeros(6, 1, dtype=torch.float64), generator=generator())
    one_hot = torch.nn.functional.one_hot(targets, 3).double()
    soft = mixed.weight * one_hot + (1 - mixed.weight) * one_hot[mixed.permutation]
    torch.testing.assert_close(mixed_loss(loss, logits, targets, mixed), loss(logits, soft))


def test_the_same_generator_gives_the_same_batch():
    images = torch.rand(5, 1, 8, 8)
    for mix in (mixup, cutmix):
        first, second = mix(images, generator=generator(3)), mix(images, generator=generator(3))
        assert torch.equal(first.images, second.images)
        assert torch.equal(first.permutation, second.permutation)


def test_under_torch_compile():
    loss = BalPoELoss([70, 20, 10], (1, 0, -1))
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 3, 3), torch.randint(3, (6,))
    mixed = mixup(torch.zeros(6, 1), generator=generator())
    compiled = torch.compile(mixed_loss, backend="aot_eager")
    torch.testing.assert_close(compiled(loss, logits, targets, mixed), mixed_loss(loss, logits, targets, mixed))
