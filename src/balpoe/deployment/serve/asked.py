"""What a request may ask for: its fields, their limits, and one sentence where they are not kept."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from balpoe.deployment.serve.refusals import RequestError
from balpoe.deployment.set_promise import LEAST_ALPHA

__all__ = ["DECISIONS", "Ask", "checked_ask"]

Number = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Alpha = Annotated[float, Field(ge=LEAST_ALPHA, lt=1)]
Name = Annotated[str, Field(max_length=1000)]
Score = Literal["probability", "energy", "max-logit", "disagreement"]
LONGEST = 200  # characters of a sentence's part that the client sent


class Thresholds(BaseModel):
    """Aim of the threshold of each class: one of the three; none of them: the best F1."""

    model_config = ConfigDict(extra="forbid", strict=True)
    precision: Share | None = None
    recall: Share | None = None
    costs: Annotated[list[Weight], Field(min_length=2, max_length=2)] | None = Field(
        None, description="Cost of a false alarm, and of a miss."
    )


class Ask(BaseModel):
    """Samples, the deployment prior, and what is wanted of each sample."""

    model_config = ConfigDict(extra="forbid", strict=True)

    images: list[str] | None = Field(None, description="Images, each a whole file in base64.")
    features: list[list[Number]] | None = Field(None, description="Rows of features, for a model of features.")
    prior: Name | dict[Name, Weight] | list[Weight] | list[Name] | None = Field(
        None,
        description="Deployment prior: `uniform`, `train`, `forward-R` or `backward-R`; a weight for each class, by "
        "name or in their order; or a place of the server's table of priors, by name or by its keys.",
    )
    top_k: int = Field(1, ge=1, description="So many labels, the likeliest first.")
    experts: bool = Field(False, description="Each expert's own answer, too.")
    costs: dict[Name, Weight] | dict[Name, dict[Name, Number]] | None = Field(
        None, description="Cost of missing each class, or of each answer to a sample of each class."
    )
    metric: Name | None = Field(None, description="Metric that the decisions serve, instead of costs.")
    abstain_cost: Number | None = Field(None, description="Cost of no answer.")
    abstain_error: Share | None = Field(None, description="Largest share of wrong answers among those given.")
    sets: Alpha | None = Field(None, description="Share of sets of classes that may miss the right one.")
    set_method: Literal["marginal", "per-class", "pooled", "prevalence"] | None = None
    unknown: Score | Annotated[list[Score], Field(min_length=1)] | None = Field(
        None, description="Score of samples that are of no known class."
    )
    unknown_keep: Share | None = Field(None, description="Share of known samples that is not called unknown.")
    level: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Probability that the deepest label of the server's tree must reach."
    )
    thresholds: Thresholds | None = Field(None, description="Yes or no for each class by itself.")


DECISIONS = (
    "costs", "metric", "abstain_cost", "abstain_error", "sets", "set_method", "unknown", "unknown_keep", "level",
    "thresholds",
)  # fmt: skip
"""Fields that ask for a decision."""

WANTED = {
    "images": "a list of images in base64",
    "features": "a list of rows of finite numbers",
    "prior": "a name, a weight from 0 for each class, or the keys of a place",
    "costs": "a cost for each class, or for each answer to each class",
    "unknown": "one or several of probability, energy, max-logit and disagreement",
}


def checked_ask(fields: Any) -> Ask:
    """Return what a request asks for, or refuse it with one sentence.

    >>> checked_ask({"features": [[1.0, 2.0]], "top_k": 3}).top_k
    3
    >>> checked_ask({"features": [[1.0]], "top_k": 0})
    Traceback (most recent call last):
        ...
    balpoe.deployment.serve.refusals.RequestError: top_k: input should be greater than or equal to 1
    """
    if not isinstance(fields, dict):
        raise RequestError(422, "the body must be a JSON object with images or features; see /openapi.json")
    try:
        asked = Ask.model_validate(fields)
    except ValidationError as error:
        raise RequestError(422, _sentence(error)) from None
    _check_together(asked)
    return asked


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    name = str(first["loc"][0])[:LONGEST] if first["loc"] else "the body"
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        return f"there is no field {name!r}; see /openapi.json for those that there are"
    if name in WANTED:
        return f"{name} must be {WANTED[name]}"
    return f"{name}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def _check_together(asked: Ask) -> None:
    """Refuse what contradicts itself, or serves something that is not there."""
    for name, owner in (("set_method", "sets"), ("unknown_keep", "unknown")):
        if getattr(asked, name) is not None and getattr(asked, owner) is None:
            raise RequestError(422, f"{name} says how {owner} are made; give {owner}, too")
    rules = [name for name in ("costs", "metric", "abstain_error") if getattr(asked, name) is not None]
    if len(rules) > 1:
        raise RequestError(422, f"{' and '.join(rules)} are different answers to one question; give one of them")
    if asked.abstain_cost is not None and rules not in ([], ["costs"]):
        raise RequestError(422, f"abstain_cost is compared with costs, which {rules[0]} has not; leave one of them out")
    if asked.thresholds is not None and len(asked.thresholds.model_dump(exclude_none=True)) > 1:
        raise RequestError(422, "thresholds have one aim: give precision, recall or costs, or {} for the best F1")
