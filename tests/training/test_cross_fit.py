import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import BalPoEClassifier, BalPoELoss, Dataset, UserError, fit
from balpoe.data.dataset import Preprocessing
from balpoe.method.calibration import fit_scale
from balpoe.method.ensemble import source_prior
from balpoe.networks import ExpertHead
from balpoe.networks.mlp import mlp
from balpoe.training.cross_fit import (
    CrossLoss,
    can_be_repeated,
    cross_fit,
    expert_means,
    feature_experts,
    network_means,
    repeated,
    split_folds,
    weighted_prior,
)
from balpoe.training.schedules import Cosine
from balpoe.training.settings import FitSettings


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.sampled_from([(5, 5), (3, 3), (1, 10), (2, 4)]))
def test_every_network_sees_every_class_and_not_its_fold(counts, sizes):
    targets = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    networks, folds = sizes
    fold, rows = split_folds(targets, networks, folds, generator())
    assert rows.shape[1] == networks
    for network in range(networks):
        seen = set(rows[:, network].tolist())
        assert seen == set((fold != network).nonzero().squeeze(1).tolist())
        assert set(targets[rows[:, network]].tolist()) == set(range(len(counts)))
    for label, count in enumerate(counts):
        own = fold[targets == label]
        assert count > 1 or own.tolist() == [-1]
        if networks == folds and count > 1:  # each is held out once, as evenly as can be
            held = torch.bincount(own, minlength=networks)
            assert int(held.sum()) == count
            assert int(held.max() - held.min()) <= 1


