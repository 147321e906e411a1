import io
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balpoe import BalPoELoss, LogitAdjustedLoss, UserError, class_prior, logit_adjusted_cross_entropy, logit_offsets
from gaussians import long_tail


def slow_loss(expert_logits, targets, prior, lambdas):
    """The paper's equations, one expert, one sample and one class at a time."""
    total = 0.0
    batch, experts, classes = expert_logits.shape
    for expert in range(experts):
        for row in range(batch):
            adjusted = [
                float(expert_logits[row, expert, c]) + (1 - lambdas[expert][c]) * math.log(prior[c])
                for c in range(classes)
            ]
            top = max(adjusted)
            log_sum = top + math.log(math.fsum(math.exp(value - top) for value in adjusted))
            total += log_sum - adjusted[int(targets[row])]
    return total / (batch * experts)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(2, 6), st.booleans())
def test_loss_against_a_slow_loop(seed, experts, classes, per_class):
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(4, experts, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes, (4,), generator=generator)
    prior = class_prior(torch.rand(classes, generator=generator, dtype=torch.float64) + 1e-3)
    lambdas = torch.rand(experts, classes if per_class else 1, generator=generator, dtype=torch.float64) * 6 - 3
    lambdas = lambdas - lambdas.mean(dim=0)  # an average of zero does not warn
    loss = BalPoELoss(prior, lambdas if per_class else lambdas.squeeze(1))
    rows = lambdas.expand(experts, classes).tolist()
    assert float(loss(logits, targets)) == pytest.approx(slow_loss(logits, targets, prior.tolist(), rows), rel=1e-6)


def test_pairwise_margin_form_of_the_loss():
    """The paper writes the loss a second time, as log(1 + sum of exp(f_j - f_y + margin))."""
    prior, tau = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64), 1.5
    logits, label = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64), 1
    margins = [tau * math.log(prior[j] / prior[label]) for j in (0, 2)]
    gaps = [float(logits[0, j] - logits[0, label]) for j in (0, 2)]
    expected = math.log(1 + sum(math.exp(gap + margin) for gap, margin in zip(gaps, margins, strict=True)))
    value = LogitAdjustedLoss(prior, tau)(logits, torch.tensor([label]))
    assert float(value) == pytest.approx(expected)


def test_soft_targets_equal_the_labels_they_stand_for():
    torch.manual_seed(0)
    loss = BalPoELoss([50, 30, 20], (1, 0, -1))
    logits, targets = torch.randn(6, 3, 3), torch.randint(3, (6,))
    one_hot = torch.nn.functional.one_hot(targets, 3)
    torch.testing.assert_close(loss(logits, targets), loss(logits, one_hot.float()))
    torch.testing.assert_close(loss(logits, targets), loss(logits, one_hot.half()))


def test_the_known_special_cases():
    torch.manual_seed(0)
    counts, logits, targets = [70, 20, 10], torch.randn(8, 1, 3), torch.randint(3, (8,))
    cross_entropy = torch.nn.functional.cross_entropy(logits[:, 0], targets)
    torch.testing.assert_close(BalPoELoss(counts, (1,))(logits, targets), cross_entropy)
    balanced_softmax = torch.nn.functional.cross_entropy(logits[:, 0] + torch.tensor(counts).log(), targets)
    torch.testing.assert_close(BalPoELoss(counts, (0,))(logits, targets), balanced_softmax)
    torch.testing.assert_close(LogitAdjustedLoss(counts)(logits[:, 0], targets), balanced_softmax)
    experts = [LogitAdjustedLoss(counts, tau)(logits[:, 0], targets) for tau in (0, 1, 2)]
    ours = BalPoELoss(counts, (1, 0, -1))(logits.expand(8, 3, 3), targets)
    torch.testing.assert_close(ours, torch.stack(experts).mean())


