"""`recmix explore` as a process: what it prints, how it stops, and errors at its start."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from cases.explore import NPY, digits, npy, save

import recmix
from recmix.cli import main
from recmix.errors import ConfigError
from recmix.explore.serve import listen, serve

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "RECMIX_TOKEN"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("runs") / "rme", latent=3, order=2)


@contextmanager
def server(folder, *words, **more):
    command = [sys.executable, "-m", "recmix.cli", "explore", str(folder), "--port", "0", "--no-browser"]
    process = subprocess.Popen(
        [*command, "--device", "cpu", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **more},
    )
    try:
        line = process.stdout.readline()
        assert "http://" in line, process.stderr.read()
        yield process, line
    finally:
        process.kill()
        process.communicate()


def port_of(line):
    return int(line.split("http://")[1].split(":")[1].split("/")[0])


def ask(port, method, path, body=None, headers=None):
    """Status and body of one request over the network."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_server_finishes_running_requests_when_it_stops(folder):
    with server(folder) as (process, line):
        assert line.startswith("rme: http://127.0.0.1:")
        port = port_of(line)
        found = []

        def long():
            asked = (port, "POST", "/score?samples=10000", npy(digits(10)), {"content-type": NPY})
            found.append(ask(*asked)[0])

        asking = threading.Thread(target=long)
        asking.start()
        while b'"passes":1' not in (health := ask(port, "GET", "/health")[1]):
            time.sleep(0.001)
        assert b'"answered":0' in health
        process.send_signal(signal.SIGTERM)
        asking.join(60)
        assert found == [200]
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_invalid_bytes_do_not_stop_the_server(folder):
    with server(folder) as (process, line):
        port = port_of(line)
        invalid = [
            b"\x00\xff" * 100,
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /posterior HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
            b"POST /posterior HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999\r\n\r\nx",
            b"POST /posterior HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf",
            b"POST /sample HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET /?" + b"\xff" * 50 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ]
        for _ in range(20):
            for content in invalid:
                with socket.create_connection(("127.0.0.1", port), timeout=10) as line_:
                    line_.sendall(content)
        asked = (port, "POST", "/posterior", npy(digits(1)), {"content-type": NPY})
        assert ask(*asked)[0] == 200
        assert process.poll() is None


@pytest.mark.parametrize("given", [{}, {"RECMIX_TOKEN": "abcdefgh1"}])
def test_address_that_others_can_reach_needs_a_token(folder, given):
    with server(folder, "--host", "0.0.0.0", **given) as (process, line):
        assert "0.0.0.0 is not a loopback address, and the connection is plain HTTP" in (
            process.stdout.readline()
        )
        if not given:
            token = line.split("token=")[1].split()[0]
            assert len(token) == 32
        else:
            token = "abcdefgh1"
            assert token not in line  # the user knows it
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {token}"}, 200)):
            assert ask(port_of(line), "GET", "/health", headers=headers)[0] == status


def test_model_is_served_from_python_where_an_event_loop_runs(folder):
    """As in a notebook: Ctrl-C stops the server, and the usual signal handlers are back."""
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    found = []

    def client():
        for _ in range(600):
            try:
                found.append(ask(port, "GET", "/runs"))
                break
            except ConnectionError:
                time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    async def notebook():
        model = recmix.load(folder, device="cpu")
        before = signal.getsignal(signal.SIGINT)
        threading.Thread(target=client).start()
        serve(model, port=port)
        assert signal.getsignal(signal.SIGINT) is before

    asyncio.run(notebook())
    status, body = found[0]
    assert status == 200
    assert json.loads(body)["default"] == "rme"


def test_errors_at_start(folder, tmp_path, capsys, monkeypatch):
    model = recmix.load(folder, device="cpu")
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="--port 0 takes a free port"):
            serve(model, port=port)
    with pytest.raises(ConfigError, match="0 to 65535"):
        serve(model, port=70000)
    with pytest.raises(ConfigError, match="cannot listen on"):
        serve(model, host="no.such.host.invalid", port=0)
    with pytest.raises(ConfigError, match="8 letters and digits"):
        serve(model, token="short", port=0)
    with pytest.raises(ConfigError, match="at least one"):
        serve({}, port=0)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "uvicorn", None)
        message = r"needs the package uvicorn: pip install 'recmix\[explore\]'"
        with pytest.raises(ConfigError, match=message):
            serve(model, port=0)
    with pytest.raises(SystemExit) as stop:
        main(["explore", str(tmp_path / "nothing"), "--port", "0", "--no-browser"])
    assert stop.value.code == 2
    assert "does not hold a run" in capsys.readouterr().err
