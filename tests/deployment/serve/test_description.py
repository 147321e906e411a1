"""Requests that follow the description, and such that do not: never a failure, and always an answer as described."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from balpoe.deployment.serve.app import serve_app
from served import Gaussian, held_out, running, service_of

CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]
PATHS = {"/predict": "POST", "/model": "GET", "/drift": "GET", "/healthz": "GET", "/readyz": "GET", "/metrics": "GET"}


@pytest.fixture(scope="module")
def served():
    service = service_of(Gaussian(), held_out=held_out())
    with running(service) as url:
        yield url, schemathesis.openapi.from_dict(serve_app(service).app.openapi())


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["as-described", "otherwise"])
@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_is_sent_is_answered_as_described(served, path, mode, data):
    url, described = served
    if mode is GenerationMode.NEGATIVE and path != "/predict":
        return  # there is nothing to get wrong
    case = data.draw(described[path][PATHS[path]].as_strategy(generation_mode=mode))
    case.call_and_validate(base_url=url, checks=CHECKS)


def test_all_paths_of_the_description_are_tried(served):
    assert {path: next(iter(methods)).upper() for path, methods in served[1].raw_schema["paths"].items()} == PATHS
