"""The batcher: which requests are computed together, in which order, and what happens to the others."""

import asyncio
import threading

import numpy as np
import pytest

from recmix.explore.batcher import Batcher
from recmix.explore.wire import Refused


class Model:
    """Doubles rows; its first call waits until `go` is set."""

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


def run(requests, **options):
    """Send requests in this order. The first is alone in the model until all others wait."""
    model, batcher = Model(), Batcher(**options)

    async def go():
        tasks = [asyncio.ensure_future(batcher.rows(kind, model, r)) for kind, r in requests]
        await asyncio.sleep(0.02)
        model.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(go())
    batcher.close()
    assert len(model.threads) <= 1
    return found, model.sizes, batcher


def test_waiting_requests_of_one_kind_are_computed_together_in_order():
    requests = [("a", rows(0)), ("a", rows(1)), ("b", rows(2)), ("a", rows(3, 4)), ("b", rows(5))]
    found, sizes, batcher = run(requests)
    assert sizes == [1, 3, 2]
    for (_, given), answer in zip(requests, found, strict=True):
        assert answer["twice"].tolist() == (2 * given).tolist()
        assert answer["kept"] == "as it is"
    assert batcher.state() == {"waiting": 0, "answered": 5, "passes": 3}


def test_number_of_rows_in_a_pass_is_limited():
    _, sizes, _ = run([("a", rows(*range(n))) for n in (1, 3, 2, 1, 9)], most=4)
    assert sizes == [1, 4, 2, 9]  # 3 + 1, then 2; a request above the limit is computed alone


def test_without_batching_every_request_is_computed_alone():
    _, sizes, _ = run([("a", rows(1))] * 5, most=0)
    assert sizes == [1] * 5


def test_error_reaches_only_the_requests_of_its_pass():
    found, _, batcher = run([("a", rows(1)), ("a", rows(-1)), ("b", rows(2))])
    assert found[0]["twice"].tolist() == [[2]]
    assert isinstance(found[1], ValueError)
    assert found[2]["twice"].tolist() == [[4]]
    assert batcher.state()["waiting"] == 0


def test_requests_beyond_the_queue_are_refused():
    found, _, _ = run([("a", rows(i)) for i in range(5)], queue=2)
    refused = [one for one in found if isinstance(one, Refused)]
    assert [one.status for one in refused] == [429, 429]  # one is computed, two wait


def test_cancelled_request_is_not_computed():
    async def go():
        model, batcher = Model(), Batcher()
        first, cancelled, last = (
            asyncio.ensure_future(batcher.rows(kind, model, rows(i))) for i, kind in enumerate("aab")
        )
        await asyncio.sleep(0.02)
        cancelled.cancel()
        await asyncio.sleep(0)
        model.go.set()
        await asyncio.gather(first, last)
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        batcher.close()
        return model.sizes

    assert asyncio.run(go()) == [1, 1]


def test_other_work_runs_in_the_same_thread():
    async def go():
        started = []
        batcher = Batcher(begin=lambda: started.append(threading.current_thread().name))
        found = await batcher.alone(lambda: {"name": threading.current_thread().name})
        batcher.close()
        return found["name"], started

    name, started = asyncio.run(go())
    assert started == [name]
