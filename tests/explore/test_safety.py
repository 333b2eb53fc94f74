"""Wrong, large, forged and broken requests are refused, and the server goes on."""

import asyncio
import gc
import json
import random
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import pytest
from cases.explore import NPY, app_of, ask, ask_together, digits, npy, save
from hypothesis import HealthCheck, Phase, given, settings

from recmix.explore import answers
from recmix.explore.guard import Access
from recmix.explore.wire import Limits, Refused, from_npy

HEADERS = {"content-type": NPY}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("runs") / "rme", latent=3, order=2)


@pytest.fixture(scope="module")
def app(folder):
    return app_of(folder)


def refused(answer, status, words):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert words in answer.json()["error"]


async def send_raw(app, path, headers, query, receive):
    """Statuses of the responses to one raw ASGI request."""
    statuses = []

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"query_string": query, "headers": headers, "http_version": "1.1", "scheme": "http"}
    scope |= {"server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2), "root_path": ""}
    await app(scope, receive, send)
    return statuses


X = [[[0.0] * 8] * 8]


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("/posterior", {"images": X[0]}, "flat vectors"),
        ("/posterior", {"images": [[[0.0] * 9] * 9]}, "expected 1x8x8"),
        ("/posterior", {"images": [[[[1e300] * 8] * 8]]}, "too large"),
        ("/posterior", {"images": [[1, 2], [3]]}, "is not one array"),
        ("/posterior", {"images": [["a"]]}, "numbers only"),
        ("/posterior", {"images": [[[[None] * 8] * 8]]}, "numbers only"),
        ("/posterior", {"images": "none"}, "nested lists"),
        ("/posterior", {"images": []}, "no examples"),
        ("/posterior", {}, "'images' is missing"),
        ("/posterior", [1], "expected an object"),
        ("/posterior", {"images": [X], "imagse": 1}, "did you mean"),
        ("/posterior", {"images": [X], "run": 3}, "name of a run"),
        ("/score", {"images": [X], "samples": 0}, "1 to 10000"),
        ("/score", {"images": [X], "samples": 1.5}, "whole number"),
        ("/score", {"images": [X], "samples": True}, "whole number"),
        ("/score", {"images": [X], "seed": -1}, "0 to"),
        ("/decode", {"z": [[0.0, 0.0]]}, "expected (B, 3)"),
        ("/decode", {"z": [[1e300, 0.0, 0.0]]}, "finite numbers between"),
        ("/decode", {"z": [[]]}, "expected (B, 3)"),
        ("/sample", {"count": 0}, "1 to 1024"),
        ("/explain", {"image": [X, X]}, "5 dimensions"),
        ("/explain", {"image": X, "steps": 9}, "0 to 8"),
        ("/explain", {"image": 3}, "nested lists"),
        ("/interpolate", {"images": [X]}, "two examples"),
    ],
)
def test_error_says_what_is_wrong(app, path, content, words):
    refused(ask(app, "POST", path, json=content), 422, words)


def test_body_that_is_not_json_is_refused(app):
    for body in (b"", b"{", b'{"images": NaN}', b'{"images": [[[[Infinity]]]]}', b"\xff", b"[" * 5000):
        answer = ask(app, "POST", "/posterior", content=body)
        assert answer.status_code == 422, body
        assert answer.json()["error"]
    refused(
        ask(app, "POST", "/posterior", content=b"a=b", headers={"content-type": "text/x"}), 415, "json"
    )
    refused(ask(app, "GET", "/posterior"), 405, "/docs")
    refused(ask(app, "GET", "/runs/rme/images?count=x"), 422, "whole number")


class Evil:
    def __reduce__(self):
        return (Path("/nowhere/evil").touch, ())


def header(text, version=1):
    wide = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(wide, "little") + text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x93NUMPY",
        npy(np.zeros((1, 1, 8, 8)))[:-1],
        npy(np.zeros((1, 1, 8, 8))) + b"0",
        header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999, 99999999, 8, 8), }"),
        header(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"),
        header(b"{'descr': '|O8', 'fortran_order': False, 'shape': (1,), }"),
        header(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }"),
        header(b"{'descr': '<U9', 'fortran_order': False, 'shape': (), }"),
        header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"),
        header(b"__import__('os').system('touch /nowhere')"),
        header(b"(" * 1000),
        header(b" " * 2000),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        npy(np.array([Evil()], dtype=object)),
        npy(np.full((1, 1, 8, 8), np.nan)),
        npy(np.full((1, 1, 8, 8), np.inf)),
        npy(np.zeros((1, 1, 8, 8), np.int64)),
        npy(np.zeros((1, 1, 8, 8), complex)),
        npy(np.zeros((0, 1, 8, 8))),
        npy(np.float64(3)),
    ],
)
def test_npy_without_images_is_refused(app, body):
    answer = ask(app, "POST", "/posterior", content=body, headers=HEADERS)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]


