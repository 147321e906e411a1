"""Flags that come from the fields of a recipe."""

import pytest

from balpoe import UserError
from balpoe.cli.flags import changed_fields, method_setting
from balpoe.cli.main import command_parser
from balpoe.experiments.recipe import FIELDS
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


def test_old_names_are_taken_and_not_shown(run, monkeypatch):
    monkeypatch.setitem(OLD_NAMES["recipe"], "learning_rate", "lr")
    monkeypatch.setitem(OLD_NAMES["recipe"], "nesterov_momentum", "nesterov")
    assert changes("--learning-rate", "0.3", "--no-nesterov-momentum") == {"lr": 0.3, "nesterov": False}
    code, out, _ = run("train", "--help")
    assert code == 0
    assert "--lr X" in out
    assert "--learning-rate" not in out
    assert "--nesterov-momentum" not in out


def test_settings_of_the_method(monkeypatch):
    monkeypatch.setitem(FIELDS, "method_settings", FIELDS.get("method_settings"))
    given = changes("--set", "max_margin=0.5", "--set", "start=-1", "--set", "deferred=true", "--set", "kind=a=b")
    assert given == {"method_settings": {"max_margin": 0.5, "start": -1, "deferred": True, "kind": "a=b"}}
    with pytest.raises(UserError, match=r"argument --set: wants KEY=VALUE, such as max_margin=0\.5, but is 'margin'"):
        changes("--set", "margin")


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("1e-3", 1e-3), ("false", False), ('"0.5"', "0.5"), ("", ""), ("2024-01-01", "2024-01-01"),
     ("[1, 2]", "[1, 2]"), ("1\nb = 2", "1\nb = 2"), ("half", "half")],
)  # fmt: skip
def test_values_are_read_as_toml(text, value):
    assert method_setting(f"name={text}") == ("name", value)
    assert type(method_setting(f"name={text}")[1]) is type(value)
