"""Small untrained models behind the explorer's application, for its tests."""

import asyncio
import io

import httpx
import numpy as np
import torch

import recmix
from recmix.commands.explore import load_models
from recmix.explore.app import make_app
from recmix.explore.catalogue import Catalogue
from recmix.model.data_facts import Statistics
from recmix.model.options import ModelOptions
from recmix.runs.spec import Spec
from recmix.runs.training_options import Training
from recmix.training.build import build

NPY = "application/x-npy"


def save(folder, method="rme", *, latent=2, data=None, label="", inference=None, **options):
    """An untrained run of digits, in float64."""
    spec = Spec(
        method=method,
        label=label,
        shape=(1, 8, 8),
        model=ModelOptions(latent=latent, likelihood="gaussian", network="dense"),
        options=options,
        inference=inference or recmix.Inference(),
        training=Training(device="cpu", dtype="float64"),
        data=recmix.data.load("digits").describe() if data is None else data,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        made = build(spec, statistics=Statistics(np.full((1, 8, 8), 0.3), variance=0.05))
        with torch.no_grad():  # larger weights, so that answers differ between images
            for weight in made.parameters():
                if weight.ndim > 1:
                    weight.mul_(1.5)
    return recmix.Model(made, spec).save(folder)


def app_of(*folders, **more):
    """The application that serves these runs."""
    return make_app(Catalogue(load_models(folders, device="cpu")), **more)


def ask(app, method, path, **more):
    """The response to one request."""
    return ask_together(app, [(method, path, more)])[0]


def ask_together(app, requests):
    """The responses to requests (method, path, options) that are sent at the same time."""

    async def go():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await asyncio.gather(
                *(client.request(method, path, **more) for method, path, more in requests)
            )

    return asyncio.run(go())


def npy(array):
    """The array as a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def digits(count):
    """The first test images of digits."""
    return recmix.data.load("digits").x_test[:count]
