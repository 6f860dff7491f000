"""A small Hub on this machine: one repository whose files are those of a folder, with sizes, hashes and ranges."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

REPO = "owner/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    folder: Path
    url: str = ""
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Range or Authorization
    tokens: set[str | None] = field(default_factory=set)
    break_off_after: int | None = None  # bytes of a weight file, once
    wrong_bytes_in: str | None = None  # a file whose content is not what its hash says
    hidden: bool = False  # as a gated repository is to strangers

    def names_sent(self) -> list[str]:
        return [path.rsplit("/", 1)[1] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]


@contextmanager
def fake_hub(folder: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
    """Serves `folder` as REPO at COMMIT, and makes it the Hub of this process with an empty cache at `cache`."""
    hub = FakeHub(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path, self.headers.get("Range")))
            hub.tokens.add(self.headers.get("Authorization"))
            parts = path.strip("/").split("/")
            if hub.hidden or REPO not in path:
                self._fail("RepoNotFound")
            elif parts[:2] == ["api", "models"]:
                revision = parts[5] if "revision" in parts else "main"
                if revision not in ("main", COMMIT):
                    self._fail("RevisionNotFound")
                else:
                    self._send(200, {"Content-Type": "application/json"}, self._listing(), with_body)
            elif parts[2] == "resolve" and parts[3] not in ("main", COMMIT):
                self._fail("RevisionNotFound")
            elif not (file := folder / parts[-1]).is_file():
                self._fail("EntryNotFound")
            else:
                self._send_file(file, with_body)

        def _listing(self) -> bytes:
            siblings = []
            for file in sorted(folder.iterdir()):
                content = file.read_bytes()
                entry = {"rfilename": file.name, "size": len(content), "blobId": "b" * 40}
                if file.suffix == ".safetensors":
                    sha256 = hashlib.sha256(content).hexdigest()
                    entry["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 130}
                siblings.append(entry)
            return json.dumps({"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": siblings}).encode()

        def _send_file(self, file: Path, with_body: bool) -> None:
            content = file.read_bytes()
            is_large = file.suffix == ".safetensors"
            digest = hashlib.sha256(content).hexdigest() if is_large else hashlib.sha1(content).hexdigest()
            headers = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            if is_large:
                headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            if hub.wrong_bytes_in == file.name:
                content = bytes(len(content))
            status, wanted = 200, self.headers.get("Range")
            if wanted and with_body:
                begin, _, end = wanted.removeprefix("bytes=").partition("-")
                part = content[int(begin) : int(end) + 1 if end else None]
                headers["Content-Range"] = f"bytes {begin}-{int(begin) + len(part) - 1}/{len(content)}"
                status, content = 206, part
            self._send(status, headers, content, with_body, hub.break_off_after if is_large else None)

        def _send(
            self, status: int, headers: dict[str, str], content: bytes, with_body: bool, most: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if not with_body:
                return
            self.wfile.write(content if most is None else content[:most])
            if most is not None and most < len(content):
                self.close_connection = True

        def _fail(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that left is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    use_hub(hub.url, monkeypatch, cache)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(url: str, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """What HF_ENDPOINT and HF_HUB_CACHE do, for a process that has read them already."""
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
