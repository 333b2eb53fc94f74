"""The HTTP routes of the explorer.

Each route checks a request, computes its answer in the thread that runs the model, and responds.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from recmix._version import __version__
from recmix.explore import answers, memory, reference, wire
from recmix.explore.batcher import Answer, Batcher
from recmix.explore.catalogue import LARGEST_LATENT, Catalogue, ExplorableModel, ServedRun
from recmix.explore.explain import explain, interpolate
from recmix.explore.guard import Access, Guard
from recmix.explore.reference import array
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
    "higher is better. The numbers are those of recmix.load(...)."
)
TOO_LARGE = (
    "the model gives results that are not finite for these values: give values like those of its data"
)
LARGEST = 2**31 - 1
SEED = Integer(0, 0, LARGEST)
LEADING = {"images": "B", "image": ""}
"""Fields of a request that hold examples: names of the axes before those of one example."""
TEXT, WHOLE, OBJECT = {"type": "string"}, {"type": "integer"}, {"type": "object"}
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
        access: which requests are answered. By default those whose host is a loopback name, such as
            ``localhost``.
        limits: the largest requests that are accepted.
        batching: pass requests that wait at the same time through the model together.
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
    routes = _Routes(app, catalogue, batcher, limits)
    _add_batch_routes(routes)
    _add_image_routes(routes)
    _add_information(routes)
    _add_page(app)
    return Guard(app, access=access or Access(), limits=limits)


Compute = Callable[..., Awaitable[Answer]]
"""A function that computes the answer of a route.

Its arguments are the run, the array of the request if the route takes one, and the integer fields
of the request by name.
"""
Count = Callable[..., int]
"""A function that counts the numbers in an answer before it is computed.

