"""A local HTTP server that answers like the Hugging Face hub: one repository, its files, errors."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import huggingface_hub
import pytest

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY: Final = "owner/name"


@dataclass(slots=True)
class Hub:
    """What the server has, and what it was sent."""

    files: Mapping[str, bytes]
    errors: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Status and error code of other repositories."""
    cut_bytes: int = 0
    """Bytes after which the next file ends too early; 0: never."""
    downloads: list[str] = field(default_factory=list)
    """Name of each file that was sent."""


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            """Log nothing."""

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            for repository, (status, code) in hub.errors.items():
                if repository in path:
                    self._send(b"", status, {"X-Error-Code": code, "X-Error-Message": code})
                    return
            if path.startswith(f"/api/models/{REPOSITORY}/tree/"):
                tree = [
                    {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                    for name, data in hub.files.items()
                ]
                self._send(json.dumps(tree).encode())
            elif path.startswith(f"/api/models/{REPOSITORY}"):
                self._send(json.dumps({"id": REPOSITORY, "sha": COMMIT}).encode())
            elif path.startswith(f"/{REPOSITORY}/resolve/"):
                self._send_file(path.rpartition(f"{COMMIT}/")[2])
            else:
                self._send(b"", 404, {"X-Error-Code": "RepoNotFound"})

        def _send_file(self, name: str) -> None:
            data = hub.files[name]
            headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT}
            if self.command == "GET":
                hub.downloads.append(name)
            self._send(data, 200, headers)

        def _send(
            self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
        ) -> None:
            self.send_response(status)
            for header, value in (headers or {}).items():
                self.send_header(header, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if 0 < hub.cut_bytes < len(body):
                body = body[: hub.cut_bytes]
                hub.cut_bytes = 0
                self.close_connection = True
            self.wfile.write(body)

    return Handler


def _etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@contextmanager
def hub_server(
    files: Mapping[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hub]:
    """Serve a repository `owner/name`; the hub's client of this process uses server and cache."""
    hub = Hub(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
