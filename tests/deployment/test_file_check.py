"""A file that says something else than its model is refused."""

from pathlib import Path

import pytest

from balpoe import UserError
from balpoe.deployment.file_check import checked_file
from exported_models import made_features


def outputs_of(model, change=lambda logits: logits, rows=None):
    """A file that goes the model's way, up to a change of its logits; of so many samples alone, if they are given."""

    def outputs(samples, log_prior=None):
        prior = model.source_prior if log_prior is None else log_prior.exp()
        expert_logits = model.expert_logits(samples)
        logits = change(model.predict(samples, prior).log())[:rows]
        return logits, logits.softmax(dim=1), expert_logits[:rows]

    return outputs


def checked(model, outputs, precision="fp32", samples=30):
    return checked_file(model, outputs, made_features(samples), precision, Path("model.onnx"))


def test_differences_are_told(feature_model):
    same = checked(feature_model, outputs_of(feature_model))
    assert (same.samples, same.agreement) == (30, 1)
    assert same.difference < 1e-6
    nearly = checked(feature_model, outputs_of(feature_model, lambda logits: logits * 1.0001))
    assert 1e-6 < nearly.difference < 1e-4


@pytest.mark.parametrize(
    "change", [lambda logits: logits * 1.01, lambda logits: logits.flip(1), lambda logits: logits * float("nan")]
)
def test_another_answer_is_refused_in_full_precision_alone(feature_model, change):
    outputs = outputs_of(feature_model, change)
    with pytest.raises(UserError, match=r"probabilities differ by up to .*, and 0.0001 is allowed; it was not written"):
        checked(feature_model, outputs)
    assert checked(feature_model, outputs, "int8").difference > 1e-4


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_a_frozen_batch_is_noticed(feature_model, rows):
    with pytest.raises(UserError, match="froze the batch"):
        checked(feature_model, outputs_of(feature_model, rows=rows), "int8")


def test_few_samples_are_repeated_for_every_batch(feature_model):
    seen = []

    def outputs(samples, log_prior=None):
        seen.append(len(samples))
        return outputs_of(feature_model)(samples, log_prior)

    assert checked(feature_model, outputs, samples=1).samples == 1
    assert {1, 2, 7} <= set(seen)
