import asyncio

import pytest

from balpoe.deployment.serve.limits import BodyRoom, ClientLeftError, within_time
from balpoe.deployment.serve.refusals import RequestError
from balpoe.deployment.serve.settings import Limits
from served import awaited


def receive_of(messages, last=None):
    """What a server gives an app: messages, and then nothing more, or a wait of some seconds."""
    left = list(messages)

    async def receive():
        if left:
            return left.pop(0)
        await asyncio.sleep(60)
        return last

    return receive


def parts(*bodies):
    return [{"type": "http.request", "body": each, "more_body": True} for each in bodies]


END = {"type": "http.request", "body": b"", "more_body": False}
LEFT = {"type": "http.disconnect"}


def read(room, messages, declared=None):
    return awaited(room.read(receive_of(messages), declared))


def test_a_body_is_put_together_and_its_room_is_given_back():
    room = BodyRoom(Limits())
    assert read(room, [*parts(b"ab", b"cd"), END]) == b"abcd"
    assert room.taken == 4
    room.give_back(4)
    assert room.taken == 0


@pytest.mark.parametrize(
    ("messages", "declared", "status"),
    [
        ([END], "9999999", 413),
        ([END], "9" * 5000, 413),
        ([*parts(b"x" * 600_000, b"x" * 600_000), END], None, 413),
        (parts(b"slow"), None, 408),
    ],
)
def test_a_body_beyond_its_limits_is_refused_and_takes_no_room(messages, declared, status):
    room = BodyRoom(Limits(megabytes=1, body_seconds=0.05))
    with pytest.raises(RequestError) as refused:
        read(room, messages, declared)
    assert refused.value.status == status
    assert room.taken == 0


def test_bodies_together_have_a_limit():
    room = BodyRoom(Limits(megabytes=1))
    room.taken = 16 * 2**20 - 10
    with pytest.raises(RequestError, match="other requests") as refused:
        read(room, [*parts(b"x" * 11), END])
    assert refused.value.status == 503
    assert room.taken == 16 * 2**20 - 10


def test_a_client_that_leaves_amid_its_body_frees_its_room():
    room = BodyRoom(Limits())
    with pytest.raises(ClientLeftError):
        read(room, [*parts(b"abc"), LEFT])
    assert room.taken == 0


def test_work_ends_with_the_client_or_with_its_time():
    cancelled = []

    async def work(seconds):
        try:
            await asyncio.sleep(seconds)
            return "done"
        except asyncio.CancelledError:
            cancelled.append(seconds)
            raise

    async def both():
        assert await within_time(work(0), receive_of([]), 5) == "done"
        with pytest.raises(ClientLeftError):
            await within_time(work(30), receive_of([LEFT]), 5)
        with pytest.raises(RequestError) as refused:
            await within_time(work(31), receive_of([]), 0.02)
        await asyncio.sleep(0)
        return refused.value

    refused = awaited(both())
    assert refused.status == 503
    assert "Retry-After" in refused.headers
    assert cancelled == [30, 31]  # nothing was waited for
