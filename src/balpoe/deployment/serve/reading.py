"""The body of a request as what it asks for and samples to look at, or as what is wrong with it.

Whatever reads JSON, base64 and forms holds Python's lock all the while: in a thread it would hold up every other answer
as it does in the event loop. So a large body is read by a process of its own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from balpoe.data.dataset import Preprocessing
from balpoe.deployment.serve.asked import Ask
from balpoe.deployment.serve.bodies import MOST_VALUES, parsed_body
from balpoe.deployment.serve.intake import Intake
from balpoe.deployment.serve.refusals import RequestError
from balpoe.deployment.serve.settings import Limits

__all__ = ["ASIDE_BYTES", "BodyReader", "Read"]

ASIDE_BYTES = 2**17
"""Larger bodies are read aside: to hand them over takes less than to read them."""
MOST_COSTS = 100_000


class Read(NamedTuple):
    """What a body asks for, and its samples."""

    asked: Ask
    """Without the samples."""
    samples: list[bytes] | np.ndarray[Any, Any]
    """Files of images, or rows of features."""
    slow: list[bool]
    """Which of them take long to decode."""


class BodyReader:
    """What reads the bodies of requests to a model.

    Args:
        preprocessing: How its network takes samples.
        classes: Number of its classes.
        limits: How much a request may have.

    >>> read = BodyReader(Preprocessing((2,)), 3, Limits())
    >>> read("application/json", b'{"features": [[0.5, 1]]}').samples
    array([[0.5, 1. ]], dtype=float32)
    """

    def __init__(self, preprocessing: Preprocessing, classes: int, limits: Limits) -> None:
        self.intake, self.most_images = Intake(preprocessing, limits.pixels), limits.images
        width = 0 if self.intake.takes_images else self.intake.size[0]
        costs = min(classes * (classes + 2), MOST_COSTS)
        self.most_values = limits.images * width + max(costs, MOST_VALUES)
        """Values that the JSON of a request may have: rows of features, or a cost for each answer to each class."""

    def __call__(self, content_type: str, body: bytes) -> Read:
        """Return what is read, or refuse the body.

        Args:
            content_type: Header of the request.
            body: Whole body.
        """
        asked, images = parsed_body(content_type, body, self.most_images, self.most_values)
        bare = asked.model_copy(update={"images": None, "features": None})
        if self.intake.takes_images:
            if asked.features is not None or not images:
                raise RequestError(422, "this model takes images; send one at least, as a file or in base64")
            return Read(bare, images, [not self.intake.is_quick(image) for image in images])
        if images or asked.images is not None or not asked.features:
            raise RequestError(422, "this model takes features; send a row of numbers at least, as JSON")
        return Read(bare, self.intake.rows(asked.features).numpy(), [False] * len(asked.features))

    def outcomes(self, bodies: Sequence[tuple[str, bytes]]) -> list[Read | RequestError]:
        """Return what is read of bodies, each with its type, or why it is refused."""
        return [self._outcome(*each) for each in bodies]

    def _outcome(self, content_type: str, body: bytes) -> Read | RequestError:
        try:
            return self(content_type, body)
        except RequestError as error:
            return error
