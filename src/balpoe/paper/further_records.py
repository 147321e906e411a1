"""What some records hold beside that of every run: what was trained, and what can be done after it.

Cross-entropy that is adjusted to the uniform prior after training is the honest rival of every method that is made for
it; a temperature, fitted on held-out training images, separates what a method ranks from how sure it is. Statistics of
batch normalisation of images that are not mixed make a network of mixed ones surer, without further labels.
"""

from dataclasses import replace
from typing import Any

import torch

from balpoe.data.registry import validation_data
from balpoe.evaluation.evaluate import evaluate
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.prior_estimate import posterior_source
from balpoe.evaluation.rival import adjusted_rival
from balpoe.experiments.build import assemble
from balpoe.experiments.model_file import load
from balpoe.experiments.recipe import updated
from balpoe.experiments.run_folder import Run
from balpoe.method.calibration import fit_scale, to_labels
from balpoe.training.checkpoints import load_checkpoint
from balpoe.training.concurrent import Work
from balpoe.training.distributed import chosen_device
from balpoe.training.fit import fit_and_predict_by_step
from balpoe.training.interrupts import Interrupt

__all__ = [
    "adjusted_scores",
    "calibrated_scores",
    "searched_scores",
    "trained_parameters",
    "unmixed_predictions",
    "validation_predictions",
]

VALIDATION = 2000
"""Largest number of validation images, but for 20 of each class, where classes are many."""
SCORES = ("accuracy", "balanced_accuracy", "many", "medium", "few", "ece", "nll", "brier")


def trained_parameters(run: Run) -> int:
    """Return how many weights the training of a run has changed, by its checkpoint; frozen ones are not in there."""
    state = load_checkpoint(run.folder / "checkpoint.pt")["network"]
    return sum(tensor.numel() for tensor in state.values())


def adjusted_scores(predictions: Predictions) -> dict[str, float | None] | None:
    """Return the scores once the logits are adjusted to the uniform prior; None if they are made for it.

    >>> import torch
    >>> plain = Predictions(torch.tensor([[[0.5, 0.0]]]), torch.tensor([1]), [90, 10], [1])
    >>> adjusted_scores(plain)["accuracy"]
    1.0
    """
    rival = adjusted_rival(predictions)
    if rival is None:
        return None
    found = evaluate(rival, num_resamples=0).to_dict()
    return {name: found[name] for name in SCORES}


def validation_predictions(run: Run, data_root: str) -> Predictions:
    """Return what a run's model says about training images that it did not see, and keep it in the run's folder."""
    recipe, model = run.recipe(), load(run.folder)
    per_class = max(20, VALIDATION // len(model.class_names))
    data = validation_data(
        recipe.dataset, data_root or None, imbalance_ratio=recipe.imbalance_ratio, per_class=per_class
    )
    model.network.to(chosen_device(recipe.device))
    if data.preprocessing.size != model.preprocessing.size:
        data = data.resized(model.preprocessing)
    predictions: Predictions = model.predictions(data)
    predictions.save(run.folder / "validation")
    return predictions


def searched_scores(predictions: Predictions) -> dict[str, Any]:
    """Return the scores of held-out images, and those at the temperature under which they are most likely.

    >>> targets = torch.tensor([0, 1] * 20)
    >>> modest = Predictions(torch.eye(2)[targets][:, None], targets, [9, 9], [0])  # always right, at 73 %
    >>> found = searched_scores(modest)
    >>> found["temperature"] < 1, found["at_temperature"]["nll"] < found["nll"]
    (True, True)
    """
    temperature, divided = _at_temperature(predictions, predictions)
    found, there = (evaluate(each, num_resamples=0).to_dict() for each in (predictions, divided))
    scores, scores_there = ({name: each[name] for name in SCORES} for each in (found, there))
    return {**scores, "temperature": temperature, "at_temperature": scores_there}


def calibrated_scores(predictions: Predictions, validation: Predictions) -> dict[str, float | None]:
    """Return the calibration on the test set at a temperature that validation images give."""
    temperature, divided = _at_temperature(predictions, validation)
    scores = evaluate(divided, num_resamples=0)
    return {"temperature": temperature, "ece": scores.ece, "mce": scores.mce, "nll": scores.nll}


def _at_temperature(predictions: Predictions, images: Predictions) -> tuple[float, Predictions]:
    """The temperature under which images are most likely, and predictions whose logits are divided by it."""
    offsets = to_labels(images.targets, posterior_source(images))
    scale = fit_scale(images.logits, images.targets, torch.ones(len(images)), offsets)
    return 1 / scale, replace(predictions, expert_logits=scale * predictions.expert_logits)


def unmixed_predictions(run: Run, data_root: str, interrupt: Interrupt) -> "Work[Predictions]":
    """Predict a run's test set once more, with statistics of batch normalisation of batches that are not mixed.

    As a generator, for `concurrent`: it is a training of one epoch with a rate of 0, which leaves the weights, and so
    does their mean; what is new are the statistics after it.

    Args:
        run: Finished run.
        data_root: Folder of the data.
        interrupt: What ends it before it is done.
    """
    made = []
    yield lambda: made.append(assemble(updated(run.recipe(), {"data_root": data_root}), progress=False))
    (parts,) = made
    parts.network.load_state_dict(load(run.folder).network.state_dict())
    settings = replace(
        parts.settings, epochs=1, schedule=lambda epoch, epochs: 0.0, weight_average_fraction=1.0,
        weight_average_decay=0.0, unmixed_statistics=True, step="eager", progress=False,
    )  # fmt: skip
    samples = parts.train, parts.test
    _, logits = yield from fit_and_predict_by_step(parts.trained, parts.loss, *samples, settings, interrupt)
    assert logits is not None
    predictions: Predictions = run.predictions()
    return replace(predictions, expert_logits=logits.cpu())
