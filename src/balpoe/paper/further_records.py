"""What a record of `transfer` holds beside that of every run: what was trained, and what adjusting after it does.

Cross-entropy that is adjusted to the uniform prior after training is the honest rival of every method that is made for
it; a temperature, fitted on held-out training images, separates what a method ranks from how sure it is.
"""

from balpoe.data.registry import validation_data
from balpoe.evaluation.evaluate import evaluate
from balpoe.evaluation.predictions import Predictions
from balpoe.evaluation.rival import adjusted_rival
from balpoe.experiments.model_file import load
from balpoe.experiments.run_folder import Run
from balpoe.training.checkpoints import load_checkpoint
from balpoe.training.distributed import chosen_device

__all__ = ["adjusted_scores", "trained_parameters", "validation_predictions"]

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
    data = validation_data(recipe.dataset, data_root or None, imbalance_ratio=recipe.imbalance_ratio)
    model.network.to(chosen_device(recipe.device))
    if data.preprocessing.size != model.preprocessing.size:
        data = data.resized(model.preprocessing)
    predictions: Predictions = model.predictions(data)
    predictions.save(run.folder / "validation")
    return predictions
