"""The batcher: who goes together, in what order, and what happens to the others."""

import asyncio
import threading

import numpy as np
import pytest

from recmix.explore.batches import Batcher
from recmix.explore.wire import Refused


class Model:
    """Doubles rows; holds its first call until it is let go."""

    def __init__(self):
        self.sizes = []
        self.go = threading.Event()
        self.threads = set()

    def __call__(self, rows):
        self.threads.add(threading.current_thread().name)
        self.sizes.append(len(rows))
        self.go.wait(10)
        if (rows < 0).any():
            raise ValueError("negative")
        return {"twice": 2 * rows, "kept": "as it is"}


def rows(*values):
    return np.array(values, float)[:, None]


async def together(batcher, asked, model):
    """Ask in this order, the first alone in the model until all others wait."""
    tasks = [asyncio.ensure_future(batcher.rows(kind, model, r)) for kind, r in asked]
    await asyncio.sleep(0.02)
    model.go.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def run(asked, **options):
    model, batcher = Model(), Batcher(**options)
    found = asyncio.run(together(batcher, asked, model))
    batcher.close()
    assert len(model.threads) <= 1
    return found, model.sizes, batcher


def test_what_waits_goes_together_by_kind_and_in_order():
    asked = [("a", rows(0)), ("a", rows(1)), ("b", rows(2)), ("a", rows(3, 4)), ("b", rows(5))]
    found, sizes, batcher = run(asked)
    assert sizes == [1, 3, 2]
    for (_, given), answer in zip(asked, found, strict=True):
        assert answer["twice"].tolist() == (2 * given).tolist()
        assert answer["kept"] == "as it is"
    assert batcher.state() == {"waiting": 0, "answered": 5, "passes": 3}


def test_a_pass_has_at_most_so_many_rows():
    _, sizes, _ = run([("a", rows(*range(n))) for n in (1, 3, 2, 1, 9)], most=4)
    assert sizes == [1, 4, 2, 9]  # 3 + 1, then 2; one that is too large by itself goes by itself


def test_without_batching_everyone_goes_alone():
    _, sizes, _ = run([("a", rows(1))] * 5, most=0)
    assert sizes == [1] * 5


def test_an_error_reaches_those_of_its_pass_and_nobody_else():
    found, _, batcher = run([("a", rows(1)), ("a", rows(-1)), ("b", rows(2))])
    assert found[0]["twice"].tolist() == [[2]]
    assert isinstance(found[1], ValueError)
    assert found[2]["twice"].tolist() == [[4]]
    assert batcher.state()["waiting"] == 0


def test_too_many_are_refused():
    found, _, _ = run([("a", rows(i)) for i in range(5)], queue=2)
    refused = [one for one in found if isinstance(one, Refused)]
    assert [one.status for one in refused] == [429, 429]  # one computes, two wait


def test_what_nobody_waits_for_any_more_is_not_computed():
    async def go():
        model, batcher = Model(), Batcher()
        first = asyncio.ensure_future(batcher.rows("a", model, rows(0)))
        gone = asyncio.ensure_future(batcher.rows("a", model, rows(1)))
        last = asyncio.ensure_future(batcher.rows("b", model, rows(2)))
        await asyncio.sleep(0.02)
        gone.cancel()
        await asyncio.sleep(0)
        model.go.set()
        await asyncio.gather(first, last)
        with pytest.raises(asyncio.CancelledError):
            await gone
        batcher.close()
        return model.sizes

    assert asyncio.run(go()) == [1, 1]


def test_other_work_has_the_same_thread():
    async def go():
        seen = []
        batcher = Batcher(begin=lambda: seen.append(threading.current_thread().name))
        found = await batcher.alone(lambda: {"name": threading.current_thread().name})
        batcher.close()
        return found["name"], seen

    name, seen = asyncio.run(go())
    assert seen == [name]