def test_npy_headers_of_other_programs_are_read():
    for version in (1, 2, 3):
        text = b"{'descr':'<f4','fortran_order':False,'shape':(2,1)}"
        assert from_npy(header(text, version) + bytes(8)).shape == (2, 1)
    assert from_npy(npy(np.array([True, False]))).dtype == bool
    assert from_npy(npy(np.float32(1.5))) == 1.5
    with pytest.raises(Refused, match="but 4 bytes follow"):
        from_npy(header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }") + bytes(4))


def test_requests_beyond_the_limits_are_refused(folder):
    app = app_of(folder, limits=Limits(body=20_000, images=4, samples=50, decodings=100, seconds=0.05))
    x = digits(5)

    async def trickle():
        for _ in range(50):
            yield b" " * 1000

    async def slow():
        yield b" "
        await asyncio.sleep(1)
        yield b" "

    refused(ask(app, "POST", "/posterior", content=b" " * 30_000), 413, "20000 bytes")
    refused(ask(app, "POST", "/posterior", content=trickle()), 413, "20000 bytes")
    refused(ask(app, "POST", "/posterior", content=slow()), 408, "0.05 s")
    refused(ask(app, "POST", "/posterior", content=npy(x), headers=HEADERS), 413, "at most 4")
    refused(ask(app, "POST", "/sample?count=5"), 422, "1 to 4")
    score = "/score?samples=40"
    refused(ask(app, "POST", score, content=npy(x[:3]), headers=HEADERS), 413, "100")
    assert ask(app, "POST", score, content=npy(x[:2]), headers=HEADERS).status_code == 200
    assert app.memory.total == 0


def test_full_server_refuses_requests_and_recovers(folder):
    app = app_of(folder, limits=Limits(queue=3, held=40_000))
    x = npy(digits(1))

    def crowd(count, content):
        request = ("POST", "/score?samples=3", {"content": content, "headers": HEADERS})
        return [answer.status_code for answer in ask_together(app, [request] * count)]

    found = crowd(20, x)
    assert set(found) == {200, 429}
    assert found.count(200) == 4  # one is computed, three wait
    found = crowd(6, npy(digits(60)))  # 15 kB each, of 40 kB
    assert set(found) == {200, 429}
    assert crowd(3, x) == [200] * 3
    assert app.memory.total == 0


