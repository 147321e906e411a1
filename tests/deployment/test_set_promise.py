"""What sets promise, in words: a careful word wherever a step is not proven."""

import pytest

from balpoe.deployment.set_promise import Promise, cv_plus_level

EVERY = "have their class in their set"


def test_plain_promises():
    assert (
        str(Promise(0.1, "marginal", "known"))
        == f"At least 90 % of samples {EVERY}, if they come with the given prior."
    )
    counted = str(Promise(0.05, "prevalence", "counted", shortfall=0.0123))
    assert counted == (
        f"At least 95 % of samples {EVERY}, if they come with the given prior and the validation samples were drawn "
        "with the class shares that they have. Whatever those shares were, at least 93.8 %."
    )
    assert str(Promise(0.1, "per-class", "counted")) == (
        "At least 90 % of the samples of each class have it in their set, whatever the class mix."
    )


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"mix": "estimated"}, "Approximate: about 90 %"),
        ({"cross_fitted": True}, "Approximate: about 90 %"),
        ({"grouped": True}, "Approximate: about 90 %"),
        ({"cv_plus": 0.79}, "At least 79 %"),
        ({"cv_plus": 0.79, "mix": "counted"}, "Approximate: at least about 79 %"),
        ({"cv_plus": 0.79, "cross_fitted": True}, "Approximate: at least about 79 %"),
    ],
)
def test_what_is_not_proven_is_approximate(change, level):
    assert str(Promise(0.1, "marginal", **change)).startswith(f"{level} of samples {EVERY}")
    by_class = str(Promise(0.1, "per-class", **change))
    if "mix" not in change:
        assert by_class.startswith(level)
    else:  # a threshold of one class knows no mix
        assert by_class.startswith("At least")
    assert "Whatever those shares" not in str(Promise(0.1, "marginal", **{"mix": "counted", **change}))


@pytest.mark.parametrize(
    ("mix", "level", "clause"),
    [
        ("validation", "At least 90 %", "if they come with the class mix of the validation samples"),
        ("known", "At least 90 %", "if they come with the given prior"),
        ("counted", "At least 90 %", "validation samples were drawn with the class shares that they have"),
        ("estimated", "Approximate: about 90 %", "as far as the estimated prior is right"),
    ],
)
def test_rare_classes_that_share_a_threshold_depend_on_the_mix(mix, level, clause):
    promise = str(Promise(0.1, "per-class", mix, rare=("elm", "yew")))
    _, rare = promise.split("Too rare for a threshold of their own: elm, yew. They share one. ")
    assert rare.startswith(f"{level} of their samples, taken together, {EVERY}, ")
    assert rare.endswith(f"{clause}.")
    nothing = str(Promise(0.1, "per-class", mix, rare=("elm",), alone=False))
    assert nothing.endswith("nothing is promised of them.")


def test_long_lists_of_classes_are_cut():
    promise = str(Promise(0.1, "marginal", "known", always=tuple("abcdefgh")))
    assert promise.endswith("when to leave it out: a, b, c, d, e and 3 more.")


def test_the_level_of_cv_plus():
    """Barber et al. 2021, theorem 4: 1 - 2 alpha less min(2 (1 - 1/K) / (n/K + 1), (1 - K/n) / (K + 1))."""
    assert cv_plus_level(0.1, 100, 10) == pytest.approx(0.8 - min(2 * 0.9 / 11, 0.9 / 11))
    assert cv_plus_level(0.1, 50, 50) == pytest.approx(0.8)  # the jackknife+
    assert cv_plus_level(0.5, 10, 5) == 0
