"""Flags that come from the fields of a recipe."""

import pytest

from balpoe import UserError
from balpoe.cli.flags import changed_fields
from balpoe.cli.main import command_parser
from balpoe.cli.train import chosen_recipe
from balpoe.experiments.presets import preset
from balpoe.old_names import OLD_NAMES
from commands import QUICK


def changes(*arguments):
    return changed_fields(command_parser().parse_args(["train", "digits-lt", *arguments]))


def test_lambdas_with_a_leading_minus(run, tmp_path):
    for arguments in (["--lambdas", "-1,0,1"], ["--lambdas=-1,0,1"]):
        code, _, _ = run(*QUICK, *arguments, "--name", "minus")
        assert code == 0
    assert "lambdas = [-1.0, 0.0, 1.0]" in (tmp_path / "runs" / "minus" / "seed-0" / "recipe.toml").read_text()


def test_each_kind_of_field():
    given = changes("--width", "8,16,32", "--no-nesterov", "--download", "--lr", "0.3", "--network", "mlp")
    assert given == {"width": (8, 16, 32), "nesterov": False, "download": True, "lr": 0.3, "network": "mlp"}
    assert changes() == {}


def test_groups_are_named_or_denied():
    assert changes("--group", r"(.*)_\d+") == {"group": r"(.*)_\d+"}
    assert changes("--no-group") == {"group": "none"}


def test_old_names_are_taken_and_not_shown(run, monkeypatch):
    monkeypatch.setitem(OLD_NAMES["recipe"], "learning_rate", "lr")
    monkeypatch.setitem(OLD_NAMES["recipe"], "nesterov_momentum", "nesterov")
    assert changes("--learning-rate", "0.3", "--no-nesterov-momentum") == {"lr": 0.3, "nesterov": False}
    code, out, _ = run("train", "--help")
    assert code == 0
    assert "--lr X" in out
    assert "--learning-rate" not in out
    assert "--nesterov-momentum" not in out


def test_frozen_is_the_flag_of_before(run):
    assert chosen("--frozen").tune == "head"
    assert chosen("--no-frozen", start=chosen("--tune", "head")).tune == "full"
    for command in ("train", "compare"):
        _, out, _ = run(command, "--help")
        assert "frozen" not in out
    searched = command_parser().parse_args(["compare", "digits-lt", "--tune", "lr", "--fine-tune", "head"])
    assert searched.searched == "lr"  # which was there first
    assert changed_fields(searched) == {"tune": "head"}


def chosen(*flags, start=None):
    arguments = command_parser().parse_args(["train", "digits-lt", *flags])
    return chosen_recipe(arguments, start or preset("digits-lt"))


def test_settings_of_method_and_optimiser():
    recipe = chosen("--method", "sade", "--set", "backward_tau=1.5", "--optimizer", "adamw", "--set", "betas=0.9,0.95")
    assert recipe.method_settings == {"backward_tau": 1.5}
    assert recipe.optimizer_settings == {"betas": (0.9, 0.95)}
    assert chosen("--backward-tau", "1.5").method_settings == {"backward_tau": 1.5}  # the flag of before
    assert chosen("--set", "backward_tau=3", start=recipe).optimizer_settings == recipe.optimizer_settings
    assert chosen("--method", "balpoe", start=recipe).method_settings == {}  # another method's are not its own


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--set", "margin"), r"argument --set: wants KEY=VALUE, such as betas=0\.9,0\.95, but is 'margin'"),
        (("--set", "margin=1"), "'margin' is no setting, for neither method nor optimizer have any; leave it out"),
        (("--method", "sade", "--set", "margin=1"), "unknown setting 'margin'; known are backward_tau"),
        (("--optimizer", "muon", "--set", "kernel_decai=1"), "unknown setting 'kernel_decai'; did you mean 'kernel_d"),
        (("--set", "kernel_decay=1"), "kernel_decay is a setting of --optimizer muon; add that, or leave it out"),
        (("--method", "sade", "--set", "backward_tau=high"), "backward_tau must be a number, but is 'high'"),
        (("--method", "sade", "--set", "backward_tau=-1"), "backward_tau must be above 0, but is -1"),
        (("--method", "sad", "--set", "backward_tau=1"), "unknown method 'sad'; did you mean 'sade'"),
        (("--optimizer", "adamw", "--set", "betas=0.9"), "betas wants 2 numbers, but is 0.9"),
    ],
)
def test_wrong_settings(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        chosen(*flags)
