import dataclasses

import pytest

from balpoe import UserError, equidistant_lambdas
from balpoe.experiments.recipe import FIELDS, MACHINE_FIELDS, TYPES, Recipe, parse, recipe_toml, toml_values, updated


def test_every_field_has_a_doc_line_and_passes_its_own_checks():
    for name, item in FIELDS.items():
        assert item.metadata["doc"]
        default = {} if TYPES[name] is dict else item.default
        assert getattr(Recipe(), name) == default
    assert set(FIELDS) >= MACHINE_FIELDS


def test_lambdas_and_number_of_experts_decide_each_other():
    assert Recipe().expert_lambdas == (1.0, 0.0, -1.0)
    assert Recipe(num_experts=7).expert_lambdas == equidistant_lambdas(7)
    assert Recipe(lambdas=(0,)).expert_lambdas == (0.0,)
    assert Recipe(num_experts=1).expert_lambdas == (0.0,)
    with pytest.raises(UserError, match="lambdas describes 2 experts but num_experts is 3"):
        Recipe(lambdas=(1, -1), num_experts=3)


def test_what_is_given_takes_the_place_of_the_other_where_they_do_not_agree():
    """Of lambdas and the number of experts; who gives both has to let them agree."""
    seven, uneven = Recipe(num_experts=7), Recipe(lambdas=(1, -0.25, -1.5))
    assert updated(seven, {"lambdas": (1,)}).expert_lambdas == updated(seven, {"lambdas": 1}).expert_lambdas == (1.0,)
    assert updated(uneven, {"num_experts": 2}).expert_lambdas == (1.0, -1.0)
    assert updated(uneven, {"num_experts": 3}).expert_lambdas == uneven.lambdas
    with pytest.raises(UserError, match="give one of the two"):
        updated(seven, {"lambdas": (1, -1), "num_experts": 3})


def test_identity_is_about_results_not_machines_or_spelling():
    assert Recipe().identity() == Recipe(lambdas=(1, 0, -1), num_experts=3, devices=2, device="cpu").identity()
    assert Recipe().identity() != Recipe(seed=1).identity()
    assert Recipe().identity() != Recipe(mixup_alpha=0).identity()


@pytest.mark.parametrize("network", ["resnet50", "resnet32"])
def test_random_is_a_word_for_no_weights(network):
    """As the help says: without it, weights that a preset begins with could not be left out."""
    bare, begun = Recipe(network=network), Recipe(network=network, weights="pretrained")
    assert "random" in FIELDS["weights"].metadata["doc"]
    for named in (Recipe(network=network, weights="random"), updated(begun, {"weights": "random"})):
        assert named == bare
        assert named.identity() == bare.identity()
    assert updated(begun, {}) == begun


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("epochs", -1, "epochs must be at least 0, but is -1"),
        ("epochs", 1.5, "epochs must be a whole number, but is 1.5"),
        ("epochs", True, "epochs must be a whole number"),
        ("lambdas", (1, float("nan")), "lambdas must be a finite number, but is nan"),
        ("lambdas", ("a",), "lambdas must be numbers with commas between"),
        ("imbalance_ratio", 0.01, r"imbalance_ratio must be at least 1, but is 0.01; did you mean 100\?"),
        ("imbalance_ratio", float("inf"), "finite"),
        ("cutmix_probability", 1.1, "at most 1"),
        ("weights", "some.pth", "network resnet32 begins with random weights, but weights is some.pth; leave it out"),
        ("weight_average_fraction", 1.1, "at most 1"),
        ("momentum", 1.0, "below 1"),
        ("lr", 0, "lr must be above 0, but is 0"),
        ("milestones", (160, 180), "at most 1, but is 160"),
        ("track", ("paper",), "unknown track 'paper'; known are csv, tensorboard, wandb"),
        ("dataset", "cifar100", "unknown dataset 'cifar100'; did you mean"),
        ("shot_groups", (20,), "shot_groups wants 2 numbers"),
        ("shot_groups", (100, 20), "shot_groups must rise"),
        ("nesterov", 1, "true or false"),
        ("seed", -1, "at least 0"),
        ("device", 3, "device must be text"),
    ],
)
def test_wrong_values(field, value, sentence):
    with pytest.raises(UserError, match=sentence):
        updated(Recipe(), {field: value})


def test_fields_that_must_agree():
    with pytest.raises(UserError, match="nesterov needs a momentum"):
        Recipe(momentum=0)
    assert Recipe(momentum=0, nesterov=False).momentum == 0


