"""What is begun early for a recipe, and what is not."""

import pytest

from balpoe.experiments import early_start
from balpoe.experiments.early_start import start_early
from balpoe.experiments.recipe import Recipe


@pytest.fixture
def begun(monkeypatch):
    found = []
    monkeypatch.setattr(early_start, "wake_gpu", lambda *settings: found.append(("gpu", *settings)))
    monkeypatch.setattr(early_start, "read_ahead", lambda *settings: found.append(("files", *settings)))
    return found


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({"data_root": "there", "device": "cuda"}, [("gpu", "cuda", 1), ("files", "cifar100-lt", "there")]),
        ({"download": True}, [("gpu", "auto", 1)]),
        ({"dataset": "digits-lt"}, [("gpu", "auto", 1)]),
        ({"dataset": "imagenet-lt"}, []),
        ({"dataset": "own"}, []),
    ],
)
def test_what_a_recipe_will_wait_for(begun, recipe, expected):
    start_early(Recipe(**recipe))
    assert begun == expected
