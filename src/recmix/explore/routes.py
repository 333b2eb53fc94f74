"""The class `Routes`, which adds POST routes to the explorer's web application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, Request, Response

from recmix.explore import memory, reference, wire
from recmix.explore.batcher import Answer, Batcher
from recmix.explore.catalogue import LARGEST_LATENT, Catalogue, ExplorableModel, ServedRun
from recmix.explore.reference import array
from recmix.explore.text_routes import TextAnswers
from recmix.explore.wire import TEXT_FIELDS, Array, Integer, Limits, Refused, Texts, respond

__all__ = ["TEXT", "Routes"]

TOO_LARGE = (
    "the model gives results that are not finite for these values: give values like those of its data"
)
LEADING = {"images": "B", "image": ""}
"""Fields of a request that hold examples: names of the axes before those of one example."""
TEXT = {"type": "string"}
"""The OpenAPI schema of a text."""

Compute = Callable[..., Awaitable[Answer]]
"""A function that computes the answer of a route.

Its arguments are the run, the array of the request if the route takes one, and the integer fields
of the request by name.
"""


@dataclass(frozen=True)
class Routes:
    """Adds POST routes to the explorer's web application. They compute answers with trained models."""

    app: FastAPI
    catalogue: Catalogue
    batcher: Batcher  # runs the models in one thread
    limits: Limits
    texts: TextAnswers  # computes the answers for runs whose examples are texts

    def post(
        self,
        path: str,
        takes: str | None,
        integers: Mapping[str, Integer],
        gives: Mapping[str, Any],
        npy: str | None = None,
        for_texts: Compute | None = None,
    ) -> Callable[[Compute], None]:
        """Make a decorator that adds a POST route.

        The route checks the request, calls the decorated function, and sends what that function
        returns. The function's docstring is the description of the route for users.

        Args:
            path: the path of the route, such as ``/decode``.
            takes: the field of the request with the input: ``images``, ``image`` or ``z`` for an array.
                For a route that works only for models of texts, it is ``texts`` or ``text``. None if
                requests have no such field. Texts are converted to examples, but for ``texts``.
            integers: the integer fields of the request, with their defaults and limits.
            gives: the OpenAPI schema of each field of the answer.
            npy: the field of the answer that a client can also get as a ``.npy`` file, if any.
            for_texts: the function that computes the answer if the examples of the model are texts; by
                default the decorated function. The field ``problems`` is added to the answer.
        """
        runs = list(self.catalogue.runs)
        arrays: dict[str, Any] = {}
        if takes == "z":
            limits = (-LARGEST_LATENT, LARGEST_LATENT)
            arrays[takes] = array("BD", sizes=self.catalogue.sizes(), limits=limits)
        elif takes in LEADING and self.catalogue.array_runs:
            arrays[takes] = self.examples(LEADING[takes], given=True)
        names = TEXT_FIELDS.get(takes or "", ()) if self.catalogue.has_texts else ()
        written = reference.text_fields(names, self.limits.texts, self.limits.characters)
        about = reference.responses(
            "the answer",
            {"run": TEXT, **gives},
            npy=bool(npy),
            required=not (for_texts and self.catalogue.has_texts),
        )

        def add(compute: Compute) -> None:
            async def answer(request: Request) -> Response:
                fields, rows = await wire.read_request(request, takes, integers)
                run = self.catalogue.find(fields.pop("run"))
                of_texts = run.vocabulary is not None
                if isinstance(rows, Texts):
                    run.needed_vocabulary()
                elif takes in LEADING:
                    run.refuse_arrays()
                if takes is not None and not isinstance(rows, Texts):
                    rows = run.check(takes, rows, self.limits.images)
                size = 0 if takes is None else len(rows)
                self.reserve(request, run, memory.numbers_in(path, run, size, fields))
                problems: Answer = {}
                if isinstance(rows, Texts) and takes != "texts":
                    rows, each = await self.texts.read(run, rows)
                    problems = {"problems": each if takes == "images" else each[0]}
                given = [] if takes is None else [rows]
                work = for_texts if of_texts and for_texts else compute
                try:
                    found = await work(run, *given, **fields)
                except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                    raise Refused(422, TOO_LARGE) from None
                answered = {**found, **problems}
                return respond(request, answered, run=run.name, array=None if of_texts else npy)

            self.app.post(
                path,
                name=compute.__name__,
                description=compute.__doc__,
                response_class=Response,
                responses=about,
                openapi_extra={
                    "requestBody": reference.request_body(arrays, integers, runs, texts=written),
                    "parameters": reference.parameters(integers, runs),
                },
            )(answer)

        return add

    def reserve(self, request: Request, run: ServedRun, numbers: int) -> None:
        """Reserve memory for an answer that has `numbers` numbers.

        Raise `Refused` if the answer is too large, or if requests and answers use too much memory.
        """
        itemsize, npy = np.dtype(run.model.spec.training.dtype).itemsize, wire.wants_npy(request)
        size = memory.check_answer(numbers, itemsize=itemsize, npy=npy, most=self.limits.answer)
        request.scope[memory.ACCOUNT].add(size)

    def examples(self, lead: str, *, given: bool = False) -> dict[str, Any]:
        """Return the OpenAPI schema of an array of examples.

        Args:
            lead: names of the axes before the axes of one example, one letter each.
            given: whether clients send the array in a request. The schema then has the sizes of the
                axes and the limits of the values.
        """
        axes = self.catalogue.axes
        if axes is None:
            return reference.any_array(lead)
        if not given:
            return array((*lead, *axes))
        return array((*lead, *axes), sizes=self.catalogue.sizes(), limits=self.catalogue.limits)

    def decoded(self, lead: str) -> dict[str, Any]:
        """Return the OpenAPI schema of an array of decoded examples.

        The letters of `lead` name the axes before the axes of one example.
        """
        return self.examples(lead) if self.catalogue.decodes_examples else reference.any_array(lead)

    async def batched(
        self, compute: Callable[[ExplorableModel, Array], Answer], run: ServedRun, rows: Array
    ) -> Answer:
        """Return ``compute(run.model, rows)``, the answer to a request, as {name: value}.

        Waiting requests for the same model and function may be computed together in one batch.
        """
        return await self.batcher.rows((run.name, compute), partial(compute, run.model), rows)
