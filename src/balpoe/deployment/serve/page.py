"""The page at /: three files, read once."""

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import Response

__all__ = ["endpoint"]

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def endpoint(name: str) -> Callable[[], Awaitable[Response]]:
    """Return what answers with one of the page's files.

    Args:
        name: Name of the file.

    >>> callable(endpoint("page.html"))
    True
    """
    content = files("balpoe.deployment.serve").joinpath(name).read_bytes()
    kind = KINDS[name.rpartition(".")[2]]

    async def answer() -> Response:
        return Response(content, media_type=kind)

    return answer