def test_what_is_given_is_not_chosen():
    chosen = updated(Recipe(), {"calibrate": True, "choose_mixup": True, "choose_lr": True, "tune": "head"})
    choices = {
        (): (True, True), ("mixup_alpha",): (False, True), ("lr",): (True, False),
        ("tune",): (False, False),  # the whole network takes long
        ("calibrate",): (False, False),
    }  # fmt: skip
    values = {"mixup_alpha": 0.2, "lr": 0.1, "tune": "adapters", "calibrate": False}
    for given, expected in choices.items():
        after = updated(chosen, {name: values[name] for name in given})
        assert (after.choose_mixup, after.choose_lr) == expected, given
    assert updated(chosen, {"tune": "full", "choose_mixup": True}).choose_mixup
    with pytest.raises(UserError, match="choose_lr asks samples outside of training; add --calibrate, or --no-choose"):
        Recipe(choose_lr=True)


def test_frozen_is_an_old_name():
    assert updated(Recipe(), {"frozen": True}) == Recipe(tune="head")
    assert updated(Recipe(tune="head"), toml_values("frozen = false")) == Recipe(tune="full")
    with pytest.raises(UserError, match="frozen is an old name for a value of tune, and both are given; leave frozen"):
        updated(Recipe(), {"frozen": True, "tune": "head"})
    with pytest.raises(UserError, match="tune must be text, but is 1"):
        updated(Recipe(), {"frozen": 1})


def test_class_means_of_what_is_held_out():
    sentence = "class means would tell cross-fitted heads about samples that they go without; add --no-calibrate"
    for settings in ({"tune": "head"}, {"network": "head"}):
        with pytest.raises(UserError, match=sentence):
            Recipe(head_start="class-means", calibrate=True, **settings)
        assert Recipe(head_start="class-means", **settings)
    assert Recipe(head_start="class-means", calibrate=True, tune="adapters")


def test_a_temperature_is_found_or_given():
    with pytest.raises(UserError, match="calibrate finds a temperature by itself; add --no-calibrate, or leave out"):
        Recipe(calibrate=True, temperature=0.8)
    known = Recipe(temperature=0.8)
    assert updated(known, {"calibrate": True}) == Recipe(calibrate=True)
    assert updated(known, {"epochs": 3}).temperature == 0.8
    assert updated(known, {"method": "ldam-drw"}).temperature == 1  # it is known of another method
    assert updated(known, {"method": "ldam-drw", "temperature": 0.9}).temperature == 0.9
    with pytest.raises(UserError, match="temperature must be"):
        Recipe(temperature=0.0)


def test_a_share_of_early_epochs_wants_their_size():
    with pytest.raises(UserError, match="early_fraction is the share of epochs with smaller images; set early_image_"):
        Recipe(early_fraction=0.3)
    assert Recipe(early_fraction=0.3, early_image_size=24)


def test_unknown_fields_name_the_nearest():
    with pytest.raises(UserError, match="did you mean 'imbalance_ratio'"):
        updated(Recipe(), {"imbalance": 10})
    sentence = r"kernel_decay is no field, but a setting of optimizer muon; .*: optimizer_settings = { kernel_decay = "
    with pytest.raises(UserError, match=sentence):
        updated(Recipe(optimizer="muon"), {"kernel_decay": 0.2})
    assert updated(Recipe(optimizer="muon"), toml_values("optimizer_settings = { kernel_decay = 0.2 }"))


def test_text_of_the_command_line():
    assert parse("lambdas", "-1,0,1") == (-1.0, 0.0, 1.0)
    assert parse("width", "16,24,48") == (16, 24, 48)
    assert parse("epochs", "20") == 20
    assert parse("dataset", "digits-lt") == "digits-lt"
    with pytest.raises(UserError, match=r"epochs must be a whole number, but is '2\.5'"):
        parse("epochs", "2.5")
    with pytest.raises(UserError, match="lambdas must be numbers with commas between, but is '1;0'"):
        parse("lambdas", "1;0")
    assert TYPES["nesterov"] is bool


def test_it_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().epochs = 3


def test_a_recipe_file_has_no_field_that_does_not_apply():
    from balpoe.experiments.presets import preset

    own, digits = (toml_values(recipe_toml(preset(name))) for name in ("own", "digits-lt"))
    assert not {"imbalance_ratio", "profile", "validation", "download"} & set(own)
    assert not {"data_version", "test_fraction", "group", "skip_unreadable"} & set(digits)
    for name in ("own", "own-features", "digits-lt", "cifar100-lt"):
        assert updated(Recipe(), toml_values(recipe_toml(preset(name)))) == preset(name)
    odd = updated(preset("own"), {"imbalance_ratio": 50.0})  # what somebody asked for is not dropped
    assert updated(Recipe(), toml_values(recipe_toml(odd))) == odd
