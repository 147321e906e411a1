import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balpoe.deployment.serve.bodies import parsed_body
from balpoe.deployment.serve.reading import ASIDE_BYTES
from balpoe.deployment.serve.refusals import RequestError
from served import FEATURES, client_of, feature_model, image_bytes, image_model, service_of

FORM = "multipart/form-data; boundary=mark"


def form(*parts, end=b"--mark--\r\n"):
    return b"".join(b"--mark\r\n" + head + b"\r\n\r\n" + content + b"\r\n" for head, content in parts) + end


def field(name, content):
    return f'Content-Disposition: form-data; name="{name}"'.encode(), content


def file(content, name="images"):
    head = f'Content-Disposition: form-data; name="{name}"; filename="x.png"\r\nContent-Type: image/png'.encode()
    return head, content


def test_a_form_has_files_and_fields_of_text_or_json():
    body = form(field("prior", b"uniform"), file(b"one\r\n--"), field("top_k", b"2"), file(b"two", "image"))
    found = parsed_body(FORM, body, 8)
    assert found.images == [b"one\r\n--", b"two"]
    assert (found.asked.prior, found.asked.top_k) == ("uniform", 2)
    weights = form(file(b"x"), field("prior", b'{"a": 1.5, "b": 2}'))
    assert parsed_body(FORM, weights, 8).asked.prior == {"a": 1.5, "b": 2}


@given(st.binary(max_size=300))
def test_any_bytes_are_carried_by_a_form(content):
    if b"\r\n--mark" not in content:
        assert parsed_body(FORM, form(file(content)), 8).images == [content]


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("", b"{}", 415),
        ("text/plain", b"{}", 415),
        ("application/x-www-form-urlencoded", b"prior=uniform", 415),
        ("application/json", b"", 400),
        ("application/json", b"{", 400),
        ("application/json", b"\xff\xfe", 400),
        ("application/json", b"[" * 100_000, 400),
        ("application/json", b'{"top_k": ' + b"9" * 10_000 + b"}", 400),
        ("application/json", b'{"features": [[NaN]]}', 400),
        ("application/json", b'{"features": [[Infinity]]}', 400),
        ("application/json", b'{"features": [[1e999]]}', 422),
        ("application/json", b'"images"', 422),
        ("application/json", b"null", 422),
        ("application/json", b'{"images": ["\xc3\xa9"]}', 422),
        ("application/json", b'{"images": [1]}', 422),
        ("multipart/form-data", form(file(b"x")), 400),
        (FORM, b"", 400),
        (FORM, b"garbage", 400),
        (FORM, form(file(b"x"), end=b""), 400),
        (FORM, form((b"X: y", b"x")), 400),
        (FORM, form((b"x" * 5000, b"x")), 400),
        (FORM, b"--mark\r\nno end of head\r\n--mark--", 400),
        (FORM, form(file(b"x", "other")), 422),
        (FORM, form(field("top_k", b"\xff")), 422),
        (FORM, form(file(b"x"), field("prior", b"[NaN, 1]")), 422),
        (FORM, form(field("top_k", b"1"), field("top_k", b"2")), 422),
        (FORM, form(*[field(f"f{number}", b"1") for number in range(5000)]), 413),
        (FORM, form(*[file(b"x")] * 9), 413),
        ("application/json", json.dumps({"images": ["QUJD"] * 9}).encode(), 413),
        ("application/json", json.dumps({"features": [[1.0]] * 9}).encode(), 413),
        ("application/json", json.dumps({f"f{number}": 1 for number in range(5000)}).encode(), 413),
        ("application/json", b'{"prior": [' + b"0," * 20_000 + b"0]}", 413),
        (FORM, form(file(b"x"), field("prior", b"[" + b"0," * 20_000 + b"0]")), 413),
        (FORM, form(file(b"x"), field("images", b'["QUJD"]'), field("prior", b"NaN")), 200),
    ],
)
def test_garbled_bodies_are_refused_with_one_sentence(kind, body, status):
    if status == 200:  # a field of that name is a file, too, and what is no JSON is a text
        assert parsed_body(kind, body, 8).asked.prior == "NaN"
        return
    with pytest.raises(RequestError) as refused:
        parsed_body(kind, body, 8)
    assert refused.value.status == status
    assert len(refused.value.sentence) < 400
    assert "\n" not in refused.value.sentence


@pytest.mark.parametrize(
    ("model", "body", "status"),
    [
        (feature_model, {"features": [[0.5] * FEATURES] * 3}, 200),
        (feature_model, {"features": [[0.5] * FEATURES] * 65}, 413),
        (feature_model, {"features": [[0.5] * FEATURES], "top_k": "x"}, 422),
        (feature_model, {"images": [base64.b64encode(image_bytes()).decode()]}, 422),
        (image_model, {"images": [base64.b64encode(image_bytes()).decode()] * 2}, 200),
        (image_model, {"images": ["QUJD"]}, 422),
        (image_model, {"images": ["?"]}, 422),
        (image_model, {}, 422),
        (image_model, [], 422),
    ],
)
def test_a_large_body_is_read_aside_with_the_same_answer_or_the_same_refusal(model, body, status):
    service, aside = service_of(model()), []
    service.reader.seen = lambda *batch: aside.append(batch)
    with client_of(service) as client:
        small, large = (
            client.post("/predict", content=json.dumps(body) + padding, headers={"Content-Type": "application/json"})
            for padding in ("", " " * ASIDE_BYTES)
        )
    assert len(aside) == 1
    assert small.status_code == large.status_code == status
    assert small.json() == large.json()


def test_more_values_are_read_where_more_are_needed():
    wide = json.dumps({"features": [[0.5] * 5000] * 5}).encode()
    with pytest.raises(RequestError, match="more than 10,000 values"):
        parsed_body("application/json", wide, 5)
    assert len(parsed_body("application/json", wide, 5, 5 * 5000).asked.features) == 5
