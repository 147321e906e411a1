"""Halves of held-out predictions."""

from dataclasses import replace

import pytest
import torch

from balpoe import ConformalSets, split_validation
from balpoe.errors import UserError
from balpoe.experiments.calibrate import Choice, calibrated_by
from made_predictions import make


def test_halves_of_each_class_and_a_calibration_of_the_first():
    held_out = calibrated_by(make(samples=600, classes=6))
    tuning, validation = split_validation(held_out, seed=1)
    for half in (tuning, validation):
        assert torch.bincount(half.targets).tolist() == [50] * 6
    rows = torch.cat([tuning.expert_logits, validation.expert_logits]).flatten(1)
    assert torch.equal(torch.unique(rows, dim=0), torch.unique(held_out.expert_logits.flatten(1), dim=0))
    assert validation.calibration == tuning.calibration == calibrated_by(tuning.uncalibrated()).calibration
    assert validation.calibration != held_out.calibration
    assert not torch.equal(split_validation(held_out, seed=2)[1].targets, validation.targets)


def test_labels_of_the_second_half_change_nothing_that_was_fitted():
    held_out = make(samples=600, classes=6)
    _, validation = split_validation(held_out)
    chosen = (held_out.expert_logits[:, None] == validation.expert_logits).flatten(2).all(dim=2).any(dim=1)
    shuffled = held_out.expert_logits.clone()
    shuffled[chosen] = shuffled[chosen] * 3
    _, again = split_validation(replace(held_out, expert_logits=shuffled))
    assert again.calibration == validation.calibration


def test_groups_stay_whole_and_are_said():
    held_out = replace(make(samples=600, classes=6), groups=torch.arange(600) // 6 // 10)
    tuning, validation = split_validation(held_out)
    assert not set(tuning.groups.tolist()) & set(validation.groups.tolist())
    assert "Validation samples come in groups" in ConformalSets.fit(validation).guarantee


def test_logits_that_are_no_posterior_have_no_calibration():
    held_out = replace(make(samples=100, classes=4), lambdas=None, source_prior=None)
    assert split_validation(held_out)[1].calibration is None


def test_one_sample_is_no_two_halves():
    with pytest.raises(UserError, match="cannot be split into two halves"):
        split_validation(make(samples=600, classes=6).subset(torch.tensor([0])))


@pytest.mark.slow
@pytest.mark.parametrize("cross_fitted", [False, True])
def test_sets_of_a_run(tmp_path, cross_fitted):
    held_out = calibrated_by(make(samples=600, classes=6))
    Choice(0.0, held_out, cross_fitted=cross_fitted).save(tmp_path)
    sets = ConformalSets.of_run(tmp_path, method="per-class", seed=3)
    _, validation = split_validation(held_out, seed=3)
    expected = ConformalSets.fit(validation, method="per-class", cross_fitted=cross_fitted, seed=3)
    torch.testing.assert_close(sets.thresholds, expected.thresholds)
    assert sets.guarantee == expected.guarantee
    assert ("CV+" in sets.guarantee) == cross_fitted


def test_a_run_without_held_out_samples(tmp_path):
    with pytest.raises(UserError, match="has no held-out predictions; train the run with --calibrate"):
        ConformalSets.of_run(tmp_path)
