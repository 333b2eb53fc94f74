"""Small untrained models behind the explorer's application, for its tests."""

import asyncio
import io

import httpx
import numpy as np
import torch

import recmix
from recmix.api import Fitted
from recmix.explore.app import make_app
from recmix.explore.shelf import Shelf
from recmix.runs.options import Training
from recmix.runs.spec import Spec
from recmix.training.build import build

NPY = "application/x-npy"


def save(folder, method="rme", *, latent=2, data=None, **options):
    """An untrained run of digits, in float64."""
    spec = Spec(
        method=method,
        latent=latent,
        likelihood="gaussian",
        shape=(1, 8, 8),
        network="dense",
        decoder_network="dense",
        options=options,
        training=Training(device="cpu", dtype="float64"),
        data=recmix.data.load("digits").describe() if data is None else data,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        made = build(spec, centre=np.full((1, 8, 8), 0.3), variance=0.05)
        with torch.no_grad():  # wider than fresh weights are, so that answers differ between images
            for weight in made.parameters():
                if weight.ndim > 1:
                    weight.mul_(1.5)
    return Fitted(made, spec).save(folder)


def app_of(*folders, **more):
    return make_app(Shelf.load(folders, device="cpu"), **more)


def ask(app, method, path, **more):
    """One request to an application of this process."""

    async def go():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **more)

    return asyncio.run(go())


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def digits(count):
    return recmix.data.load("digits").x_test[:count]