def test_groups_are_never_split_and_a_class_of_one_group_is_seen_by_all():
    targets = torch.tensor([0] * 40 + [1] * 12 + [2] * 30)
    groups = torch.cat([torch.arange(40) // 4, torch.full((12,), 77), 100 + torch.arange(30) // 10])
    groups[0] = 77  # this one joins two classes
    fold, rows = split_folds(targets, 3, 3, generator(), groups)
    for group in groups.unique():
        assert len(fold[groups == group].unique()) == 1
    assert set(fold[targets == 1].tolist()) == {-1}  # its only group
    assert int(fold[0]) == -1
    assert set(fold[targets == 2].tolist()) == {0, 1, 2}
    for network in range(3):
        assert set(targets[rows[:, network]].tolist()) == {0, 1, 2}
        assert not set(rows[:, network].tolist()) & set((fold == network).nonzero().flatten().tolist())


def test_a_group_of_most_samples_leaves_a_network_with_few():
    targets = torch.arange(20) % 2
    fold, rows = split_folds(targets, 2, 2, generator(), torch.tensor([0] * 16 + [1, 1, 2, 2]))
    seen = [set(column.tolist()) for column in rows.T]
    assert [set((fold != network).nonzero().flatten().tolist()) for network in range(2)] == seen


def test_copies_of_a_network_begin_alike_and_each_has_its_own_samples():
    network = ExpertHead(4, 3, num_experts=2, hidden=5)
    copies, x = repeated(network, 3), torch.randn(6, 3, 4)
    expected = torch.cat([network(x[:, each]) for each in range(3)], dim=1)
    torch.testing.assert_close(copies(x.flatten(1)), expected)
    assert can_be_repeated(network)
    assert not can_be_repeated(mlp(3, num_features=4))  # its experts share a layer


def test_the_loss_is_a_sum_of_weighted_losses_network_by_network():
    counts, lambdas = [60, 30, 10], (1, 0, -1)
    logits, labels, weights = torch.randn(7, 2 * 3, 3), torch.randint(3, (20, 2)), torch.rand(20, 2)
    rows = torch.randperm(20)[:7]
    loss = CrossLoss(BalPoELoss(counts, lambdas), labels, weights)
    slow = 0.0
    for network in range(2):
        for place, row in enumerate(rows.tolist()):
            own = logits[place : place + 1, 3 * network : 3 * network + 3]
            slow += float(weights[row, network] * BalPoELoss(counts, lambdas)(own, labels[row : row + 1, network])) / 7
    assert float(loss(logits, rows)) == pytest.approx(slow, rel=1e-5)


def problem():
    targets = torch.tensor([0] * 30 + [1] * 12 + [2] * 6)
    features = torch.randn(48, 4, generator=generator(1)) + torch.eye(3, 4)[targets] * 2
    return Dataset(features, targets, preprocessing=Preprocessing((4,)))


def crossed(network, data, folds, lambdas, loss=None, **settings):
    prior = weighted_prior(data.targets, torch.ones(48))
    loss = loss or BalPoELoss(prior, lambdas).float()
    source = source_prior(prior, lambdas)
    return cross_fit(network, data, torch.ones(48), folds, loss, source, FitSettings(**settings))


def test_networks_side_by_side_are_networks_alone():
    """The same first weights, rows, order and mixing: the same weights afterwards, for each of them."""
    data, lambdas = problem(), (1, 0, -1)
    folds = split_folds(data.targets, 2, 2, generator())
    settings = {"epochs": 3, "batch_size": 8, "lr": 0.2, "schedule": Cosine(), "mixup_alpha": 0.3, "seed": 4,
                "device": "cpu", "progress": False}  # fmt: skip
    sizes = {"hidden": (5, 5), "cosine_scale": 8.0}
    both = feature_experts(4, 3, 3, 2, generator=generator(2), **sizes)
    alone = [feature_experts(4, 3, 3, 1, generator=generator(3), **sizes) for _ in range(2)]
    for number, network in enumerate(alone):
        state = {name: value[3 * number : 3 * number + 3] for name, value in both.state_dict().items()}
        network.load_state_dict(state)
    crossed(both, data, folds, lambdas, **settings)
    for number, network in enumerate(alone):
        fit(network, BalPoELoss(data.class_counts, lambdas), data.subset(folds.rows[:, number]), **settings)
        for name, value in network.state_dict().items():
            torch.testing.assert_close(both.state_dict()[name][3 * number : 3 * number + 3], value)


def test_what_is_unseen_is_predicted_by_the_network_that_has_not_seen_it():
    data = problem()
    folds = split_folds(data.targets, 3, 3, generator())
    network = feature_experts(4, 3, 2, 3, hidden=(6,), cosine_scale=8.0, generator=generator())
    found = crossed(network, data, folds, (0.5, -0.5), epochs=2, batch_size=16, device="cpu", progress=False)
    experts = network(data.images).detach().view(48, 3, 2, 3)
    for row, (fold, logits) in enumerate(zip(folds.fold.tolist(), found.unseen.logits, strict=True)):
        expected = experts[row, fold].mean(dim=0).double().log_softmax(dim=0) * found.scale
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(found.unseen.targets, data.targets)
    # Calibrated where the labels are: under the training prior, from the uniform one of these lambdas.
    moved, raw = data.class_counts.double().log(), found.unseen.logits / found.scale
    assert found.scale == pytest.approx(fit_scale(raw, data.targets, torch.ones(48), moved), rel=1e-6)
    log_p = (found.unseen.logits + moved).log_softmax(dim=1)[torch.arange(48), data.targets]
    assert found.nll == pytest.approx(-float(log_p.mean()))
    means = expert_means(network, data, 2)
    torch.testing.assert_close(means, experts.mean(dim=1))
    (each,) = network_means(network, data, 3)
    torch.testing.assert_close(each, experts.mean(dim=2).double().transpose(0, 1))
    assert torch.equal(found.unseen.fold, folds.fold)
    assert torch.equal(found.unseen.subset(torch.tensor([5, 2])).fold, folds.fold[[5, 2]])


def test_any_method_s_loss_can_be_cross_fitted():
    """Here one that changes with progress: each network's loss is computed from its own samples."""

    class Fading(BalPoELoss):
        def forward(self, expert_logits, targets, progress=None, reduction="mean"):
            seen.append(float(progress))
            return (1 - progress) * super().forward(expert_logits, targets, progress, reduction)

    data, seen = problem(), []
    folds = split_folds(data.targets, 2, 2, generator())
    network = feature_experts(4, 3, 2, 2, hidden=(6,), cosine_scale=8.0, generator=generator())
    settings = {"epochs": 2, "batch_size": 16, "mixup_alpha": 0.0, "device": "cpu", "progress": False}
    found = crossed(network, data, folds, (1, -1), loss=Fading(data.class_counts, (1, -1)), **settings)
    assert seen == sorted(seen)
    assert 0.5 < seen[-1] < 1
    assert len(found.unseen.targets) == 48


@given(st.integers(0, 1000))
def test_the_scale_is_that_of_a_search(seed):
    rng = generator(seed)
    logits = torch.randn(60, 3, generator=rng, dtype=torch.float64) * 3
    targets = (logits + 2 * torch.randn(60, 3, generator=rng)).argmax(dim=1)
    weights, offsets = torch.rand(60, generator=rng) + 0.1, torch.randn(3, generator=rng).double()
    found = fit_scale(logits, targets, weights, offsets)

    def likelihood(scale):
        log_p = (scale * logits + offsets).log_softmax(dim=1)[torch.arange(60), targets]
        return float(weights.double() @ log_p) - (scale - 1) ** 2 / 2  # the prior

    for scale in torch.linspace(0.05, 5, 60).tolist():
        assert likelihood(found) >= likelihood(scale) - 1e-9


def test_experts_are_not_linear():
    with pytest.raises(UserError, match="hidden must name the units of one layer or more"):
        feature_experts(4, 3, 2, 3, hidden=(), cosine_scale=8.0, generator=generator())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_gives_the_same_answers():
    """Of the classifier; here, where neither pandas nor polars is wanted."""
    data = problem()
    X, y = data.images.numpy(), data.targets.numpy()
    settings = {"epochs": 8, "mixup_alpha": 0, "hidden": 16, "random_state": 0}
    here, there = (BalPoEClassifier(device=device, **settings).fit(X, y) for device in ("cpu", "cuda"))
    assert next(there.network_.parameters()).device.type == "cpu"  # to be pickled, and used anywhere
    assert abs(there.predict_proba(X) - here.predict_proba(X)).max() < 0.05