def test_sade_is_this_loss_with_per_class_lambdas():
    """SADE's third expert adds log pi - 2 log(backward pi): lambdas (1, 0, 2 log backward / log prior)."""
    torch.manual_seed(0)
    prior = long_tail(10)
    backward = prior.flip(0)
    logits, targets = torch.randn(5, 3, 10, dtype=torch.float64), torch.randint(10, (5,))
    offsets = [torch.zeros(10), prior.log(), prior.log() - 2 * backward.log()]
    sade = sum(torch.nn.functional.cross_entropy(logits[:, e] + offsets[e], targets) for e in range(3)) / 3
    lambdas = torch.stack([torch.ones(10), torch.zeros(10), 2 * backward.log() / prior.log()])
    ours = logit_adjusted_cross_entropy(logits, targets, logit_offsets(prior, lambdas))
    assert float(ours) == pytest.approx(float(sade), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("lambdas", [(3.0, -3.0), (1.0, 0.0, -1.0), (0.0,)])
def test_extreme_logits_and_priors_in_every_precision(dtype, lambdas):
    counts = torch.tensor([1.0, 1e-4, 1e-8], dtype=torch.float64)
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 5.0], [0.0, 0.0, 0.0]], dtype=dtype)
    logits = logits[:, None].expand(3, len(lambdas), 3).clone().requires_grad_()
    targets = torch.tensor([0, 2, 2])
    value = BalPoELoss(counts, lambdas)(logits, targets)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    prior = class_prior(counts).tolist()
    expected = slow_loss(logits.detach().double(), targets, prior, [[value] * 3 for value in lambdas])
    assert float(value.detach()) == pytest.approx(expected, rel=1e-5)
    value.backward()
    assert torch.isfinite(logits.grad).all()


def test_reductions():
    torch.manual_seed(0)
    logits, targets, offsets = torch.randn(4, 2, 3), torch.tensor([0, 1, 2, 0]), torch.randn(2, 3)
    each = logit_adjusted_cross_entropy(logits, targets, offsets, reduction="none")
    assert each.shape == (4, 2)
    for sample, expert in itertools.product(range(4), range(2)):
        log_p = (logits[sample, expert] + offsets[expert]).log_softmax(dim=0)
        torch.testing.assert_close(each[sample, expert], -log_p[targets[sample]])
    torch.testing.assert_close(each.mean(), logit_adjusted_cross_entropy(logits, targets, offsets))
    torch.testing.assert_close(each.sum(), logit_adjusted_cross_entropy(logits, targets, offsets, reduction="sum"))


@pytest.mark.parametrize("soft", [False, True])
def test_under_torch_compile_without_a_break(soft):
    loss = BalPoELoss([50, 30, 20], (1, 0, -1))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 3, 3), torch.randint(3, (6,))
    targets = torch.nn.functional.one_hot(targets, 3).float() if soft else targets
    torch.testing.assert_close(compiled(logits, targets), loss(logits, targets))


def test_state_dict_and_moving():
    loss, other = BalPoELoss([50, 30, 20], (1, 0, -1)), BalPoELoss([1, 1, 1], (1, 0, -1))
    stream = io.BytesIO()
    torch.save(loss.state_dict(), stream)
    stream.seek(0)
    other.load_state_dict(torch.load(stream, weights_only=True))
    assert torch.equal(loss.offsets, other.offsets)
    assert not list(loss.parameters())
    assert loss.to("meta").offsets.device.type == "meta"
    assert "experts=3, classes=3" in repr(other)


def test_shapes_that_do_not_fit():
    loss = BalPoELoss([50, 30, 20], (1, 0, -1))
    targets = torch.tensor([0, 1])
    with pytest.raises(UserError, match="3 experts but the network returned 2; build the network with num_experts=3"):
        loss(torch.zeros(2, 2, 3), targets)
    with pytest.raises(UserError, match="3 classes but the network returned 4"):
        loss(torch.zeros(2, 3, 4), targets)
    with pytest.raises(UserError, match=r"\(batch, experts, classes\)"):
        loss(torch.zeros(2, 3), targets)
    with pytest.raises(UserError, match=r"\(batch, 2\)"):
        LogitAdjustedLoss([1, 1])(torch.zeros(2, 3), targets)


def test_lambdas_that_do_not_average_to_zero_warn_and_work():
    with pytest.warns(UserWarning, match=r"lambdas average to -0.25.*lambda = 1 - tau"):
        BalPoELoss([50, 30, 20], (1, -0.25, -1.5))  # the paper's ImageNet-LT setting
    with pytest.warns(UserWarning, match="average to 1,"):
        BalPoELoss([50, 30, 20], (0, 1, 2))  # taus given for lambdas
    with pytest.warns(UserWarning, match=r"between 0.5 and 1, class by class, so .* for a prior from 0.152 to 0.539"):
        BalPoELoss([50, 30, 20], [[1, 1, 1], [0, 0.5, 1]])
    for lambdas in ((1, 0, -1), (1, 1, 1), (1,), (0,), (0, 0, 0)):
        BalPoELoss([50, 30, 20], lambdas)  # no warning: balanced, or all the same
