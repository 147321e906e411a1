"""Why a request is not answered: a status and one sentence, without anything of the machine in it."""

import math
from collections.abc import Mapping

__all__ = ["RequestError", "busy"]

LONGEST_WAIT = 60  # seconds


class RequestError(Exception):
    """A request that is refused.

    Args:
        status: Status of the response.
        sentence: What was wrong, and what to do.
        headers: Further headers.

    >>> RequestError(413, "the body is too large").status
    413
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})

    def __reduce__(self) -> tuple[type["RequestError"], tuple[int, str, dict[str, str]]]:
        return type(self), (self.status, self.sentence, self.headers)  # it comes from a worker, too


def busy(sentence: str, seconds: float) -> RequestError:
    """Return the refusal of a server that has too much to do, with the seconds after which to ask again.

    >>> busy("too many images wait", 2.4).headers
    {'Retry-After': '3'}
    """
    wait = min(max(1, math.ceil(seconds)), LONGEST_WAIT)
    return RequestError(503, f"{sentence}; ask again later", {"Retry-After": str(wait)})
