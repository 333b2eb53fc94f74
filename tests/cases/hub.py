"""A stand-in for the Hugging Face Hub on this machine: it answers what huggingface_hub asks."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub:
    """Repositories by name: each has files by path, and `sha`, the id of the last commit.

    Every file is sent as part of the commit. The real Hub takes large files separately.
    """

    def __init__(self):
        self.files: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.address = ""

    def sha(self, repo):
        parts = [name.encode() + content for name, content in sorted(self.files[repo].items())]
        return hashlib.sha1(b"".join(parts)).hexdigest()

    def answer(self, method, path, body):
        """The status, the headers and the body of the answer."""
        words = path.strip("/").split("/")
        if words == ["api", "repos", "create"]:
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            status = 409 if repo in self.files else 200
            self.files.setdefault(repo, {})
            return status, {}, {"url": f"{self.address}/{repo}"}
        if words == ["api", "validate-yaml"]:
            return 200, {}, {"errors": [], "warnings": []}
        if words[:2] == ["api", "models"] and "/".join(words[2:4]) in self.files:
            return 200, {}, self.about("/".join(words[2:4]), words[4] if words[4:] else "revision", body)
        repo, content = "/".join(words[:2]), None
        if words[2:3] == ["resolve"]:
            content = self.files.get(repo, {}).get("/".join(words[4:]))
        if content is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, {}
        return 200, {"ETag": f'"{_blob(content)}"', "X-Repo-Commit": self.sha(repo)}, content

    def about(self, repo, what, body):
        files = self.files[repo]
        if what == "preupload":
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            return {"files": [{"path": path, **modes} for path in paths]}
        if what == "commit":
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
            url = f"{self.address}/{repo}/commit/{self.sha(repo)}"
            return {"success": True, "commitUrl": url, "commitOid": self.sha(repo)}
        if what == "tree":
            return [
                {"type": "file", "path": path, "size": len(content), "oid": _blob(content)}
                for path, content in files.items()
            ]
        names = [{"rfilename": path} for path in files]
        return {"id": repo, "sha": self.sha(repo), "siblings": names, "private": False}


def _blob(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serve():
    """Serve a `Hub` while the context is open."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def handle_request(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b"".join(iter(self.chunk, b""))
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            status, headers, answer = hub.answer(self.command, path, body)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def chunk(self):
            content = self.rfile.read(int(self.rfile.readline(), 16))
            self.rfile.readline()
            return content

        do_GET = do_HEAD = do_POST = handle_request

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
