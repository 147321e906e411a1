"""What a server is told at its start: the model, the door, and how much a stranger may ask for."""

from dataclasses import dataclass
from pathlib import Path

from balpoe.deployment.table_source import TableSource
from balpoe.errors import UserError

__all__ = ["Limits", "ServeSettings", "read_token"]

MEGA = 2**20
FEWEST_CHARACTERS = 16


@dataclass(frozen=True)
class Limits:
    """How much one request, and all of them together, may take.

    >>> Limits(images=500, queue=100)
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: a request may have 500 images, but only 100 may wait; let more wait, or allow fewer
    """

    batch: int = 32
    """Samples that the network sees at once, at most."""
    queue: int = 256
    """Samples that wait for the network, at most; then the answer is 503."""
    images: int = 64
    """Samples of one request."""
    megabytes: float = 16.0
    """Size of a request's body."""
    megapixels: float = 50.0
    """Width times height of an image, in millions."""
    seconds: float = 30.0
    """Time from a request's arrival to its answer."""
    body_seconds: float = 10.0
    """Time in which a request's head, and then its body, must have come."""
    connections: int = 1000
    """Connections that are open at once."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < float("inf"):
                raise UserError(f"the limit of {name.replace('_', ' ')} must be a number above 0, but is {value}")
        if self.images > self.queue:
            raise UserError(
                f"a request may have {self.images} images, but only {self.queue} may wait; let more wait, or allow "
                "fewer"
            )

    @property
    def body_bytes(self) -> int:
        """Size of a request's body in bytes."""
        return int(self.megabytes * MEGA)

    @property
    def bytes_together(self) -> int:
        """Size of all bodies that are held at once, in bytes: sixteen of the largest."""
        return 16 * self.body_bytes

    @property
    def pixels(self) -> int:
        """Width times height of an image."""
        return int(self.megapixels * 1e6)


@dataclass(frozen=True)
class ServeSettings:
    """All that a server's processes are told."""

    model: str
    """A run's folder, or a model's file."""
    host: str = "127.0.0.1"
    port: int = 8000
    prior: str | None = None
    """Deployment prior of requests that name none; None: what the model is made for."""
    table: TableSource | None = None
    taxonomy: str | None = None
    """File of a tree of labels."""
    held_out: str | None = None
    """Run whose held-out predictions serve decisions and drift; None: the model's own."""
    token: str | None = None
    """What a request must bear; None: nothing."""
    device: str = "auto"
    workers: int = 1
    """Processes with the network."""
    threads: int = 0
    """Threads of each of them; 0: the cores are shared out."""
    window: int = 1000
    """Samples whose class mix is estimated: the latest."""
    limits: Limits = Limits()


def read_token(path: str | None, environment: str | None) -> str | None:
    """Return the token of a file, or else that of the environment, or say why it will not do.

    Args:
        path: File that holds the token alone.
        environment: Value of the environment's variable.

    >>> read_token(None, "short")
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: the token has 5 characters, which can be guessed; give at least 16
    """
    if path is not None:
        from balpoe.files import read_text

        environment = read_text(Path(path)).strip()
    if environment is None:
        return None
    if len(environment) < FEWEST_CHARACTERS:
        raise UserError(
            f"the token has {len(environment)} characters, which can be guessed; give at least {FEWEST_CHARACTERS}"
        )
    if not environment.isascii() or not environment.isprintable() or " " in environment:
        raise UserError("the token has characters that no header can bear; give letters and digits")
    return environment
