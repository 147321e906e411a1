"""Small models behind a server in this process."""

import asyncio
import contextlib
import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import uvicorn
from starlette.testclient import TestClient

from balpoe import Model, Predictions, Preprocessing, expert_network
from balpoe.data.png import png
from balpoe.deployment.deciders import HeldOut
from balpoe.deployment.serve.app import serve_app
from balpoe.deployment.serve.connections import connection_class
from balpoe.deployment.serve.priors import Priors
from balpoe.deployment.serve.service import Service
from balpoe.experiments.build import build_network
from balpoe.experiments.recipe import Recipe

CLASSES = ("oak", "ash", "elm")
FEATURES = 4
LAMBDAS = torch.tensor([1.0, 0.0, -1.0])


def awaited(coroutine):
    """What a coroutine returns, in a thread of its own: that of a browser's test has a loop already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def image_bytes(height=20, width=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return png(torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator))


@functools.cache
def feature_model():
    recipe = Recipe(network="mlp", width=(8,))
    return _model(build_network(recipe, 3, (FEATURES,)), Preprocessing((FEATURES,)), recipe)


@functools.cache
def image_model():
    network = expert_network("resnet32", num_classes=3, num_experts=3, width=2, cosine_scale=2.0)
    return _model(network, Preprocessing((3, 32, 32), (0.5,) * 3, (0.25,) * 3), Recipe())


def _model(network, preprocessing, recipe):
    counts = torch.tensor([80, 15, 5])
    return Model(network.eval(), CLASSES, counts, preprocessing, counts / counts.sum(), LAMBDAS, recipe)


def labelled_rows(samples, prior=(1, 1, 1), seed=0, noise=1.0):
    """Features and labels of Gaussian classes, mixed by a prior."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.multinomial(torch.tensor(prior, dtype=torch.float64), samples, True, generator=generator)
    rows = noise * torch.randn(samples, FEATURES, generator=generator)
    return rows + 2 * torch.nn.functional.one_hot(targets, FEATURES), targets


class Gaussian:
    """A model of features whose experts know the classes of `labelled_rows`; otherwise as `balpoe.load` gives it."""

    def __new__(cls):
        model = feature_model()

        class Known(type(model)):
            def expert_logits(self, images, views=""):
                return (2 * torch.as_tensor(images)[:, None, :3]).expand(-1, 3, -1).clone()

        return Known(**vars(model))


@functools.cache
def held_out():
    model = Gaussian()
    rows, targets = labelled_rows(600, seed=1)
    own = model.class_counts, model.lambdas, CLASSES, model.train_prior
    predictions = Predictions(model.expert_logits(rows), targets, *own)
    return HeldOut(predictions, predictions)


def service_of(model, limits=None, *, prior=None, table=None, **settings):
    return Service(model, limits, priors=Priors(model, prior, table), **settings)


def client_of(service, token=None):
    """A client of a server in this process, to be entered."""
    return TestClient(serve_app(service, token), raise_server_exceptions=False)


@contextlib.contextmanager
def running(service, token=None):
    """The address of a server in a thread of this process, with connections as the command has them."""
    config = uvicorn.Config(
        serve_app(service, token), port=0, http=connection_class(service.limits), ws="none", lifespan="on",
        log_level="error", server_header=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def sentence_of(response):
    """The one sentence of a refusal, which says nothing of the machine."""
    assert 400 <= response.status_code < 500 or response.status_code == 503, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert list(response.json()) == ["error"]
    assert "\n" not in error
    assert not any(word in error for word in ("Traceback", "/work", "site-packages", ".py", "object at 0x", "torch"))
    return error
