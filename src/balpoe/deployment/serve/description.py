"""What the OpenAPI description says of requests and responses, with examples."""

from typing import Any

from pydantic import BaseModel, Field

from balpoe.deployment.serve.asked import Ask

__all__ = ["ERRORS", "PREDICT_BODY", "About", "DriftShown", "Error", "Predicted", "State"]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"  # one red pixel


class Error(BaseModel):
    """Why a request was not answered."""

    error: str = Field(description="One sentence.", examples=["the body is not valid JSON"])


class Opinion(BaseModel):
    """A label and its probability."""

    label: str
    probability: float


class Answer(BaseModel):
    """What is said of one sample."""

    label: str
    probability: float
    top: list[Opinion] = Field(description="The likeliest labels, as many as `top_k` asks for.")
    experts: list[Opinion] | None = Field(None, description="Each expert's own answer, as it was trained.")
    decision: str | None = Field(None, description="The answer that costs least, or that serves the metric.")
    set: list[str] | None = Field(None, description="Classes among which the right one is, as often as asked for.")
    unknown: bool | None = Field(None, description="Whether the sample looks like none of the classes.")
    level: str | None = Field(None, description="Level of the deepest label that is sure.")
    level_label: str | None = Field(None, description="That label.")
    yes: list[str] | None = Field(None, description="Classes whose probability reaches their own threshold.")


class Predicted(BaseModel):
    """Answers to all samples of a request, in their order."""

    answers: list[Answer]
    prior: str = Field(description="Name of the deployment prior that the answers are for.")
    notes: list[str] = Field(description="What the decisions promise, and what was approximate.")


class State(BaseModel):
    """Whether the server lives, or takes requests."""

    status: str


class AboutPrior(BaseModel):
    """The deployment prior of requests that name none."""

    assumed: str
    shares: list[float] | None = Field(description="Share of each class; null where it is not known.")


class AboutTable(BaseModel):
    """The table of priors."""

    keys: list[str]
    places: list[list[str]]


class About(BaseModel):
    """What a client must know of the model."""

    classes: list[str]
    class_counts: list[float] = Field(description="Number of training samples of each class.")
    takes: str = Field(description="`images` or `features`.")
    size: list[int] = Field(description="Channels, height and width, or number of features.")
    experts: int
    prior: AboutPrior
    adjusts_to_priors: bool
    table: AboutTable | None
    decisions: list[str] = Field(description="Fields that ask for decisions, of those that the server offers.")
    limits: dict[str, float]


class ClassDrift(BaseModel):
    """The share of one class."""

    label: str
    assumed: float
    estimated: float
    low: float
    high: float


class DriftShown(BaseModel):
    """The class mix of the latest samples against the assumed one."""

    samples: int
    sentence: str
    differs: bool | None = Field(description="Whether the class mix is another than the assumed one, at 5 %.")
    explained: bool | None = Field(description="Whether a label shift explains the samples; null: not checked.")
    p_value: float | None
    distance: float | None = Field(description="Total variation between the estimated and the assumed prior.")
    classes: list[ClassDrift] = Field(description="Classes with the largest differences, the largest first.")


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    words = {
        400: "The body is garbled.", 401: "The token is missing or wrong.", 405: "The method is not for this path.",
        408: "The body came too slowly.", 413: "The request is larger than a limit.",
        415: "The body is neither JSON nor a form.", 422: "A field, an image or a row will not do.",
        503: "The server is busy or about to stop; `Retry-After` says when to ask again.",
    }  # fmt: skip
    return {status: {"model": Error, "description": words[status]} for status in statuses}


ERRORS = {
    "predict": _errors(400, 401, 408, 413, 415, 422, 503),
    "guarded": _errors(401),
    "state": _errors(503),
}

_JSON_EXAMPLES = {
    "image": {"summary": "An image in base64, five labels", "value": {"images": [PIXEL], "top_k": 5, "experts": True}},
    "features": {"summary": "Rows of features", "value": {"features": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]}},
    "prior": {"summary": "A deployment prior by name", "value": {"images": [PIXEL], "prior": "backward-10"}},
    "decisions": {
        "summary": "A set that has the right class 9 times of 10, and whether the image is of none",
        "value": {"images": [PIXEL], "sets": 0.1, "unknown": "probability"},
    },
}

_schema = Ask.model_json_schema(ref_template="#/components/schemas/{model}")
_schema.pop("$defs", None)
_FORM_FIELDS = {
    name: {"type": "string", "description": f"{field.get('description', '')} As JSON, or text.".strip()}
    for name, field in _schema["properties"].items()
    if name not in ("images", "features")
}

PREDICT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Ask"}, "examples": _JSON_EXAMPLES},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "images": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "Image files.",
                        },
                        **_FORM_FIELDS,
                    },
                    "required": ["images"],
                },
            },
        },
    }
}
"""What /predict takes, as OpenAPI says it."""