Its arguments are the run, the number of rows of the request's array, and the integer fields.
"""


@dataclass(frozen=True)
class _Routes:
    """Add POST routes for the models of a catalogue to an application."""

    app: FastAPI
    catalogue: Catalogue
    batcher: Batcher
    limits: Limits

    def post(
        self,
        path: str,
        takes: str | None,
        integers: Mapping[str, Integer],
        gives: Mapping[str, Any],
        npy: str | None = None,
        count: Count | None = None,
    ) -> Callable[[Compute], None]:
        """Make a decorator that adds a POST route.

        The route checks the request, calls the decorated function, and sends what that function
        returns. The function's docstring is the description of the route for users.

        Args:
            path: the path of the route, such as ``/decode``.
            takes: name of the array in the request: ``images``, ``image`` or ``z``; None if the
                request has no array.
            integers: the integer fields of the request, with their defaults and limits.
            gives: the OpenAPI schema of each field of the answer.
            npy: the field of the answer that a client can also get as a ``.npy`` file, if any.
            count: counts the numbers in the answer; None if these are few.
        """
        runs = list(self.catalogue.runs)
        arrays: dict[str, Any] = {}
        if takes == "z":
            limits = (-LARGEST_LATENT, LARGEST_LATENT)
            arrays[takes] = array("BD", sizes=self.catalogue.sizes(), limits=limits)
        elif takes is not None:
            arrays[takes] = self._given(LEADING[takes])

        def add(compute: Compute) -> None:
            async def answer(request: Request) -> Response:
                fields, rows = await wire.read_request(request, takes, integers)
                run = self.catalogue.find(fields.pop("run"))
                given = [] if takes is None else [run.check(takes, rows, self.limits.images)]
                if count is not None:
                    numbers = count(run, len(given[0]) if given else 0, **fields)
                    self.reserve(request, run, numbers)
                try:
                    found = await compute(run, *given, **fields)
                except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                    raise Refused(422, TOO_LARGE) from None
                return respond(request, found, run=run.name, array=npy)

            self.app.post(
                path,
                name=compute.__name__,
                description=compute.__doc__,
                response_class=Response,
                responses=reference.responses("the answer", {"run": TEXT, **gives}, npy=bool(npy)),
                openapi_extra={
                    "requestBody": reference.request_body(arrays, integers, runs),
                    "parameters": reference.parameters(integers, runs),
                },
            )(answer)

        return add

    def reserve(self, request: Request, run: ServedRun, numbers: int) -> None:
        """Count the memory of an answer with so many numbers; refuse it if that is too much."""
        itemsize, npy = np.dtype(run.model.spec.training.dtype).itemsize, wire.wants_npy(request)
        size = memory.check_answer(numbers, itemsize=itemsize, npy=npy, most=self.limits.answer)
        request.scope[memory.ACCOUNT].add(size)

    def _given(self, lead: str) -> dict[str, Any]:
        """Return the OpenAPI schema of examples in a request; `lead` names their first axes."""
        axes, limits = self.catalogue.axes, self.catalogue.limits
        if axes is None:
            return reference.any_array(lead)
        return array((*lead, *axes), sizes=self.catalogue.sizes(), limits=limits)

    def decoded(self, lead: str) -> dict[str, Any]:
        """Return the OpenAPI schema of the decoder's mean examples in an answer.

        Args:
            lead: names of the axes before those of one example, one letter each.
        """
        axes = self.catalogue.axes if self.catalogue.decodes_examples else None
        return reference.any_array(lead) if axes is None else array((*lead, *axes))

    async def batched(
        self, compute: Callable[[ExplorableModel, Array], Answer], run: ServedRun, rows: Array
    ) -> Answer:
        """Return ``compute(run.model, rows)``.

        It may be computed in one pass with other requests for the same run and function.
        """
        return await self.batcher.rows((run.name, compute), partial(compute, run.model), rows)


def _add_batch_routes(routes: _Routes) -> None:
    """Add the routes that answer for many examples, latent vectors or prior samples at a time."""
    limits, images = routes.limits, routes.decoded("B")
    moments = {
        "weights": array("BK"),
        "mean": array("BD"),
        "means": array("BKD"),
        "variances": array("BKD"),
        "covariances": {"description": "(B, K, D, D), or null if all are diagonal"},
        "exact": {"type": "boolean", "description": "false if variances are estimated from samples"},
    }

    @routes.post("/posterior", "images", {}, moments, count=memory.of_posterior)
    async def posterior(run: ServedRun, x: Array) -> Answer:
        """Mixing weights, component means and variances, and the overall mean of q(z | x)."""
        return await routes.batched(answers.posterior, run, x)

    decoded = {"weights": array("BK"), "images": images, "components": routes.decoded("BK")}

    @routes.post("/reconstruct", "images", {}, decoded, npy="images", count=memory.of_reconstruct)
    async def reconstruct(run: ServedRun, x: Array) -> Answer:
        """Examples decoded at the mean of q(z | x) (.npy has only these) and of each component."""
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

    @routes.post("/decode", "z", {}, {"images": images}, npy="images", count=memory.of_decode)
    async def decode(run: ServedRun, z: Array) -> Answer:
        """The mean examples E[x | z] of latent vectors z."""
        return await routes.batched(answers.decode, run, z)

    drawing = {"count": Integer(16, 1, limits.images), "seed": Integer(-1, -1, LARGEST)}
    drawn = {"images": images, "z": array("BD"), "seed": WHOLE}

    @routes.post("/sample", None, drawing, drawn, npy="images", count=memory.of_sample)
    async def sample(run: ServedRun, count: int, seed: int) -> Answer:
        """Mean examples E[x | z] of draws z from the prior; the seed -1 means a random seed."""
        seed = seed if seed >= 0 else secrets.randbelow(LARGEST)
        z = answers.prior(run.model, count, seed)
        return {**await routes.batched(answers.decode, run, z), "z": z, "seed": seed}


def _add_image_routes(routes: _Routes) -> None:
    """Add the routes that explain one example and that interpolate between two examples."""
    limits = routes.limits
    explaining = {"steps": Integer(4, 0, limits.steps), "samples": Integer(100, 1, 1000)}
    explaining |= {"grid": Integer(80, 8, limits.grid), "seed": SEED}
    explained = {"mean": array("D"), "reconstruction": routes.decoded(""), "components": LIST}
    explained |= {"plane": OBJECT, "bounds": OBJECT, "refinement": LIST}

    @routes.post("/explain", "image", explaining, explained, count=memory.of_explain)
    async def explain_image(run: ServedRun, x: Array, **fields: int) -> Answer:
        """q(z | x) of one example: components, densities on a plane, bounds, Gauss-Newton steps."""
        cost = fields["grid"] ** 2 + (fields["steps"] + 2) * fields["samples"]
        return await routes.batcher.alone(partial(explain, run.model, x, **fields), cost=cost)

    line = {"steps": Integer(9, 2, limits.path)}
    points = {"z": array("ND"), "images": routes.decoded("N")}

    @routes.post("/interpolate", "images", line, points, npy="images", count=memory.of_interpolate)
    async def interpolate_images(run: ServedRun, x: Array, steps: int) -> Answer:
        """Examples decoded along the straight line between the posterior means of two examples."""
        if len(x) != 2:
            raise Refused(422, f"two examples are needed, got {len(x)}")
        work = partial(interpolate, run.model, x, steps=steps)
        return await routes.batcher.alone(work, cost=steps)


def _add_information(routes: _Routes) -> None:
    """Add the routes that list the runs, give their test examples, and tell the server's state."""
    app, catalogue, limits = routes.app, routes.catalogue, routes.limits
    listed = {"runs": LIST, "default": TEXT}

    @app.get("/runs", response_class=Response, responses=reference.responses("the runs", listed))
    async def runs(request: Request) -> Response:
        """The runs of this server, and the name of the default run."""
        described = [run.describe() for run in catalogue.runs.values()]
        return respond(request, {"runs": described, "default": catalogue.default})

    paging = {"start": Integer(0, 0, LARGEST), "count": Integer(24, 1, min(256, limits.images))}
    axes = catalogue.axes
    shown = reference.any_array("B") if axes is None else array(("B", *axes))
    part = {"total": WHOLE, "start": WHOLE, "images": shown}

    @app.get(
        "/runs/{run}/images",
        response_class=Response,
        responses=reference.responses("some test examples", part, npy=True),
        openapi_extra={"parameters": reference.parameters(paging)},
    )
    async def test_images(request: Request, run: str) -> Response:
        """Test examples of a run. Its data must be on this machine; they are never downloaded."""
        given = wire.read_fields(dict(request.query_params), paging)
        chosen = catalogue.find(run)
        routes.reserve(request, chosen, given["count"] * math.prod(chosen.model.spec.shape))
        found = await asyncio.to_thread(chosen.test_images, given["start"], given["count"])
        return respond(request, found, run=chosen.name, array="images")

    state = {"status": TEXT, "version": TEXT, "waiting": WHOLE, "answered": WHOLE, "passes": WHOLE}

    @app.get("/health", response_class=Response, responses=reference.responses("running", state))
    async def health(request: Request) -> Response:
        """Numbers of requests that wait, of answered requests, and of passes through a model."""
        return respond(request, {"status": "ok", "version": __version__, **routes.batcher.state()})


def _add_page(app: FastAPI) -> None:
    """Add routes for the web page, its files and the page ``/docs``.

    The files are read once, when the server starts. No other file can be requested.
    """
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
