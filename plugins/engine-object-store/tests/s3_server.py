"""A minimal S3 server for the connector, with faults on demand."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

WHEN = "2026-01-01T00:00:00.000Z"


class Bucket(ThreadingHTTPServer):
    """Objects by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.fault = ""
        """`refuse`: every answer is 403; `hang`: none comes before `released`; `cut`: bodies end
        early.
        """
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Bucket

    def _path(self) -> str:
        return unquote(urlsplit(self.path).path)

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        fault = self.server.fault
        if fault == "hang":
            self.server.released.wait()
        if fault == "refuse":
            status = 403
            body = b"<Error><Code>AccessDenied</Code></Error>"
        self.send_response(status)
        for name, value in {
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "ETag": '"e"',
            **headers,
        }.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
        self.close_connection = fault == "cut"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.server.fault:
            self.server.objects[self._path()] = body
        self._answer(200)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._answer(200, self._listed(query["prefix"][0]).encode())
        elif self._path() in self.server.objects:
            self._answer(200, self.server.objects[self._path()])
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _listed(self, prefix: str) -> str:
        bucket = "/" + self._path().strip("/") + "/"
        found = [
            f"<Contents><Key>{escape(path.removeprefix(bucket))}</Key>"
            f"<LastModified>{WHEN}</LastModified>"
            f'<ETag>"e"</ETag><Size>{len(body)}</Size></Contents>'
            for path, body in sorted(self.server.objects.items())
            if path.startswith(bucket + prefix)
        ]
        return (
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>"
        )

    def do_POST(self) -> None:
        """Delete several at once."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        keys = re.findall(r"<Key>(.*?)</Key>", body)
        for key in keys:
            self.server.objects.pop(f"/{self._path().strip('/')}/{key}", None)
        gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())

    def do_DELETE(self) -> None:
        self.server.objects.pop(self._path(), None)
        self._answer(204)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[Bucket]:
    """Serve an empty bucket."""
    bucket = Bucket()
    thread = threading.Thread(target=bucket.serve_forever, daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        bucket.released.set()
        bucket.shutdown()
        bucket.server_close()
        thread.join()
