"""From expert logits to the rows of a response."""

from typing import Any

from torch import Tensor

from balpoe.deployment.answer_rows import answer_rows
from balpoe.deployment.deciders import Decider, unlabelled
from balpoe.deployment.serve.asked import Ask
from balpoe.deployment.serve.priors import ChosenPrior
from balpoe.deployment.serve.refusals import RequestError
from balpoe.errors import UserError
from balpoe.method.ensemble import shift_prior

__all__ = ["response_rows"]


def response_rows(
    model: Any,
    asked: Ask,
    prior: ChosenPrior,
    decider: Decider | None,
    expert_logits: Tensor,
    calibrated: Tensor,
    logits: Tensor,
) -> list[dict[str, Any]]:
    """Return what is said of each sample, ready for JSON.

    Args:
        model: Model.
        asked: What the request asks for.
        prior: Deployment prior of the answers.
        decider: What decides, where something is to be decided.
        expert_logits: Logits as the network gave them, (samples, experts, classes).
        calibrated: The same, calibrated.
        logits: Those of the ensemble, as the model is made for them, (samples, classes).
    """
    names = model.class_names
    if prior.target is not None:
        logits = shift_prior(logits, prior.target, model.source_prior)
    rows = answer_rows(logits, names, asked.top_k)
    for row in rows:
        row["top"] = [{"label": name, "probability": value} for name, value in row["top"]]
    if asked.experts:
        values, labels = calibrated.softmax(dim=2).max(dim=2)
        for row, answers, shares in zip(rows, labels.tolist(), values.tolist(), strict=True):
            opinions = zip(answers, shares, strict=True)
            row["experts"] = [{"label": names[label], "probability": share} for label, share in opinions]
    if decider is not None:
        try:
            decided = decider(unlabelled(model, expert_logits)).rows()
        except UserError as error:
            raise RequestError(422, str(error)) from None
        for row, further in zip(rows, decided, strict=True):
            row.update(further)
    return rows
