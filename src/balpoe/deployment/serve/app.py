"""The server's paths: what is asked at each of them, and by whom it is answered."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from balpoe.deployment.serve import page
from balpoe.deployment.serve.asked import Ask, Thresholds
from balpoe.deployment.serve.description import ERRORS, PREDICT_BODY, About, DriftShown, Predicted, State
from balpoe.deployment.serve.drift import DriftReport
from balpoe.deployment.serve.limits import FAILED, BodyRoom, ClientLeftError, Gate, error_body, within_time
from balpoe.deployment.serve.refusals import RequestError
from balpoe.deployment.serve.service import Service

__all__ = ["serve_app"]

MOST_SHOWN = 20  # classes of /drift
CLIENT_LEFT = 499
SENTENCES = {
    404: "there is nothing at this path; see /openapi.json",
    405: "this path does not take this method; see /openapi.json",
}


def serve_app(service: Service, token: str | None = None) -> Gate:
    """Return the app that answers for a service, which it starts and closes.

    Args:
        service: Loaded model with all that answers.
        token: What requests must bear; None: nothing.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    app = FastAPI(
        title="balpoe", version="1", lifespan=lifespan, docs_url=None, redoc_url=None,
        description="A long-tailed classifier that takes the label prior as an input.",
    )  # fmt: skip
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _refused)
    gate = Gate(app, service.metrics, token)
    _add_predict(app, service)
    _add_states(app, service, gate)
    _add_views(app, service)
    _describe(app, token)
    return gate


async def _refused(_: Request, error: Exception) -> Response:
    """The response to a mistake, or to a failure, of which nothing is told."""
    if isinstance(error, RequestError):
        status, sentence, headers = error.status, error.sentence, error.headers
    elif isinstance(error, HTTPException):
        status, headers = error.status_code, dict(error.headers or {})
        sentence = SENTENCES.get(status, "the request will not do; see /openapi.json")
    else:
        status, sentence, headers = 500, FAILED, {}
    return Response(error_body(sentence), status, headers, "application/json")


def _add_predict(app: FastAPI, service: Service) -> None:
    limits, room = service.limits, BodyRoom(service.limits)

    @app.post(
        "/predict", response_model=Predicted, responses=ERRORS["predict"], openapi_extra=PREDICT_BODY,
        summary="Labels, probabilities and decisions of images or rows of features",
    )  # fmt: skip
    async def predict(request: Request) -> Response:
        size = 0
        try:
            body = await room.read(request.receive, request.headers.get("content-length"))
            size = len(body)
            kind = request.headers.get("content-type", "")
            answer = await within_time(service.predict(kind, body), request.receive, limits.seconds)
        except ClientLeftError:
            service.metrics.client_left()
            return Response(status_code=CLIENT_LEFT)
        finally:
            room.give_back(size)
        return Response(answer, media_type="application/json")


def _add_states(app: FastAPI, service: Service, gate: Gate) -> None:
    @app.get("/healthz", response_model=State, summary="Whether the server lives")
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz", response_model=State, responses=ERRORS["state"], summary="Whether it takes requests")
    async def readyz() -> dict[str, str]:
        if not service.ready or gate.leaving:
            raise RequestError(503, "the server or its network starts or stops; ask again later", {"Retry-After": "2"})
        return {"status": "ready"}


def _add_views(app: FastAPI, service: Service) -> None:
    @app.get("/model", response_model=About, responses=ERRORS["guarded"], summary="Classes, priors and limits")
    async def model() -> dict[str, Any]:
        return service.about()

    @app.get("/drift", response_model=DriftShown, responses=ERRORS["guarded"], summary="Class mix of late")
    async def drift() -> dict[str, Any]:
        return _drift_shown(await service.drift_report(), service)

    @app.get(
        "/metrics", response_class=Response, summary="Numbers for Prometheus",
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **ERRORS["guarded"]},
    )  # fmt: skip
    async def metrics() -> Response:
        return Response(await service.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    for path, name in (("/", "page.html"), ("/page.js", "page.js"), ("/page.css", "page.css")):
        app.add_api_route(path, page.endpoint(name), include_in_schema=False)


def _drift_shown(report: DriftReport | None, service: Service) -> dict[str, Any]:
    if report is None:
        seen = min(service.drift.seen, service.drift.window)
        return {
            "samples": seen, "sentence": service.drift.silence, "differs": None, "explained": None, "p_value": None,
            "distance": None, "classes": [],
        }  # fmt: skip
    largest = (report.estimate - report.assumed).abs().argsort(descending=True)[:MOST_SHOWN].tolist()
    names = service.model.class_names
    columns = zip(report.assumed.tolist(), report.estimate.tolist(), *report.interval.tolist(), strict=True)
    shares = list(columns)
    fields = ("assumed", "estimated", "low", "high")
    return {
        "samples": report.samples, "sentence": report.sentence, "differs": report.differs,
        "explained": report.explained, "p_value": report.p_value, "distance": report.distance,
        "classes": [{"label": names[each], **dict(zip(fields, shares[each], strict=True))} for each in largest],
    }  # fmt: skip


def _describe(app: FastAPI, token: str | None) -> None:
    """Put into the description what FastAPI cannot know: the body of /predict, and the token."""
    made = app.openapi()
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for model in (Ask, Thresholds):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
        schemas[model.__name__] = schema
    if token is not None:
        made["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        for path in ("/predict", "/model", "/drift", "/metrics"):
            for operation in made["paths"][path].values():
                operation["security"] = [{"bearer": []}]
    app.openapi_schema = made
