"""The body of a request as what it asks for: JSON with base64, or a form with files.

The whole body is in memory, within its limit, and nothing of it is ever written to a file.
"""

import base64
import binascii
import json
from typing import Any, NamedTuple, NoReturn

from python_multipart.multipart import parse_options_header

from balpoe.deployment.serve.asked import Ask, checked_ask
from balpoe.deployment.serve.refusals import RequestError

__all__ = ["MOST_VALUES", "Parsed", "parsed_body"]

MOST_FIELDS = 64  # beside the files of a form
MOST_VALUES = 10_000
"""Numbers and names in JSON, unless more are needed: each takes ten times as long to read as to send."""
LONGEST_HEAD = 4096  # bytes of the headers of one part
FILES = ("image", "images")


class Parsed(NamedTuple):
    """What a body asks for, and the files of its images."""

    asked: Ask
    images: list[bytes]


def parsed_body(content_type: str, body: bytes, most_images: int, most_values: int = MOST_VALUES) -> Parsed:
    r"""Return what a body asks for, or refuse it with one sentence.

    Args:
        content_type: Header of the request.
        body: Whole body.
        most_images: Number of samples that a request may have.
        most_values: Number of values that its JSON may have.

    >>> parsed_body("application/json", b'{"features": [[0.5]], "prior": "uniform"}', 8).asked.prior
    'uniform'
    >>> form = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\nabc\r\n--x--\r\n'
    >>> parsed_body("multipart/form-data; boundary=x", form, 8).images
    [b'abc']
    """
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        fields, images = _form(body, options.get(b"boundary", b""), most_images, most_values)
    elif kind == b"application/json":
        fields, images = _json(body, most_values), []
    else:
        raise RequestError(415, "the body must be application/json or multipart/form-data; see /openapi.json")
    for name in ("images", "features"):
        given = fields.get(name) if isinstance(fields, dict) else None
        if isinstance(given, list) and len(given) > most_images:
            raise _too_many(most_images)
    asked = checked_ask(fields)
    if asked.images is not None and images:
        raise RequestError(422, "images are files or base64, not both; leave one of them out")
    return Parsed(asked, images or [_from_base64(each, number) for number, each in enumerate(asked.images or ())])


def _json(body: bytes, most_values: int) -> Any:
    _check_values(body, most_values)
    try:
        found = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError, and so are too long integers
        raise RequestError(400, "the body is not valid JSON; send an object with images or features") from None
    if isinstance(found, dict) and len(found) > MOST_FIELDS:
        raise RequestError(413, f"the body has more than {MOST_FIELDS} fields; see /openapi.json")
    return found


def _check_values(text: bytes, most: int) -> None:
    if text.count(b",") > most:
        raise RequestError(413, f"there are more than {most:,} values in the JSON; send less at once")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and Infinity are no JSON


def _from_base64(text: str, number: int) -> bytes:
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(422, f"image {number} is not base64; send a whole file in it") from None


def _form(body: bytes, boundary: bytes, most_images: int, most_values: int) -> tuple[dict[str, Any], list[bytes]]:
    """Text fields, whose JSON is read where it is JSON, and files, in their order."""
    mark = b"--" + boundary
    if not boundary or not body.startswith(mark):
        raise RequestError(400, "the form does not begin with its boundary; send it as multipart/form-data says")
    most_parts = MOST_FIELDS + most_images
    if body.count(b"\r\n" + mark) > most_parts + 1:
        raise RequestError(413, f"the form has more than {most_parts} parts; send the others in further requests")
    *parts, end = (b"\r\n" + body).split(b"\r\n" + mark)[1:]
    if not end.startswith(b"--"):
        raise RequestError(400, "the form is cut short; send it again")
    fields: dict[str, Any] = {}
    images: list[bytes] = []
    for part in parts:
        name, is_file, content = _part(part)
        if is_file or name in FILES:
            if name not in FILES:
                raise RequestError(422, "files must be in the field images; see /openapi.json")
            images.append(content)
        elif name in fields:
            raise RequestError(422, "the form has a field twice; leave one of them out")
        else:
            fields[name] = _value(content, most_values)
    if len(images) > most_images:
        raise _too_many(most_images)
    return fields, images


def _part(part: bytes) -> tuple[str, bool, bytes]:
    """Name of a part, whether it is a file, and what is in it."""
    head, found, content = part.partition(b"\r\n\r\n")
    if not found or len(head) > LONGEST_HEAD:
        raise RequestError(400, "a part of the form has no headers of its own; send it as multipart/form-data says")
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            _, options = parse_options_header(value.strip())
            if b"name" in options:
                return options[b"name"].decode(errors="replace"), b"filename" in options, content
    raise RequestError(400, "a part of the form has no name; send it as multipart/form-data says")


def _value(content: bytes, most_values: int) -> Any:
    """JSON where it is JSON, else the text: prior=uniform, top_k=3 and costs={"a": 1} are all written as they are."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise RequestError(422, "a field of the form is not text in UTF-8; send files in the field images") from None
    _check_values(content, most_values)
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        if text.lstrip().startswith(("[", "{")):
            raise RequestError(422, "a field of the form is not valid JSON; write plain numbers, not NaN") from None
        return text


def _too_many(most: int) -> RequestError:
    return RequestError(413, f"a request may have {most} samples at most; send the others in further requests")
