"""A client that goes away: what it asked for is not computed any more."""

import asyncio

import httpx
from explore_case import NPY, app_of, ask, digits, npy, save


def test_what_no_one_waits_for_is_not_computed(tmp_path):
    app = app_of(save(tmp_path / "rme", order=2))
    sent = []

    async def leave():
        """One request whose client is gone once its body has been read."""
        coming = [{"type": "http.request", "body": npy(digits(1)), "more_body": False}]

        async def receive():
            return coming.pop() if coming else {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", NPY.encode())]
        scope = {"type": "http", "method": "POST", "path": "/posterior", "headers": headers}
        more = {"query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": ""}
        await app({**scope, **more, "raw_path": b"/posterior"}, receive, send)

    async def go():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            content, headers = npy(digits(4)), {"content-type": NPY}
            long = asyncio.ensure_future(
                client.post("/score?samples=5000", content=content, headers=headers)
            )
            while (await client.get("/health")).json()["passes"] < 1:
                await asyncio.sleep(0)
            for _ in range(5):
                await leave()
            assert not long.done()  # they did not wait for it
            assert (await long).status_code == 200
            return (await client.get("/health")).json()

    state = asyncio.run(go())
    assert (state["waiting"], state["passes"]) == (0, 1)
    assert sent == []
    assert app._held == 0
    x = {"images": digits(1).tolist()}
    assert ask(app, "POST", "/posterior", json=x).status_code == 200
