import re

import pytest

from balpoe import UserError
from balpoe.experiments.presets import preset
from balpoe.experiments.recipe import Recipe, recipe_toml, updated
from balpoe.experiments.run_names import changed_name, differences_text, named_recipe, run_folder

QUICK = updated(preset("digits-lt"), {"epochs": 2, "width": (8,)})
OWN = updated(preset("own-features"), {"data_root": "photos", "data_version": "00000001"})


def start(folder, recipe):
    """What a run that has begun leaves behind."""
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(recipe_toml(recipe))


def test_names_say_what_changed():
    base = Recipe()
    assert changed_name("cifar100-lt", base, base) == "cifar100-lt"
    assert changed_name("cifar100-lt", updated(base, {"seed": 3, "devices": 2}), base) == "cifar100-lt"
    assert changed_name("digits-lt", updated(base, {"epochs": 40}), base) == "digits-lt-epochs-40"
    changed = updated(base, {"lambdas": (0,), "lr": 0.05, "nesterov": False, "width": (16, 24, 48)})
    assert changed_name("a", changed, base) == "a-lambdas-0-width-16_24_48-lr-0.05-nesterov-false"
    assert changed_name("a", updated(base, {"num_experts": 5}), base) == "a-lambdas-1_0.5_0_-0.5_-1"


def test_another_recipe_never_lands_in_the_folder_of_a_run(tmp_path):
    first, second = QUICK, updated(QUICK, {"lr": 0.5})
    folder = run_folder(tmp_path, "mine", first)
    assert folder == tmp_path / "mine" / "seed-0"
    start(folder, first)
    assert run_folder(tmp_path, "mine", first, fixed=True) == folder
    assert run_folder(tmp_path, "mine", updated(first, {"device": "cpu"}), fixed=True) == folder
    assert run_folder(tmp_path, "mine", updated(first, {"seed": 4}), fixed=True) == tmp_path / "mine" / "seed-4"
    other = run_folder(tmp_path, "mine", second)
    assert other == tmp_path / "mine-lr-0.5" / "seed-0"
    start(other, updated(second, {"momentum": 0.8}))  # somebody else's: go on to a free name
    assert run_folder(tmp_path, "mine", second) == tmp_path / "mine-2" / "seed-0"
    with pytest.raises(UserError, match=r"holds a run of another recipe \(yours has lr 0.5\); choose another --name"):
        run_folder(tmp_path, "mine", second, fixed=True)


def test_seeds_that_are_trained_anew_leave_none_of_another_recipe_beside_them(tmp_path):
    for seed in (0, 1, 2):
        start(tmp_path / "mine" / f"seed-{seed}", updated(QUICK, {"seed": seed}))
    start(tmp_path / "mine" / "seed-0.before-1", updated(QUICK, {"momentum": 0.8}))  # was set aside
    other, asked = updated(QUICK, {"lr": 0.5}), {"fixed": True}
    message = (
        r"mine also holds seed 1, 2 of another recipe \(yours has lr 0.5\); choose another --name, or train all of "
        r"them anew \(--seeds 0,1,2,3 --fresh\)$"
    )
    with pytest.raises(UserError, match=message):
        run_folder(tmp_path, "mine", other, **asked, anew=(0, 3))
    assert run_folder(tmp_path, "mine", other, **asked, anew=(0, 1, 2)) == tmp_path / "mine" / "seed-0"
    assert run_folder(tmp_path, "mine", QUICK, **asked, anew=(0,)) == tmp_path / "mine" / "seed-0"
    assert run_folder(tmp_path, "new", other, **asked, anew=(0,)) == tmp_path / "new" / "seed-0"
    (tmp_path / "mine" / "seed-2" / "recipe.toml").write_text("lr = ")
    with pytest.raises(UserError, match="mine also holds seed 2 of another recipe, which cannot be read; choose"):
        run_folder(tmp_path, "mine", QUICK, **asked, anew=(0,))


def test_the_name_of_a_preset_is_kept_for_it(tmp_path):
    changed = updated(QUICK, {"lr": 0.5})
    assert run_folder(tmp_path, "digits-lt", changed, start=QUICK).parent.name == "digits-lt-lr-0.5"
    assert run_folder(tmp_path, "digits-lt", QUICK, start=QUICK).parent.name == "digits-lt"
    assert named_recipe(tmp_path, "digits-lt", QUICK, QUICK) is None
    assert named_recipe(tmp_path, "digits-lt", changed, QUICK) is QUICK


def test_many_changes_and_own_data_get_a_number(tmp_path):
    changes = {"lr": 0.123, "momentum": 0.5, "weight_decay": 0.001, "mixup_alpha": 0.3}
    for lr, number in ((0.1, 2), (0.2, 3), (0.1, 2)):
        changed = updated(QUICK, {**changes, "lr": lr})
        folder = run_folder(tmp_path, "digits-lt", changed, start=QUICK)
        assert folder == tmp_path / f"digits-lt-{number}" / "seed-0"
        if not folder.exists():
            start(folder, changed)
    versions = [updated(OWN, {"data_version": f"0000000{number}"}) for number in (1, 2, 3)]
    for recipe, name in zip(versions, ("photos", "photos-2", "photos-3"), strict=True):
        folder = run_folder(tmp_path, "photos", recipe, start=recipe)
        assert folder.parent.name == name
        start(folder, recipe)
    for recipe, name in zip(versions, ("photos", "photos-2", "photos-3"), strict=True):  # each finds its own again
        again = updated(recipe, {"seed": 7})
        assert run_folder(tmp_path, "photos", again, start=again) == tmp_path / name / "seed-7"


def test_long_names_of_before_are_continued(tmp_path):
    start(tmp_path / "photos" / "seed-0", OWN)
    changed = updated(OWN, {"epochs": 7, "lr": 0.123})
    spelt = changed_name("photos", changed, OWN)
    assert re.fullmatch(r"photos-.*epochs-7.*lr-0\.123", spelt)
    start(tmp_path / spelt / "seed-0", changed)
    assert run_folder(tmp_path, "photos", changed, start=changed) == tmp_path / spelt / "seed-0"
    long = updated(QUICK, {"lambdas": (0.123456,) * 60})
    cut = changed_name("digits-lt", long, QUICK)
    assert len(cut) == 150
    start(tmp_path / cut / "seed-0", long)
    assert run_folder(tmp_path, "digits-lt", long, start=QUICK) == tmp_path / cut / "seed-0"


def test_what_differs_as_a_phrase():
    changed = updated(OWN, {"network": "mlp", "width": (16, 24), "data_version": "2", "seed": 4})
    assert differences_text(changed, OWN) == "other files or labels, network mlp, width 16,24"
    assert differences_text(OWN, OWN) == ""


def test_a_method_of_several_experts_in_the_place_of_one():
    one = Recipe(num_experts=1)
    assert differences_text(updated(one, {"method": "sade", "num_experts": 3}), one) == "method sade"


def test_a_pattern_on_paths_makes_no_folders_in_a_name():
    name = changed_name("signs", Recipe(dataset="own", group="(.*)/"), Recipe(dataset="own"))
    assert name == "signs-group-(.*)_"
