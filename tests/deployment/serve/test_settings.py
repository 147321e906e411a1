import pytest

from balpoe.deployment.serve.settings import Limits, read_token
from balpoe.errors import UserError


def test_a_token_comes_from_a_file_or_from_the_environment(tmp_path):
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    assert read_token(str(path), "something-else-of-the-environment") == "0123456789abcdef"
    assert read_token(None, "0123456789abcdef") == "0123456789abcdef"
    assert read_token(None, None) is None


@pytest.mark.parametrize("token", ["", "short", "with a space in the midst", "ümlaute-in-the-token", "a\nb" * 8])
def test_a_token_that_will_not_do_is_refused(token):
    with pytest.raises(UserError, match="token"):
        read_token(None, token)


@pytest.mark.parametrize("name", ["batch", "queue", "images", "megabytes", "seconds", "connections"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_are_numbers_above_zero(name, value):
    with pytest.raises(UserError, match=name):
        Limits(**{name: value})
