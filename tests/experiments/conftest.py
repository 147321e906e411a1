from dataclasses import replace

import pytest

from balpoe.baselines.catalogue import METHODS, load_method


@pytest.fixture
def scores_without_a_prior(monkeypatch):
    """A method whose scores are no posterior of any prior: none of the catalogue's says so of itself."""
    parts = replace(load_method("ldam-drw"), source_prior=lambda inputs, **settings: None)
    monkeypatch.setitem(METHODS, "ldam-drw", replace(METHODS["ldam-drw"], parts=parts))
