"""Small files in the published formats, a local web server, and access to the real data."""

import functools
import gzip
import http.server
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def need(real_data):
    """Return the data root, or skip the test if one of the given real files is missing."""

    def check(*files):
        for file in files:
            if not (real_data / file).exists():
                pytest.skip(f"the real file {file} is not in RECMIX_DATA")
        return real_data

    return check


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def grey(rng):
    """Forty random grey images, uint8 (40, 28, 28)."""
    return rng.integers(0, 256, (40, 28, 28), dtype=np.uint8)


@pytest.fixture
def write_idx():
    def write(path, array, zipped=False):
        content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        content += array.astype(np.uint8).tobytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if zipped else content)
        return content

    return write


@pytest.fixture
def write_image_files(rng):
    """Write random image files into a folder; names may contain subfolders."""

    def write(folder, names, size=(16, 16), mode="RGB"):
        for name in names:
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shape = (*size, 3) if mode == "RGB" else size
            Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(path)
        return Path(folder)

    return write


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder. A *.half file stops half-way; a *.page file is sent as a web page."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        if not self.path.endswith((".half", ".page")):
            super().do_GET()
            return
        content = Path(self.translate_path(self.path)).read_bytes()
        page = self.path.endswith(".page")
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if page else "data")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if page else content[: len(content) // 2])


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder and the local URL under which it is served."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("RECMIX_OFFLINE", raising=False)
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()
