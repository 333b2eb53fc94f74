"""The routes of the explorer: what is asked, checked, handed to the model's thread and sent back."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any

import torch
from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from recmix._version import __version__
from recmix.explore import answers, reference
from recmix.explore.batches import Batcher
from recmix.explore.exchange import add_refusals, asked, few, send
from recmix.explore.explain import explain, interpolate
from recmix.explore.guard import Guard, Keys
from recmix.explore.reference import array
from recmix.explore.shelf import FARTHEST, Shelf
from recmix.explore.wire import Limits, Refused, Whole, fields

__all__ = ["make_app"]

ABOUT = (
    "Trained models over HTTP. Images are (B, C, H, W) in [0, 1], as nested lists in JSON or as a .npy "
    "body (application/x-npy; there uint8 stands for value / 255) with the other fields in the address. "
    "Where the answer is one array, 'Accept: application/x-npy' gives it as .npy. Bounds are in nats, "
    "higher is better. The numbers are those of recmix.load(...)."
)
SEED = Whole(default=0, low=0, high=2**31 - 1)
PICTURES = ("images", "B", "C", "H", "W")
"""What a request gives."""
IMAGES = array("B", "C", "H", "W")
"""What an answer gives."""
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(
    shelf: Shelf, *, keys: Keys | None = None, limits: Limits | None = None, batching: bool = True
) -> ASGIApp:
    """The server's application.

    Args:
        shelf: the runs.
        keys: what a request must show; by default to come under a loopback name.
        limits: what it may cost.
        batching: put requests that wait together through the model at once.
    """
    limits = limits or Limits()
    # A new thread's convolutions take all cores until it is told what was told to this one.
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
    add_refusals(app)
    _add_model(app, shelf, batcher, limits)
    _add_looks(app, shelf, batcher, limits)
    _add_about(app, shelf, batcher, limits)
    _add_page(app)
    return Guard(app, keys=keys or Keys(), limits=limits)


Handler = Callable[[Request], Awaitable[Response]]


def _post(
    app: FastAPI,
    shelf: Shelf,
    path: str,
    *,
    rows: tuple[str, ...],
    numbers: Mapping[str, Whole],
    answer: Mapping[str, Any],
    npy: tuple[bool, bool] = (False, False),
) -> Callable[[Handler], Handler]:
    """A route for POST, described in full.

    Args:
        app: where it is added.
        shelf: for the names and sizes of its runs.
        path: its address.
        rows: name and axes of the array it takes, if any.
        numbers: the whole numbers it takes.
        answer: the fields of its answer.
        npy: whether body and answer may be ``.npy``.
    """
    given: dict[str, Any] = {}
    if rows:
        name, *axes = rows
        between = (-FARTHEST, FARTHEST) if name == "z" else (0, 1)
        given[name] = array(*axes, sizes=shelf.sizes(), between=between)
    names = list(shelf.runs)
    return app.post(
        path,
        response_class=Response,
        responses=reference.gives("as described", answer, npy=npy[1]),
        openapi_extra={
            "requestBody": reference.body(given, numbers, names, npy=npy[0]),
            "parameters": reference.parameters(numbers, names),
        },
    )


def _add_model(app: FastAPI, shelf: Shelf, batcher: Batcher, limits: Limits) -> None:
    """Posterior, reconstructions, scores, decoder and prior, for programs."""
    one_per_row = {"weights": array("B", "K"), "run": {"type": "string"}}
    moments = {
        **one_per_row,
        "mean": array("B", "D"),
        "means": array("B", "K", "D"),
        "variances": array("B", "K", "D"),
        "covariances": {"description": "(B, K, D, D), or null where all are diagonal"},
        "exact": {"type": "boolean", "description": "false where spreads are estimated from samples"},
    }

    @_post(app, shelf, "/posterior", rows=PICTURES, numbers={}, answer=moments, npy=(True, False))
    async def posterior(request: Request) -> Response:
        """Mixing weights, component means and spreads, and the overall mean of q(z | x)."""
        given, x = await asked(request, "images", {})
        run = shelf.find(given["run"])
        x = run.check(few(x, limits.images, "images"))
        work = partial(answers.posterior, run.fitted)
        return send(request, run.name, await batcher.rows((run.name, "posterior"), work, x))

    both = {**one_per_row, "images": IMAGES, "components": array("B", "K", "C", "H", "W")}

    @_post(app, shelf, "/reconstruct", rows=PICTURES, numbers={}, answer=both, npy=(True, True))
    async def reconstruct(request: Request) -> Response:
        """The image of the posterior mean, and of each component's mean (as .npy: the first alone)."""
        given, x = await asked(request, "images", {})
        run = shelf.find(given["run"])
        x = run.check(few(x, limits.images, "images"))
        work = partial(answers.reconstruct, run.fitted)
        found = await batcher.rows((run.name, "reconstruct"), work, x)
        return send(request, run.name, found, "images")

    scoring = {"samples": Whole(default=100, low=1, high=limits.samples), "seed": SEED}
    bounds = {"elbo": array("B"), "iwae": array("B"), "samples": {"type": "integer"}}

    @_post(app, shelf, "/score", rows=PICTURES, numbers=scoring, answer=bounds, npy=(True, False))
    async def score(request: Request) -> Response:
        """ELBO and IWAE of each image, from the same samples."""
        given, x = await asked(request, "images", scoring)
        run = shelf.find(given["run"])
        x = run.check(few(x, limits.images, "images"))
        if len(x) * given["samples"] > limits.decodings:
            raise Refused(
                413,
                f"{len(x)} images with {given['samples']} samples each are too many: at most "
                f"{limits.decodings} together; send fewer images at a time",
            )
        work = partial(answers.score, run.fitted, x, given["samples"], given["seed"])
        return send(request, run.name, await batcher.alone(work))

    @_post(
        app,
        shelf,
        "/decode",
        rows=("z", "B", "D"),
        numbers={},
        answer={"images": IMAGES},
        npy=(True, True),
    )
    async def decode(request: Request) -> Response:
        """The mean images of latent vectors z."""
        given, z = await asked(request, "z", {})
        run = shelf.find(given["run"])
        z = run.check_latent(few(z, limits.images, "vectors z"))
        work = partial(answers.decode, run.fitted)
        return send(request, run.name, await batcher.rows((run.name, "decode"), work, z), "images")

    drawing = {
        "count": Whole(default=16, low=1, high=limits.images),
        "seed": Whole(default=-1, low=-1, high=SEED.high),
    }
    drawn = {"images": IMAGES, "z": array("B", "D"), "seed": {"type": "integer"}}

    @_post(app, shelf, "/sample", rows=(), numbers=drawing, answer=drawn, npy=(False, True))
    async def sample(request: Request) -> Response:
        """Mean images of draws from the prior; a seed of -1 stands for any."""
        given, _ = await asked(request, None, drawing)
        run = shelf.find(given["run"])
        seed = given["seed"] if given["seed"] >= 0 else secrets.randbelow(SEED.high)
        z = answers.prior(run.fitted, given["count"], seed)
        work = partial(answers.decode, run.fitted)
        found = await batcher.rows((run.name, "decode"), work, z)
        return send(request, run.name, {**found, "z": z, "seed": seed}, "images")


