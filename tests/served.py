"""Small models behind a server in this process."""

import functools

import torch
from starlette.testclient import TestClient

from balpoe import Model, Predictions, Preprocessing, expert_network
from balpoe.data.png import png
from balpoe.deployment.deciders import HeldOut
from balpoe.deployment.serve.app import serve_app
from balpoe.deployment.serve.priors import Priors
from balpoe.deployment.serve.service import Service
from balpoe.experiments.recipe import Recipe

CLASSES = ("oak", "ash", "elm")
FEATURES = 4
LAMBDAS = torch.tensor([1.0, 0.0, -1.0])


def image_bytes(height=20, width=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return png(torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator))


@functools.cache
def feature_model():
    return _model(
        expert_network("mlp", num_classes=3, num_experts=3, num_features=FEATURES), Preprocessing((FEATURES,))
    )


@functools.cache
def image_model():
    network = expert_network("resnet32", num_classes=3, num_experts=3, width=2)
    return _model(network, Preprocessing((3, 32, 32), (0.5,) * 3, (0.25,) * 3))


def _model(network, preprocessing):
    counts = torch.tensor([80, 15, 5])
    return Model(network.eval(), CLASSES, counts, preprocessing, counts / counts.sum(), LAMBDAS, Recipe())


def labelled_rows(samples, prior=(1, 1, 1), seed=0, centre=0.0):
    """Features and labels of Gaussian classes, mixed by a prior."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.multinomial(torch.tensor(prior, dtype=torch.float64), samples, True, generator=generator)
    rows = torch.randn(samples, FEATURES, generator=generator) + centre
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


def sentence_of(response):
    """The one sentence of a refusal, which says nothing of the machine."""
    assert 400 <= response.status_code < 500 or response.status_code == 503, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert list(response.json()) == ["error"]
    assert "\n" not in error
    assert not any(word in error for word in ("Traceback", "/work", "site-packages", ".py", "object at 0x", "torch"))
    return error
