"""Compute the answers of the explorer's HTTP routes for models that were trained on texts."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from recmix.explore import answers, texts
from recmix.explore.batcher import Answer, Batcher
from recmix.explore.catalogue import ServedRun
from recmix.explore.drawing import HINT, can_draw, draw
from recmix.explore.explain import points_between
from recmix.explore.wire import Array, Limits, Refused, Texts

__all__ = ["TextAnswers"]

PIECE = 128
"""Number of test texts whose posterior means are computed at a time."""


class TextAnswers:
    """Computes the explorer's answers for models of texts. Most methods have the name of their route.

    Arguments of such a method are the model (`run`), the texts of the request as examples (`x`) or its
    latent vectors (`z`), and the integer fields by name. The result is the answer for the client,
    {field: value}.

    Args:
        batcher: runs the models in one thread.
        limits: the largest requests that are accepted.
    """

    def __init__(self, batcher: Batcher, limits: Limits) -> None:
        self.batcher = batcher
        self.limits = limits
        self._means: WeakKeyDictionary[ServedRun, Array] = WeakKeyDictionary()
        self._locks: WeakKeyDictionary[ServedRun, asyncio.Lock] = WeakKeyDictionary()
        self._drawing = asyncio.Semaphore(1)

    async def read(self, run: ServedRun, given: Texts) -> tuple[Array, list[list[str]]]:
        """Convert the B texts `given` to examples (B, ...), and list for each what is wrong with it.

        These problems are messages for the user, such as about unknown words. `Refused` is raised if a
        text cannot be read.
        """
        most, longest = self.limits.texts, self.limits.characters
        vocabulary = run.needed_vocabulary()
        return await asyncio.to_thread(texts.read_texts, vocabulary, given, most=most, longest=longest)

    async def reconstruct(self, run: ServedRun, x: Array) -> Answer:
        """Reconstruct the B texts x (B, ...) through q(z | x), which has K components.

        Returns:
            The mixing ``weights`` (B, K), the most likely ``texts`` at the mean of q, and
            ``components``: for each text, the most likely texts at the means of the K components.
        """
        work = partial(texts.reconstruct_texts, run.model)
        cost = len(x) * (1 + run.components)
        kind = (run.name, texts.reconstruct_texts)
        found = await self.batcher.rows(kind, work, x, cost=cost)
        parts = found["components"]
        several = await self._decode(run, parts.reshape(-1, *parts.shape[2:]))
        each = parts.shape[1]
        return {
            "weights": found["weights"],
            "texts": await self._decode(run, found["texts"]),
            "components": [several[i : i + each] for i in range(0, len(several), each)],
        }

    async def decode(self, run: ServedRun, z: Array) -> Answer:
        """Return the most likely text for each of the latent vectors z (B, D), as ``texts``."""

        def work(rows: Array) -> Answer:
            return {"tokens": texts.most_likely(run.model, rows)}

        found = await self.batcher.rows((run.name, "most likely texts"), work, z)
        return {"texts": await self._decode(run, found["tokens"])}

    async def explain(
        self, run: ServedRun, x: Array, steps: int, samples: int, grid: int, seed: int
    ) -> Answer:
        """Describe the posterior q(z | x) of the text x (1, ...); `docs/explorer.md` lists the fields.

        Unlike the answer for an image, the result has no densities on a plane. So `grid` has no effect.
        """
        vocabulary = run.needed_vocabulary()
        how: dict[str, Any] = {"steps": steps, "samples": samples, "seed": seed}
        work = partial(texts.explain_text, run.model, vocabulary, x, **how)
        return await self.batcher.alone(work, cost=(steps + 2) * samples)

    async def interpolate(self, run: ServedRun, x: Array, steps: int) -> Answer:
        """Decode points on the line between the posterior means of the two texts x (2, ...).

        Returns:
            The points ``z`` (steps, D), and the most likely text at each point as ``texts``.
        """
        if len(x) != 2:
            raise Refused(422, f"two texts are needed, got {len(x)}")

        def work() -> Answer:
            z = points_between(run.model, x, steps)
            return {"z": answers.to_array(z), "tokens": texts.most_likely(run.model, z)}

        found = await self.batcher.alone(work, cost=steps)
        decoded = await self._decode(run, found["tokens"])
        return {"z": found["z"], "texts": decoded}

    async def neighbours(self, run: ServedRun, x: Array, count: int) -> Answer:
        """Find the test texts whose posterior means are nearest to that of the text in the request.

        Returns:
            ``neighbours``: at most `count` mappings with ``index``, ``text`` and ``distance``; and
            ``searched``, the number of test texts that were compared.
        """
        known = await self._test_means(run)
        found = await self.batcher.alone(partial(texts.encoder_means, run.model, x))
        distances = np.sqrt(np.square(known - found["mean"][0]).sum(1))
        order = np.argsort(distances, kind="stable")[:count]
        shown = await asyncio.to_thread(lambda: run.test_examples[: len(known)])
        decoded = await self._decode(run, shown[order])
        near = zip(order.tolist(), decoded, distances[order].tolist(), strict=True)
        return {
            "neighbours": [{"index": i, "text": text, "distance": far} for i, text, far in near],
            "searched": len(known),
        }

    async def draw(self, run: ServedRun, given: Texts) -> Answer:
        """Draw molecules, given as SMILES strings, as SVG texts.

        A drawing is null if the text is not a valid molecule. If RDKit is missing, the field ``hint``
        says how to install it.
        """
        if not run.needed_vocabulary().molecules:
            raise Refused(422, f"{run.name} is no run of molecules: its texts cannot be drawn")
        texts.check_texts(given, most=self.limits.texts, longest=self.limits.characters)
        drawings = []
        async with self._drawing:  # one at a time: a drawing keeps the other threads from running
            for text in given:
                drawings.append(await asyncio.to_thread(draw, text))
        return {"drawings": drawings, "hint": None if can_draw() else HINT}

    async def _decode(self, run: ServedRun, tokens: Array) -> list[str]:
        return await asyncio.to_thread(run.needed_vocabulary().decode, tokens)

    async def _test_means(self, run: ServedRun) -> Array:
        """Return the posterior means (N, D) of the run's first test texts.

        They are computed only once, in several batches. Requests of other clients can be answered
        between two batches.
        """
        async with self._locks.setdefault(run, asyncio.Lock()):
            examples = await asyncio.to_thread(lambda: run.test_examples[: self.limits.searched])
            done = self._means.get(run, np.zeros((0, run.latent), np.float32))
            while len(done) < len(examples):
                piece = examples[len(done) : len(done) + PIECE]
                work = partial(texts.encoder_means, run.model, piece)
                found = await self.batcher.alone(work, cost=len(piece))
                done = self._means[run] = np.concatenate([done, found["mean"]])
        return done
