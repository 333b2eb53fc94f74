"""The HTTP routes of the explorer.

Each route checks a request, computes its answer in the thread that runs the model, and responds.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import torch
from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from recmix._version import __version__
from recmix.explore import answers, memory, reference, wire
from recmix.explore.batcher import Answer, Batcher
from recmix.explore.catalogue import Catalogue, ServedRun
from recmix.explore.explain import explain, interpolate
from recmix.explore.guard import Access, Guard
from recmix.explore.reference import array
from recmix.explore.routes import TEXT, Routes
from recmix.explore.text_routes import TextAnswers
from recmix.explore.wire import Array, Integer, Limits, Refused, respond
from recmix.pages import SHARED, shared_text

__all__ = ["make_app"]

ABOUT = (
    "Trained models over HTTP. The field images has examples (B, ...) of any kind. Their shape, and the "
    "values that the run's likelihood accepts, are shape and values in /runs: real (any number), unit "
    "(0 to 1), counts, classes:K (0 to K - 1) or eight_bit (k / 255). They are nested lists in JSON, or "
    "a .npy body (application/x-npy; there uint8 images mean value / 255) with the other fields in the "
    "URL. "
    "If the answer is a single array, 'Accept: application/x-npy' gives it as .npy. Bounds are in nats, "
    "higher is better. The numbers are those of recmix.load(...). Runs of texts (texts in /runs is not "
    "null) take the field texts, or text for one, instead of images and image. Their answers have texts "
    "instead of images, and problems: what a user should know about each text."
)
LARGEST = 2**31 - 1
SEED = Integer(0, 0, LARGEST)
PROBLEMS = {"type": "array", "description": "what a user should know about each text"}
WHOLE, OBJECT = {"type": "integer"}, {"type": "object"}
LIST = {"type": "array", "items": OBJECT}
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(
    catalogue: Catalogue,
    *,
    access: Access | None = None,
    limits: Limits | None = None,
    batching: bool = True,
) -> ASGIApp:
    """Make the ASGI application of the explorer.

    Args:
        catalogue: the models that the application serves.
        access: the token and the host names that requests need. By default no token is needed, and
            the host must be a loopback name, such as ``localhost``.
        limits: the largest requests that are accepted.
        batching: whether requests that wait at the same time go through the model as one batch.
    """
    limits = limits or Limits()
    # Each new thread starts with as many torch threads as there are cores.
    begin = partial(torch.set_num_threads, torch.get_num_threads())
    batcher = Batcher(most=128 if batching else 0, queue=limits.queue, begin=begin)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()

    app = FastAPI(
        title="recmix explorer",
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    wire.add_error_handlers(app)
    routes = Routes(app, catalogue, batcher, limits, TextAnswers(batcher, limits))
    _add_batch_routes(routes)
    _add_image_routes(routes)
    _add_text_routes(routes)
    _add_information(routes)
    _add_page(app)
    return Guard(app, access=access or Access(), limits=limits)


def _add_batch_routes(routes: Routes) -> None:
    """Add the routes that answer for many examples, latent vectors or prior samples at a time."""
    limits, images, texts = routes.limits, routes.decoded("B"), routes.texts
    moments = {
        "weights": array("BK"),
        "mean": array("BD"),
        "means": array("BKD"),
        "variances": array("BKD"),
        "covariances": {"description": "(B, K, D, D), or null if all are diagonal"},
        "exact": {"type": "boolean", "description": "false if variances are estimated from samples"},
    }

    @routes.post("/posterior", "images", {}, moments)
    async def posterior(run: ServedRun, x: Array) -> Answer:
        """The mixing weights of q(z | x), the means and variances of its components, and its mean."""
        return await routes.batched(answers.posterior, run, x)

    decoded = {"weights": array("BK"), "images": images, "components": routes.decoded("BK")}

    @routes.post("/reconstruct", "images", {}, decoded, npy="images", for_texts=texts.reconstruct)
    async def reconstruct(run: ServedRun, x: Array) -> Answer:
        """Examples decoded at the mean of q(z | x), and at the mean of each of its components.

        The answer also has the mixing weights. As .npy it is only the examples decoded at the mean of q.
        """
        return await routes.batched(answers.reconstruct, run, x)

    scoring = {"samples": Integer(100, 1, limits.samples), "seed": SEED}
    bounds = {"elbo": array("B"), "iwae": array("B"), "samples": WHOLE, "seed": WHOLE}

    @routes.post("/score", "images", scoring, bounds)
    async def score(run: ServedRun, x: Array, samples: int, seed: int) -> Answer:
        """ELBO and IWAE of each example; both are estimated from the same samples of q(z | x)."""
        if len(x) * samples > limits.decodings:
            given, most = f"{len(x)} examples with {samples} samples each", limits.decodings
            raise Refused(413, f"{given} are too many: at most {most} samples; send fewer examples")
        work = partial(answers.score, run.model, x, samples, seed)
        return await routes.batcher.alone(work, cost=len(x) * samples)

    @routes.post("/decode", "z", {}, {"images": images}, npy="images", for_texts=texts.decode)
    async def decode(run: ServedRun, z: Array) -> Answer:
        """The mean examples E[x | z] of latent vectors z."""
        return await routes.batched(answers.decode, run, z)

    drawing = {"count": Integer(16, 1, limits.images), "seed": Integer(-1, -1, LARGEST)}
    drawn = {"images": images, "z": array("BD"), "seed": WHOLE}

    async def sample(run: ServedRun, count: int, seed: int) -> Answer:
        """Mean examples E[x | z] of draws z from the prior; the seed -1 means a random seed."""
        seed = seed if seed >= 0 else secrets.randbelow(LARGEST)
        z = answers.prior(run.model, count, seed)
        decoded = texts.decode(run, z) if run.vocabulary else routes.batched(answers.decode, run, z)
        return {**await decoded, "z": z, "seed": seed}

    routes.post("/sample", None, drawing, drawn, npy="images", for_texts=sample)(sample)


def _add_image_routes(routes: Routes) -> None:
    """Add the routes that explain one example and that interpolate between two examples."""
    limits, texts = routes.limits, routes.texts
    explaining = {"steps": Integer(4, 0, limits.steps), "samples": Integer(100, 1, 1000)}
    explaining |= {"grid": Integer(80, 8, limits.grid), "seed": SEED}
    explained = {"mean": array("D"), "reconstruction": routes.decoded(""), "components": LIST}
    explained |= {"plane": OBJECT, "bounds": OBJECT, "refinement": LIST}

    @routes.post("/explain", "image", explaining, explained, for_texts=texts.explain)
    async def explain_image(run: ServedRun, x: Array, **fields: int) -> Answer:
        """q(z | x) of one example: components, densities on a plane, bounds, Gauss-Newton steps."""
        cost = fields["grid"] ** 2 + (fields["steps"] + 2) * fields["samples"]
        return await routes.batcher.alone(partial(explain, run.model, x, **fields), cost=cost)

    line = {"steps": Integer(9, 2, limits.path)}
    points = {"z": array("ND"), "images": routes.decoded("N")}

    @routes.post("/interpolate", "images", line, points, npy="images", for_texts=texts.interpolate)
    async def interpolate_images(run: ServedRun, x: Array, steps: int) -> Answer:
        """Examples decoded along the straight line between the posterior means of two examples."""
        if len(x) != 2:
            raise Refused(422, f"two examples are needed, got {len(x)}")
        work = partial(interpolate, run.model, x, steps=steps)
        return await routes.batcher.alone(work, cost=steps)


def _add_text_routes(routes: Routes) -> None:
    """Add the routes that work only for models that were trained on texts."""
    texts = routes.texts
    near = {"count": Integer(5, 1, routes.limits.neighbours)}
    found = {"neighbours": LIST, "searched": WHOLE, "problems": PROBLEMS}

    routes.post("/neighbours", "text", near, found)(texts.neighbours)
    drawn = {"drawings": {"type": "array"}, "hint": {"type": ["string", "null"]}}
    routes.post("/draw", "texts", {}, drawn)(texts.draw)


def _add_information(routes: Routes) -> None:
    """Add the routes that return the list of runs, their test examples, and the server's state."""
    app, catalogue, limits = routes.app, routes.catalogue, routes.limits
    listed = {"runs": LIST, "default": TEXT}

    @app.get("/runs", response_class=Response, responses=reference.responses("the runs", listed))
    async def runs(request: Request) -> Response:
        """The runs of this server, and the name of the default run."""
        described = [run.describe() for run in catalogue.runs.values()]
        return respond(request, {"runs": described, "default": catalogue.default})

    paging = {"start": Integer(0, 0, LARGEST), "count": Integer(24, 1, min(256, limits.images))}
    part = {"total": WHOLE, "start": WHOLE, "images": routes.examples("B")}

    def paged(path: str, responses: Mapping[int | str, Any]) -> Any:
        """Make a decorator that adds a GET route for one page of test examples of a run.

        The query of the route has `start` and `count`, the first example and the number of examples.

        `responses` is the OpenAPI description of the answers.
        """
        extra = {"parameters": reference.parameters(paging)}
        return app.get(path, response_class=Response, responses=dict(responses), openapi_extra=extra)

    @paged("/runs/{run}/images", reference.responses("some test examples", part, npy=True))
    async def test_images(request: Request, run: str) -> Response:
        """Test examples of a run. Its data must be on this machine; they are never downloaded."""
        given = wire.read_fields(dict(request.query_params), paging)
        chosen = catalogue.find(run)
        chosen.refuse_arrays()
        routes.reserve(request, chosen, given["count"] * math.prod(chosen.model.spec.shape))
        found = await asyncio.to_thread(chosen.test_images, given["start"], given["count"])
        return respond(request, found, run=chosen.name, array="images")

    written = {"total": WHOLE, "start": WHOLE, "texts": {"type": "array", "items": TEXT}}

    @paged("/runs/{run}/texts", reference.responses("some test texts", written))
    async def test_texts(request: Request, run: str) -> Response:
        """Test texts of a run that was trained on texts. The data must be on this machine."""
        given = wire.read_fields(dict(request.query_params), paging)
        chosen = catalogue.find(run)
        chosen.needed_vocabulary()
        routes.reserve(request, chosen, memory.numbers_in_texts(chosen, given["count"]))
        found = await asyncio.to_thread(chosen.test_texts, given["start"], given["count"])
        return respond(request, found, run=chosen.name)

    state = {"status": TEXT, "version": TEXT, "waiting": WHOLE, "answered": WHOLE, "passes": WHOLE}

    @app.get("/health", response_class=Response, responses=reference.responses("running", state))
    async def health(request: Request) -> Response:
        """The number of waiting requests, of answered requests, and of forward passes of models."""
        return respond(request, {"status": "ok", "version": __version__, **routes.batcher.state()})


def _add_page(app: FastAPI) -> None:
    """Add routes for the web page, its files and the page ``/docs``. The files are read only once."""
    folder = files("recmix.explore") / "page"
    own = [entry for entry in folder.iterdir() if PurePath(entry.name).suffix in KINDS]
    served = {entry.name: entry.read_text(encoding="utf-8") for entry in own}
    served |= {name: shared_text(name) for name in SHARED}

    def serve(name: str) -> Callable[[], Awaitable[Response]]:
        async def file() -> Response:
            return Response(served[name], media_type=KINDS[PurePath(name).suffix])

        return file

    for name in served:
        app.get("/" if name == "index.html" else f"/{name}", include_in_schema=False)(serve(name))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(reference.page(app.openapi()), media_type="text/html")
