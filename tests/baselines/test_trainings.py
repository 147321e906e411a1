"""Every method of the catalogue trained: what is saved of it, and that stopping changes nothing."""

import pytest
import torch

from balpoe import class_prior
from balpoe.baselines.catalogue import METHODS, checked_settings, load_method, trained_methods
from balpoe.baselines.method import MethodInputs
from balpoe.cli.main import main
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import Recipe, updated
from balpoe.experiments.run_folder import Run
from balpoe.experiments.run_names import changed_name
from balpoe.method.lambdas import equidistant_lambdas
from balpoe.networks import expert_network
from balpoe.training.fit import fit
from commands import QUICK, sentence
from trainings import Stop, features, same_weights

pytestmark = pytest.mark.filterwarnings("ignore:lambdas average to")  # SADE's do not average to zero

OF_TRAINING = "cross-entropy", "mixup", "remix"
OF_ITS_LAMBDAS = "sade", "sade-test-time"  # the others are made for equal shares


@pytest.mark.parametrize("name", trained_methods())
def test_trained_and_saved_with_the_prior_of_its_logits(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*QUICK, "--method", name, "--name", "it"]) == 0
    predictions, recipe = Run(tmp_path / "runs" / "it" / "seed-0").predictions(), Recipe(method=name)
    assert predictions.num_experts == recipe.experts == METHODS[name].num_experts
    assert bool(predictions.expert_logits.isfinite().all())
    source = predictions.source_prior
    if name in OF_TRAINING:
        torch.testing.assert_close(source, class_prior(predictions.class_counts).to(source))
    elif name in OF_ITS_LAMBDAS:
        assert float(source.sum()) == pytest.approx(1)
        assert float(source.std()) > 0
    else:
        torch.testing.assert_close(source, torch.full((10,), 0.1, dtype=source.dtype))


@pytest.mark.parametrize("name", trained_methods())
def test_a_run_that_was_stopped_ends_as_one_that_was_not(name, tmp_path):
    data, experts = features(), METHODS[name].num_experts
    lambdas = equidistant_lambdas(experts) if METHODS[name].takes_lambdas else ()
    inputs = MethodInputs(data.class_counts, class_prior(data.class_counts), lambdas, experts)
    loss = load_method(name).loss(inputs, **checked_settings(name, {}))
    settings = {"epochs": 5, "batch_size": 16, "lr": 0.05, "device": "cpu", "progress": False}  # 5 steps an epoch
    if load_method(name).second_view:
        settings["second_view"] = ()  # features have none: twice the same

    def network():
        torch.manual_seed(1)
        return expert_network("mlp", num_classes=3, num_experts=experts, num_features=6, width=8)

    whole, stopped = network(), network()
    fit(whole, loss, data, mixup_alpha=0.0, **settings)
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, Stop(loss, 18), data, mixup_alpha=0.0, run=tmp_path, **settings)
    again = network()
    fit(again, Stop(loss, 0), data, mixup_alpha=0.0, run=tmp_path, **settings)
    assert same_weights(whole, again)


def test_what_a_method_prescribes_comes_with_it_and_flags_win():
    for name in ("cifar100-lt", "own-features"):
        start = preset(name)
        plain = updated(start, {"method": "ldam-drw"})
        assert (plain.mixup_alpha, plain.choose_mixup) == (0.0, False)
        assert plain == updated(plain, {"method": "ldam-drw", "mixup_alpha": 0.0})
        assert updated(start, {"method": "ldam-drw", "mixup_alpha": 0.2}).mixup_alpha == 0.2
        assert updated(start, {"method": "balpoe"}) == start
        assert updated(start, {"method": "mixup"}).mixup_alpha == start.mixup_alpha
    chosen = updated(preset("own-features"), {"method": "cross-entropy", "choose_mixup": True})
    assert chosen.choose_mixup


def test_lambdas_and_experts_of_another_method_are_left_behind():
    start = preset("imagenet-lt-resnet50")  # which has lambdas
    assert updated(start, {"method": "ride"}).experts == 3
    assert updated(Recipe(num_experts=5), {"method": "ride"}).experts == 5
    assert updated(Recipe(num_experts=5), {"method": "cross-entropy"}).experts == 1


def test_a_name_says_what_does_not_go_without_saying():
    start = preset("cifar100-lt")
    for changes, name in (
        ({"method": "ldam-drw"}, "cifar100-lt-method-ldam-drw"),
        ({"method": "ldam-drw", "mixup_alpha": 0.4}, "cifar100-lt-mixup-alpha-0.4-method-ldam-drw"),
        ({"method": "ride", "num_experts": 2, "epochs": 9}, "cifar100-lt-num-experts-2-method-ride-epochs-9"),
        ({"method": "lade", "method_settings": {"alpha": 0.5}}, "cifar100-lt-method-lade-alpha-0.5"),
    ):
        assert changed_name("cifar100-lt", updated(start, changes), start) == name


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--method", "ldam"], "unknown method 'ldam'; did you mean 'ldam-drw'?"),
        (
            ["--method", "ldam-drw", "--set", "tau=1"],
            "tau is a setting of --method logit-adjustment or --method remix; add that",
        ),
        (["--method", "balanced-softmax", "--set", "tau=1"], "tau is a setting of --method logit-adjustment or"),
        (["--method", "ldam-drw", "--lambdas", "1,0,-1"], "the experts of ldam-drw have no lambdas"),
        (["--method", "cross-entropy", "--num-experts", "3"], "cross-entropy has one expert, but num_experts is 3"),
        (["--method", "cb-focal", "--set", "beta=1"], "beta must be below 1, but is 1"),
        *(
            (["--method", name, "--num-experts", "1"], f"{name} is made of several experts, but num_experts is 1; give")
            for name in ("ride", "ride-router", "tlc", "sade", "sade-test-time")
        ),
        (["--method", "ride", "--set", "router_weight=3"], "a setting of --method ride-router; add that"),
        (["--method", "balpoe", "--set", "router_logits=3"], "a setting of --method ride-router; add that"),
        (["--method", "ride-router", "--set", "router_logits=0"], "router_logits must be at least 1, but is 0"),
        (["--method", "ride-router", "--set", "router_epochs=0"], "router_epochs must be above 0, but is 0"),
        (["--method", "ride-routing"], "did you mean 'ride-router'?"),
        (["--method", "logit-adjustment-after"], "train with --method cross-entropy, then balpoe evaluate RUN --prior"),
    ],
)
def test_bad_input(flags, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*QUICK, *flags]) == 2
    assert words in sentence(capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_titles_are_what_people_say():
    titles = [Recipe(method=name).title for name in trained_methods()]
    assert len(set(titles)) == len(titles)
    assert {"LDAM-DRW", "CB-Focal", "LADE", "RIDE", "TLC", "SADE", "BalPoE", "mixup"} < set(titles)
