"""Every method of the catalogue: its settings, and whether its loss can be captured in a training step."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from balpoe import UserError, class_prior, load, source_prior
from balpoe.baselines.catalogue import METHODS, Entry, checked_settings, load_method
from balpoe.baselines.method import Method, MethodInputs
from balpoe.data.loading.in_memory import Batch
from balpoe.experiments.build import method_parts
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import Recipe, updated
from balpoe.experiments.run_folder import train_run
from balpoe.experiments.run_names import changed_name
from balpoe.method.lambdas import equidistant_lambdas
from balpoe.settings import setting
from balpoe.training.learner import batch_loss

pytestmark = pytest.mark.filterwarnings("ignore:lambdas average to")  # SADE's do not average to zero
COUNTS = torch.tensor([500, 100, 20, 5])
METHODS_PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
OF_A_BATCH = ("lade", "tlc")  # a sample's value depends on the others in the batch


def inputs_of(name):
    experts = METHODS[name].num_experts
    lambdas = equidistant_lambdas(experts) if METHODS[name].takes_lambdas else ()
    return MethodInputs(COUNTS, class_prior(COUNTS), lambdas, experts)


def views_of(name):
    return 2 if load_method(name).second_view else 1


def capturable(loss, num_experts, views=1):
    """Let a mixed batch through network and loss without values: what reads or branches on one raises."""
    network = nn.Sequential(nn.Linear(6, 4 * num_experts), nn.Unflatten(1, (num_experts, 4)))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        targets = mode.from_tensor(torch.arange(8) % 4)
        mixed = (targets.flip(0), torch.rand(())) if views == 1 else ()
        batch = Batch(torch.randn(8 * views, 6), targets, *mixed)
        batch_loss(network, loss, batch, torch.rand(())).backward()


@pytest.mark.parametrize("name", METHODS)
def test_a_step_with_this_loss_can_be_captured(name):
    loss = load_method(name).loss(inputs_of(name), **checked_settings(name, {}))
    capturable(loss, METHODS[name].num_experts, views_of(name))


def test_what_cannot_be_captured_is_noticed():
    def reads(expert_logits, targets, progress=None, reduction="mean"):
        return expert_logits.mean() * float(expert_logits.max())

    def branches(expert_logits, targets, progress=None, reduction="mean"):
        return expert_logits.mean() if progress > 0.5 else expert_logits.sum()

    for loss in (reads, branches):
        with pytest.raises(DataDependentOutputException):
            capturable(loss, 1)


@pytest.mark.parametrize("name", METHODS)
def test_the_page_of_methods_has_a_row_with_every_setting(name):
    row, *settings = (line for line in METHODS_PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    assert (METHODS[name].paper or "-") in row
    assert len(settings) == bool(METHODS[name].settings)
    for key, item in METHODS[name].settings.items():
        shared = METHODS["ldam-drw"].settings if "those of `ldam-drw`" in settings[0] else {}
        assert f"`{key}` {item.default:g}" in settings[0] or key in shared


@pytest.mark.parametrize("name", METHODS)
def test_an_entry_agrees_with_its_parts(name):
    """Whoever takes lambdas uses them; others may have their own."""
    assert load_method(name).lambdas is not None or not METHODS[name].takes_lambdas


@pytest.mark.parametrize("name", METHODS)
def test_one_value_a_sample_averages_to_the_loss(name):
    """Which cross-fitting rests on, for its weights."""
    inputs = inputs_of(name)
    loss = load_method(name).loss(inputs, **checked_settings(name, {}))
    views = views_of(name)
    logits, targets = torch.randn(8 * views, inputs.num_experts, 4), torch.arange(8) % 4
    values = loss(logits, targets, progress=0.3, reduction="none")
    assert values.shape == (8,)
    assert float(values.mean()) == pytest.approx(float(loss(logits, targets, progress=0.3)), rel=1e-6)
    if name in OF_A_BATCH:
        return
    alone = [float(loss(logits[row::8], targets[row, None], progress=0.3)) for row in range(8)]
    assert values.tolist() == pytest.approx(alone, rel=1e-5)


def test_settings_are_checked_by_their_entry():
    assert checked_settings("sade", {}) == {"backward_tau": 2.0}
    for recipe, sentence in (
        ({"method": "sad"}, "unknown method 'sad'; did you mean 'sade'"),
        ({"method": "sade", "method_settings": {"tau": 1.0}}, "unknown setting of method sade 'tau'"),
        ({"method": "sade", "method_settings": {"backward_tau": -1.0}}, "backward_tau must be above 0, but is -1"),
        (
            {"method_settings": {"backward_tau": 1.0}},
            "method balpoe has no settings of its own",
        ),
        ({"method_settings": 3}, "method_settings must be a table, but is 3"),
    ):
        with pytest.raises(UserError, match=sentence):
            updated(Recipe(), recipe)


def test_a_method_s_settings_are_part_of_a_run_s_identity():
    plain, usual = Recipe(method="sade"), Recipe(method="sade", method_settings={"backward_tau": 2.0})
    other = Recipe(method="sade", method_settings={"backward_tau": 1.5})
    assert plain.identity() == usual.identity() != other.identity()
    assert changed_name("cifar100-lt", plain, Recipe()) == "cifar100-lt-method-sade"
    assert changed_name("cifar100-lt", other, Recipe()) == "cifar100-lt-method-sade-backward-tau-1.5"
    assert changed_name("cifar100-lt", other, plain) == "cifar100-lt-backward-tau-1.5"


def test_the_field_that_was_sade_s_loss_is_still_read():
    assert updated(Recipe(), {"backward_tau": 2.0}) == Recipe(method="sade", method_settings={"backward_tau": 2.0})
    assert updated(Recipe(), {"backward_tau": 0.0}) == Recipe()
    for value, sentence in (([], "backward_tau must be a number"), ("x", "backward_tau must be a number")):
        with pytest.raises(UserError, match=sentence):
            updated(Recipe(), {"backward_tau": value})
    with pytest.raises(UserError, match="backward_tau belongs to the method sade, but method is balpoe"):
        updated(Recipe(), {"method": "balpoe", "backward_tau": 2.0})


def test_settings_of_another_method_are_left_behind():
    sade = Recipe(method="sade", method_settings={"backward_tau": 1.5})
    assert updated(sade, {"method": "balpoe"}) == Recipe()
    assert updated(sade, {"epochs": 3}).method_settings == {"backward_tau": 1.5}


class Focal(nn.Module):
    def __init__(self, power):
        super().__init__()
        self.power = power

    def forward(self, expert_logits, targets, progress=None, reduction="mean"):
        log_p = expert_logits.log_softmax(dim=2).mean(dim=1).gather(1, targets[:, None]).squeeze(1)
        values = -((1 - log_p.exp()) ** self.power) * log_p
        return values.mean() if reduction == "mean" else values


@pytest.fixture
def focal(monkeypatch):
    """A method that differs by its loss alone: its parts, and an entry."""
    method = Method(lambda inputs, power: Focal(power), source_prior=lambda inputs, power: None)
    settings = {"power": setting(2.0, "power of the doubt", at_least=0)}
    monkeypatch.setitem(METHODS, "focal", Entry(method, "the focal loss", settings=settings))


@pytest.mark.usefixtures("focal")
def test_a_method_that_differs_by_its_loss_alone():
    inputs, recipe = MethodInputs(COUNTS, class_prior(COUNTS), ()), Recipe(method="focal")
    loss, lambdas, source = method_parts(recipe, inputs)
    assert isinstance(loss, Focal)
    assert (loss.power, lambdas, source, recipe.experts) == (2.0, None, None, 1)
    capturable(loss, 1)
    with pytest.raises(UserError, match="the experts of focal have no lambdas"):
        Recipe(method="focal", lambdas=(1, 0, -1))


@pytest.mark.usefixtures("focal")
def test_such_a_method_is_trained_measured_and_loaded_like_any_other(tmp_path):
    recipe = updated(preset("digits-lt"), {"method": "focal", "epochs": 2, "method_settings": {"power": 1.0}})
    run = train_run(recipe, tmp_path / "digits-lt" / "seed-0", progress=False)
    assert run.predictions().source_prior is None
    assert run.evaluation()["accuracy"] > 0.2
    model = load(run.folder)
    assert model.source_prior is None
    images = torch.zeros(2, *model.preprocessing.size)
    assert model.predict(images).shape == (2, 10)
    with pytest.raises(UserError, match="are no posterior, so that they cannot be adjusted"):
        model.predict(images, target_prior="uniform")


def test_the_prior_of_the_logits():
    inputs = inputs_of("sade")
    _, lambdas, source = method_parts(Recipe(method="sade"), inputs)
    assert lambdas.shape == (3, 4)
    assert torch.equal(source, source_prior(inputs.train_prior, lambdas))


def test_names_and_limits_are_readable_without_torch():
    code = "import balpoe.baselines.catalogue as c, sys; print(sorted(c.METHODS), 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == f"{sorted(METHODS)} False\n"