def _add_looks(app: FastAPI, shelf: Shelf, batcher: Batcher, limits: Limits) -> None:
    """One image looked at closely, two joined by a line: for the page."""
    looking = {
        "steps": Whole(default=4, low=0, high=limits.steps),
        "samples": Whole(default=100, low=1, high=1000),
        "grid": Whole(default=80, low=8, high=limits.grid),
        "seed": SEED,
    }
    anything = {"type": "object"}
    several = {"type": "array", "items": anything}
    seen = {
        "mean": array("D"),
        "reconstruction": array("C", "H", "W"),
        "components": several,
        "plane": anything,
        "bounds": anything,
        "refinement": several,
    }

    @_post(app, shelf, "/explain", rows=("image", "C", "H", "W"), numbers=looking, answer=seen)
    async def explained(request: Request) -> Response:
        """One image: components, a plane of the latent space, bounds, refinement step by step."""
        given, image = await asked(request, "image", looking)
        run = shelf.find(given.pop("run"))
        x = run.check(image[None], "image")
        return send(request, run.name, await batcher.alone(partial(explain, run.fitted, x, **given)))

    walking = {"steps": Whole(default=9, low=2, high=limits.path)}
    along = {"z": array("N", "D"), "images": array("N", "C", "H", "W")}

    @_post(app, shelf, "/interpolate", rows=PICTURES, numbers=walking, answer=along, npy=(True, True))
    async def interpolated(request: Request) -> Response:
        """Images along the straight line between the posterior means of two images."""
        given, images = await asked(request, "images", walking)
        run = shelf.find(given["run"])
        x = run.check(few(images, 2, "images"))
        if len(x) != 2:
            raise Refused(422, f"two images are needed, got {len(x)}")
        work = partial(interpolate, run.fitted, x, steps=given["steps"])
        return send(request, run.name, await batcher.alone(work), "images")


def _add_about(app: FastAPI, shelf: Shelf, batcher: Batcher, limits: Limits) -> None:
    """What there is: runs, their images, the server itself."""
    listed = {"runs": {"type": "array", "items": {"type": "object"}}, "default": {"type": "string"}}

    @app.get("/runs", response_class=Response, responses=reference.gives("the runs", listed))
    async def runs(request: Request) -> Response:
        """The runs of this server, the first of which is the default."""
        about = [run.about() for run in shelf.runs.values()]
        return send(request, None, {"runs": about, "default": shelf.first})

    paging = {
        "start": Whole(default=0, low=0, high=2**31 - 1),
        "count": Whole(default=24, low=1, high=min(256, limits.images)),
    }
    part = {
        "total": {"type": "integer"},
        "start": {"type": "integer"},
        "images": IMAGES,
    }

    @app.get(
        "/runs/{run}/images",
        response_class=Response,
        responses=reference.gives("some test images", part, npy=True),
        openapi_extra={"parameters": reference.parameters(paging)},
    )
    async def images(request: Request, run: str) -> Response:
        """Test images of a run's data, if they are on this machine; they are never downloaded."""
        given = fields(dict(request.query_params), paging)
        shown = shelf.find(run)
        found = await asyncio.to_thread(shown.images, given["start"], given["count"])
        return send(request, shown.name, found, "images")

    alive = {"status": {"type": "string"}, "version": {"type": "string"}, "waiting": {"type": "integer"}}

    @app.get("/health", response_class=Response, responses=reference.gives("alive", alive))
    async def health(request: Request) -> Response:
        """Whether the server answers, how many requests wait, and were answered in how many passes."""
        return send(request, None, {"status": "ok", "version": __version__, **batcher.state()})


def _add_page(app: FastAPI) -> None:
    """The page, from the package's own folder; the names are fixed when the server starts."""
    folder = files("recmix.explore") / "page"

    def serve(name: str) -> Callable[[], Awaitable[Response]]:
        async def given() -> Response:
            content = (folder / name).read_bytes()
            return Response(content, media_type=KINDS[name[name.rindex(".") :]])

        return given

    for name in sorted(entry.name for entry in folder.iterdir()):
        if name[name.rfind(".") :] in KINDS:
            app.get("/" if name == "index.html" else f"/{name}", include_in_schema=False)(serve(name))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(reference.page(app.openapi()), media_type="text/html")
