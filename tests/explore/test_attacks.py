"""Clients that ask for too much, send too slowly or do not read: others are still served."""

import asyncio
import json
import socket
import threading
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest
import uvicorn
from cases.explore import NPY, app_of, ask, ask_together, digits, npy, save

from recmix.explore.batcher import Batcher
from recmix.explore.connection import Connection
from recmix.explore.memory import Account, Memory
from recmix.explore.wire import Limits, Refused

HEADERS = {"content-type": NPY}
LATENT = 30


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A run whose posteriors have full covariances: a large answer for a small request."""
    return save(tmp_path_factory.mktemp("runs") / "full", "full", latent=LATENT)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return save(tmp_path_factory.mktemp("runs") / "rme", latent=3, order=2)


def post(app, path, count):
    return ask(app, "POST", path, content=npy(digits(count)), headers=HEADERS)


# --- large answers ------------------------------------------------------------------------------------


def test_answer_that_would_be_too_large_is_refused_before_it_is_computed(full):
    app = app_of(full, limits=Limits(answer=200_000))
    refused = post(app, "/posterior", 16)
    numbers = 16 * (1 + LATENT + 2 * LATENT + LATENT**2)
    assert refused.status_code == 413
    for words in (f"{numbers} numbers", f"{25 * numbers} bytes", "at most 200000", "fewer examples"):
        assert words in refused.json()["error"]
    assert ask(app, "GET", "/health").json()["passes"] == 0
    assert post(app, "/posterior", 4).status_code == 200
    assert app.memory.total == 0


def test_answer_with_test_images_is_limited(full):
    app = app_of(full, limits=Limits(answer=10_000))
    assert ask(app, "GET", "/runs/full/images?count=100").status_code == 413
    assert ask(app, "GET", "/runs/full/images?count=5").status_code == 200


@pytest.mark.parametrize("run", ["full", "mixture"])
@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/posterior", {"images": 3}),
        ("/reconstruct", {"images": 3}),
        ("/decode", {"z": 3}),
        ("/sample", {"count": 3}),
        ("/interpolate", {"images": 2, "steps": 5}),
        ("/explain", {"image": 1, "grid": 40}),
    ],
)
def test_estimated_size_is_at_least_the_size_of_the_answer(run, path, content, request, monkeypatch):
    app = app_of(request.getfixturevalue(run))
    latent = ask(app, "GET", "/runs").json()["runs"][0]["latent"]
    content = dict(content)
    if "images" in content:
        content["images"] = digits(content["images"]).tolist()
    elif "z" in content:
        content["z"] = np.random.default_rng(0).normal(size=(content["z"], latent)).tolist()
    elif "image" in content:
        content["image"] = digits(1)[0].tolist()
    counted, add = [], Account.add

    def record(account, size):
        counted.append(size)
        add(account, size)

    monkeypatch.setattr(Account, "add", record)
    answer = ask(app, "POST", path, json=content)
    assert answer.status_code == 200, answer.text
    estimate, names = counted[-1], 2000  # names of fields, and texts
    assert len(answer.content) - names <= estimate <= 6 * len(answer.content)


def test_answers_that_wait_are_counted(full):
    each = 25 * 4 * (1 + LATENT + 2 * LATENT + LATENT**2)
    app = app_of(full, limits=Limits(held_by_client=3 * each))
    request = ("POST", "/posterior", {"content": npy(digits(4)), "headers": HEADERS})
    found = ask_together(app, [request] * 8)
    assert {answer.status_code for answer in found} == {200, 429}
    message = next(answer for answer in found if answer.status_code == 429).json()["error"]
    assert f"at most {3 * each} are allowed" in message
    assert app.memory.total == 0


def test_one_client_cannot_take_all_memory():
    memory = Memory(Limits(held=100, held_by_client=60))
    first, second = Account(memory, "10.0.0.1"), Account(memory, "10.0.0.2")
    first.add(60)
    with pytest.raises(Refused, match="60 bytes of this client's requests"):
        Account(memory, "10.0.0.1").add(1)
    second.add(40)
    with pytest.raises(Refused, match="100 bytes of all requests"):
        second.add(1)
    first.close()
    second.add(1)
    second.close()
    assert memory.total == 0
    assert not memory.by_client


# --- connections --------------------------------------------------------------------------------------


class Impatient(Connection):
    HEADER_SECONDS = 0.3
    UNREAD_SECONDS = 0.3
    PER_ADDRESS = 6


class Patient(Connection):
    HEADER_SECONDS = 60.0
    PER_ADDRESS = 6


@asynccontextmanager
async def serving(app, kind, **options):
    """The port of a server in this event loop; it sends through small buffers."""
    config = uvicorn.Config(app, http=kind, ws="none", log_level="error", **options)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        running = asyncio.ensure_future(server._serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        yield listening.getsockname()[1], server.server_state.connections
        server.should_exit = server.force_exit = True
        await running


async def connect(port, content=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**12)
    writer.write(content)
    await writer.drain()
    return reader, writer


async def health(port):
    """Status of /health over a new connection, within two seconds."""
    async with asyncio.timeout(2):
        request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        reader, writer = await connect(port, request)
        line = await reader.readline()
        writer.close()
        return int(line.split()[1])


async def until(condition, seconds=5.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


HALF = b"GET /health HTTP/1.1\r\nHost: loc"


@pytest.mark.parametrize("options", [{}, {"limit_concurrency": 4}])
def test_half_sent_headers_do_not_block_other_clients(mixture, options):
    async def go():
        async with serving(app_of(mixture), Patient, **options) as (port, connections):
            held = [await connect(port, HALF) for _ in range(30)]
            assert await health(port) == 200
            assert len(connections) <= 6
            for _, writer in held:
                writer.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    "content",
    [b"", HALF, b"\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + HALF],
    ids=["silent", "half", "blank", "second"],
)
def test_connection_without_a_complete_header_is_closed(mixture, content):
    async def go():
        async with serving(app_of(mixture), Impatient, timeout_keep_alive=1) as (port, connections):
            _, writer = await connect(port, content)
            await until(lambda: connections)
            if content.endswith(HALF):  # a client that goes on slowly
                for _ in range(4):
                    await asyncio.sleep(0.05)
                    writer.write(b"a")
            await until(lambda: not connections, 2.0)
            writer.close()
            assert await health(port) == 200

    asyncio.run(go())


def test_blank_lines_between_requests_do_not_keep_a_connection(mixture):
    async def go():
        async with serving(app_of(mixture), Impatient) as (port, connections):
            request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
            reader, writer = await connect(port, request)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"\r\n")
            await until(lambda: not connections, 2.0)
            writer.close()

    asyncio.run(go())


def test_large_header_is_refused(mixture):
    async def go():
        async with serving(app_of(mixture), Patient) as (port, connections):
            _, writer = await connect(port)
            await until(lambda: connections)
            with pytest.raises(ConnectionError):
                for _ in range(500):
                    writer.write(b"GET /" + b"a" * 2**16)
                    await writer.drain()
            assert not connections

    asyncio.run(go())


def test_busy_connections_of_one_address_are_limited(mixture):
    async def go():
        release = asyncio.Event()

        async def slow(scope, receive, send):
            if scope["type"] == "http":
                await release.wait()
                await send({"type": "http.response.start", "status": 200})
                await send({"type": "http.response.body"})

        async with serving(slow, Patient, lifespan="off") as (port, connections):
            request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
            held = [await connect(port, request) for _ in range(6)]
            await until(lambda: len(connections) == 6 and not any(one._idle for one in connections))
            assert await health(port) == 503
            release.set()
            for reader, writer in held:
                assert b"200" in await reader.readline()  # no running request was closed
                writer.close()

    asyncio.run(go())


def test_unread_answers_are_counted_until_their_connections_are_closed(full):
    each = 25 * 64 * (1 + LATENT + 2 * LATENT + LATENT**2)
    app = app_of(full, limits=Limits(held_by_client=int(2.5 * each)))
    body = npy(digits(64))
    head = f"POST /posterior HTTP/1.1\r\nHost: localhost\r\nContent-Type: {NPY}\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    class Slow(Impatient):
        UNREAD_SECONDS = 1.0

    def unread(port):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(request)
        return client

    async def go():
        async with serving(app, Slow) as (port, connections):
            clients = [await asyncio.to_thread(unread, port) for _ in range(2)]
            await until(lambda: sum(one.flow.write_paused for one in connections) == 2)
            assert app.memory.total > 2 * each  # the answers are computed, and still counted
            reader, writer = await connect(port, request)
            assert b"429" in await reader.readline()
            writer.close()
            await until(lambda: app.memory.total == 0)
            assert not any(one.flow.write_paused for one in connections)
            reader, writer = await connect(port, request)
            header = await reader.readuntil(b"\r\n\r\n")
            length = int(header.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            found = json.loads(await reader.readexactly(length))  # sent in many pieces
            assert np.shape(found["covariances"]) == (64, 1, LATENT, LATENT)
            for one in (*clients, writer):
                one.close()

    asyncio.run(go())


# --- .npy header --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", ["0, 99999999999999999999", "99999999999999999999, 0", "0, " * 7 + "9"]
)
def test_npy_header_with_a_side_of_zero_is_refused(mixture, shape):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}".encode()
    body = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    answer = ask(app_of(mixture), "POST", "/posterior", content=body, headers=HEADERS)
    assert answer.status_code == 422
    assert "no numbers" in answer.json()["error"]


# --- fairness -----------------------------------------------------------------------------------------


def order(costs, *, queue=256, late=()):
    """Order in which requests of these costs are computed; the first runs until all others wait.

    The requests with the costs `late` come one by one, each when the one before it is computed.
    Requests are numbered in the order of their coming. A request that is refused is left out.
    """
    go, computed = threading.Event(), []
    batcher = Batcher(queue=queue)

    def work(number):
        go.wait(10)
        computed.append(number)
        return {}

    async def run():
        def start(number, cost):
            return asyncio.ensure_future(batcher.alone(lambda: work(number), cost=cost))

        tasks = [start(number, cost) for number, cost in enumerate(costs)]
        await asyncio.sleep(0.02)
        go.set()
        for number, cost in enumerate(late, len(costs)):
            await start(number, cost)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        return [one.status for one in found if isinstance(one, Refused)]

    refused = asyncio.run(run())
    batcher.close()
    return computed, refused


def test_cheap_request_overtakes_expensive_ones():
    computed, _ = order([1000] * 50 + [1])
    assert computed[:2] == [0, 50]
    assert computed[2:] == list(range(1, 50))  # equal costs: the oldest first


def test_expensive_request_is_computed_under_a_steady_load_of_cheap_ones():
    computed, _ = order([1, 20, 1], late=[1] * 60)
    assert computed.index(1) < 40


def test_full_queue_refuses_the_most_expensive_request():
    computed, refused = order([1000] * 4 + [1], queue=3)
    assert computed == [0, 4, 1, 2]
    assert refused == [429]


def test_score_of_one_image_does_not_wait_for_expensive_scores(mixture):
    app, done = app_of(mixture), []
    dear = ("POST", "/score?samples=500", npy(digits(10)))
    cheap = ("POST", "/posterior", npy(digits(1)))

    async def go():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

            async def send(name, method, path, content):
                answer = await client.request(method, path, content=content, headers=HEADERS)
                done.append((name, answer.status_code))

            await asyncio.gather(*(send("dear", *dear) for _ in range(8)), send("cheap", *cheap))

    asyncio.run(go())
    assert ("cheap", 200) in done[:2]
    assert done.count(("dear", 200)) == 8