def test_other_hosts_and_other_sites_are_refused(app):
    for host in ("127.0.0.1:8765", "localhost", "LOCALHOST:1", "[::1]:8765"):
        assert ask(app, "GET", "/health", headers={"host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", "", "[::2]"):
        refused(ask(app, "GET", "/health", headers={"host": host}), 403, "answers to")
    same = {"host": "127.0.0.1:8765", "origin": "http://127.0.0.1:8765"}
    assert ask(app, "POST", "/sample", headers=same).status_code == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9", "http://localhost:8765"):
        refused(ask(app, "POST", "/sample", headers={**same, "origin": origin}), 403, "other origins")
    site = {"host": "localhost", "sec-fetch-site": "cross-site"}
    refused(ask(app, "POST", "/sample", headers=site), 403, "other sites")
    twice = [("host", "localhost"), ("host", "evil.example")]
    refused(ask(app, "GET", "/health", headers=twice), 400, "twice")


def test_token_is_required(folder):
    app = app_of(folder, access=Access(token="secret99", hosts=None))
    for headers in ({}, {"authorization": "Bearer secret98"}, {"authorization": "Basic secret99"}):
        answer = ask(app, "GET", "/health", headers={"host": "model.example", **headers})
        refused(answer, 401, "token is needed")
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/?token=secret98", "/health?token=secret99", "/?token=", "/?" + "a&" * 50):
        assert ask(app, "GET", path).status_code == 401
    assert ask(app, "POST", "/?token=secret99").status_code == 401
    assert ask(app, "GET", "/health", headers={"authorization": "bearer secret99"}).status_code == 200
    welcome = ask(app, "GET", "/?token=secret99")
    assert welcome.status_code == 303
    assert welcome.headers["location"] == "/"
    cookie = welcome.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    kept = {"cookie": cookie.split(";")[0]}
    assert ask(app, "GET", "/", headers=kept).status_code == 200
    for wrong in ("recmix_None=secret9", 'recmix_None="', "=;;=", "\xff"):
        given = {"cookie": wrong.encode("latin-1")}
        assert ask(app, "GET", "/", headers=given).status_code == 401


def test_paths_outside_the_page_are_not_served(app):
    paths = ("/../wire.py", "/..%2fwire.py", "/page/index.html", "/runs/..%2f..%2fetc/images", "/%00")
    assert {ask(app, "GET", path).status_code for path in paths} == {404}
    refused(ask(app, "POST", "/sample?run=../../etc"), 404, "unknown run")


def test_failure_of_the_model_gives_status_500(folder, monkeypatch, caplog):
    app = app_of(folder)

    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(answers, "posterior", broken)
    x = npy(digits(1))
    answer = ask(app, "POST", "/posterior", content=x, headers=HEADERS)
    assert answer.status_code == 500
    assert "out of memory" not in answer.text
    assert "out of memory" in caplog.text
    assert ask(app, "POST", "/reconstruct", content=x, headers=HEADERS).status_code == 200


def test_request_of_a_client_that_disconnects_is_not_computed(folder):
    app = app_of(folder)
    headers = [(b"host", b"127.0.0.1"), (b"content-type", NPY.encode())]

    async def go():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            score = client.post("/score?samples=5000", content=npy(digits(4)), headers=HEADERS)
            long = asyncio.ensure_future(score)
            while (await client.get("/health")).json()["passes"] < 1:
                await asyncio.sleep(0)
            for _ in range(5):
                coming = [{"type": "http.request", "body": npy(digits(1)), "more_body": False}]

                async def receive(coming=coming):
                    return coming.pop() if coming else {"type": "http.disconnect"}

                assert await send_raw(app, "/posterior", headers, b"", receive) == []
            assert not long.done()  # they did not wait for it
            assert (await long).status_code == 200
            return (await client.get("/health")).json()

    state = asyncio.run(go())
    assert (state["waiting"], state["passes"]) == (0, 1)
    assert app.memory.total == 0
    x = {"images": digits(1).tolist()}
    assert ask(app, "POST", "/posterior", json=x).status_code == 200


# --- many requests ------------------------------------------------------------------------------------


def malformed(draw):
    """A random request with an error in it: path, headers, query and body."""
    path = draw.choice(
        ["/posterior", "/score", "/decode", "/sample", "/explain", "/interpolate", "/nowhere"]
    )
    good = draw.choice([npy(np.zeros((1, 1, 8, 8))), json.dumps({"images": [X], "samples": 2}).encode()])
    how = draw.randrange(6)
    if how == 0:
        body = draw.randbytes(draw.randrange(200))
    elif how == 1:
        body = good[: draw.randrange(len(good))]
    elif how == 2:
        where = draw.randrange(min(120, len(good)))
        body = good[:where] + draw.randbytes(1 + draw.randrange(4)) + good[where + 3 :]
    elif how == 3:
        body = json.dumps(
            {draw.choice(["images", "z", "image"]): draw.choice([None, {}, [[]], "a"])}
        ).encode()
    elif how == 4:
        body = b"[" * draw.randrange(3000)
    else:
        body = b'{"images": [[[[1e999]]]], "samples": ' + b"9" * draw.randrange(400) + b"}"
    kind = draw.choice([b"application/json", b"application/x-npy", b"text/html", draw.randbytes(5)])
    headers = [(b"host", b"localhost"), (b"content-type", kind)]
    if draw.random() < 0.1:
        headers.append((b"content-length", draw.randbytes(3)))
    query = draw.choice(
        [b"", b"run=%ff", b"samples=-1", b"steps=99999999999999999999999", draw.randbytes(9)]
    )
    return path, headers, query, body


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the resident set is read from /proc")
def test_ten_thousand_malformed_requests_are_answered(app):
    draw = random.Random(0)
    seen = Counter()

    async def many(count):
        for _ in range(count):
            *request, body = malformed(draw)

            async def receive(body=body):
                return {"type": "http.request", "body": body, "more_body": False}

            seen.update(await send_raw(app, *request, receive))

    asyncio.run(many(1000))
    before = resident()
    asyncio.run(many(9000))
    assert resident() - before < 16 * 2**20
    assert seen.total() == 10_000
    assert set(seen) <= {200, 400, 404, 413, 415, 422}
    assert seen[422] > 2000
    assert ask(app, "GET", "/health").json()["waiting"] == 0
    x = {"images": digits(1).tolist()}
    assert ask(app, "POST", "/posterior", json=x).status_code == 200


def test_requests_generated_from_the_openapi_document_are_answered(folder):
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis.specs.openapi import checks

    conformance = [checks.response_schema_conformance, checks.status_code_conformance]
    conformance.append(schemathesis.checks.not_a_server_error)
    app = app_of(folder, access=Access(hosts=None))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    seen = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in schemathesis.GenerationMode:
            if mode is schemathesis.GenerationMode.NEGATIVE and operation.path in ("/runs", "/health"):
                continue  # they take no input

            @given(operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=6,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def probe(case):
                answer = case.call()
                case.validate_response(answer, checks=conformance)
                seen[answer.status_code] += 1

            probe()
    assert seen.total() > 80
    assert seen[200] > 30
    assert seen[422] > 20
