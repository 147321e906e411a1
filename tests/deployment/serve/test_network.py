"""Images and rows of strangers: whole, cut short, garbled, lying about their size, or not what they should be."""

import io
import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from balpoe import Preprocessing
from balpoe.deployment.serve.intake import Intake
from balpoe.deployment.serve.settings import Limits
from balpoe.errors import UserError
from served import FEATURES, client_of, feature_model, image_model, sentence_of, service_of

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")


def picture(kind, height=24, width=36, **settings):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **settings)
    return stream.getvalue()


def lying_png(width, height):
    """A tiny file whose header promises many pixels."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


@pytest.fixture(scope="module")
def images():
    with client_of(service_of(image_model(), Limits(megapixels=3))) as client:
        yield client


@pytest.fixture(scope="module")
def rows():
    with client_of(service_of(feature_model())) as client:
        yield client


def send(client, content):
    return client.post("/predict", files={"images": ("x", content)})


@pytest.mark.parametrize("kind", FORMATS)
def test_usual_formats_are_read(images, kind):
    assert send(images, picture(kind)).status_code == 200


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"GIF89a", 422),
        (b"%PDF-1.7", 422),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 422),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 422),
        (lying_png(60_000, 60_000), 422),
        (lying_png(10_000, 10_000), 413),
        (lying_png(0, 0), 422),
        (lying_png(2**31 - 1, 1), 422),
        (lying_png(500, 500), 422),
        (picture("PNG")[:200], 422),
        (picture("JPEG")[:60], 422),
    ],
)
def test_hostile_images_get_one_sentence(images, content, status):
    response = send(images, content)
    assert response.status_code == status, response.text
    sentence_of(response)


def test_a_large_image_is_decoded_aside_and_has_the_same_answer(images):
    intake = Intake(image_model().preprocessing, 10_000_000)
    large = picture("PNG", 1500, 1500)
    assert not intake.is_quick(large)
    assert intake.is_quick(picture("PNG"))
    assert intake.is_quick(picture("JPEG"))
    assert not intake.is_quick(picture("JPEG", progressive=True))
    assert not intake.is_quick(picture("TIFF"))
    found = send(images, large).json()["answers"][0]
    expected = image_model().predict(Image.open(io.BytesIO(large)))[0]
    assert found["probability"] == pytest.approx(float(expected.max()), abs=1e-5)


@given(
    kind=st.sampled_from(FORMATS),
    cut=st.floats(0, 1),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=8),
)
def test_garbled_images_never_fail_the_server(images, kind, cut, changes):
    content = bytearray(picture(kind))
    for place, value in changes:
        content[min(int(place * len(content)), len(content) - 1)] = value
    response = send(images, bytes(content[: max(1, int((1 - cut) * len(content)))] if cut > 0.5 else content))
    assert response.status_code in (200, 413, 422)
    if response.status_code != 200:
        sentence_of(response)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
NUMBERS = st.floats(width=64) | st.integers(-(10**40), 10**40)
FIELDS = st.sampled_from(
    ["features", "images", "prior", "top_k", "experts", "costs", "metric", "sets", "unknown", "level", "abstain_cost"]
)


@given(features=st.lists(st.lists(NUMBERS, min_size=FEATURES, max_size=FEATURES), max_size=3) | VALUES)
def test_rows_of_any_numbers_never_fail_the_server(rows, features):
    body = json.dumps({"features": features}).encode()  # NaN and Infinity are written as such
    response = rows.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (200, 400, 422)
    if response.status_code == 200:
        found = [each["probability"] for each in response.json()["answers"]]
        assert all(0 <= each <= 1 for each in found)


@given(fields=st.dictionaries(FIELDS, VALUES | NUMBERS, max_size=4))
def test_fields_of_any_kind_never_fail_the_server(rows, fields):
    body = json.dumps({"features": [[0.0] * FEATURES], **fields}).encode()
    response = rows.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (200, 400, 413, 422), response.text


def test_a_large_file_with_too_many_pixels_is_refused_where_it_is_decoded(images):
    wide = picture("BMP", 800, 4000)  # 9.6 MB of 3.2 megapixels
    response = send(images, wide)
    assert response.status_code == 413
    assert "4000 x 800 pixels" in sentence_of(response)


def test_a_model_of_other_channels_is_refused():
    with pytest.raises(UserError, match="other channels"):
        Intake(Preprocessing((1, 32, 32)), 1000)
