"""Fetches media over HTTP within bounds: allowed hosts, bytes, seconds, redirects.

A name is resolved once; every address it has is checked, and the connection goes to a checked
address. So an answer of the name server that changes in between has no effect (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Final
from urllib.parse import urljoin

import httpcore2 as httpcore

from builtin_plugins.features.multimodal.media.addresses import (
    ACTION,
    AllowedSources,
    WebAddress,
    read_url,
)
from core.api import InvalidRequest
from core.api.concurrency import FairSemaphore

MAX_REDIRECTS: Final = 3
MAX_FETCHES: Final = 16
"""Fetches at a time, of all requests together."""
_RESOLVER_THREADS: Final = 4
"""Own threads for name servers: slow ones must not take those of other work."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = (
    ("Accept", "image/*,*/*;q=0.5"),
    ("Accept-Encoding", "identity"),
    ("User-Agent", "Mozilla/5.0 (compatible; engine media fetcher)"),
)
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name. Raises `OSError`."""
Reserve = Callable[[int], None]
"""Counts bytes that a request makes the server read; raises if there are too many."""


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to checked addresses of one host only."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that answers; `host` only names the certificate."""
        error: Exception = httpcore.ConnectError("no address")
        for address in self._addresses:
            try:
                return await self._backend.connect_tcp(address, port, timeout)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                error = failed
        raise error


class Fetcher:
    """Fetches files of up to `max_bytes`, each within `timeout_s`."""

    def __init__(
        self,
        sources: AllowedSources,
        max_bytes: int,
        timeout_s: float,
        resolve: Resolve | None = None,
    ) -> None:
        self._sources = sources
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._resolve = resolve or self._resolve_name
        self._slots = FairSemaphore(MAX_FETCHES)
        self._ssl: ssl.SSLContext | None = None

    async def fetch(self, url: str, field: str, reserve: Reserve, client: str = "") -> bytes:
        """Return the file of an http(s) URL. Raises `InvalidRequest`."""
        self._sources.check_host(read_url(url, field).host, field)  # without waiting for a slot
        async with self._slots.slot(client):
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._follow(url, field, reserve)
            except TimeoutError:
                raise InvalidRequest(
                    field,
                    f"got a URL that took more than {self._timeout_s:g} s; expected less "
                    f"(--media-fetch-timeout). {ACTION}",
                ) from None
            except (httpcore.NetworkError, httpcore.ProtocolError, OSError):
                raise InvalidRequest(
                    field, f"got a URL that could not be fetched; expected an image there. {ACTION}"
                ) from None

    async def _follow(self, url: str, field: str, reserve: Reserve) -> bytes:
        """Return the file, after up to `MAX_REDIRECTS` redirects that are checked like the URL."""
        was_secure = False
        for _ in range(MAX_REDIRECTS + 1):
            address = read_url(url, field)
            if was_secure and address.scheme != "https":
                raise InvalidRequest(
                    field, f"got a redirect from https to http; expected https. {ACTION}"
                )
            was_secure = address.scheme == "https"
            found = await self._get(address, field, reserve)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise InvalidRequest(
            field, f"got more than {MAX_REDIRECTS} redirects; expected an image. {ACTION}"
        )

    async def _get(self, address: WebAddress, field: str, reserve: Reserve) -> bytes | str:
        """Return the file of a URL, or the URL it redirects to."""
        self._sources.check_host(address.host, field)
        found = await self._resolve(address.host, address.port)
        for each in found:
            self._sources.check_address(each, address.host, field)
        secure = await self._ssl_context() if address.scheme == "https" else None
        pool = httpcore.AsyncConnectionPool(secure, network_backend=CheckedBackend(found))
        host = f"[{address.host}]" if ":" in address.host else address.host
        named = host if address.is_default_port else f"{host}:{address.port}"
        url = httpcore.URL(
            scheme=address.scheme, host=host, port=address.port, target=address.target
        )
        own: list[tuple[str, str]] = [("Host", named), *_HEADERS]
        async with pool, pool.stream("GET", url, headers=own) as response:
            headers = {name.lower(): value for name, value in response.headers}
            if response.status in _REDIRECTS and b"location" in headers:
                return headers[b"location"].decode("latin-1")
            if response.status != 200:
                raise InvalidRequest(
                    field,
                    f"got a URL that is answered with status {response.status}; expected 200. "
                    f"{ACTION}",
                )
            if headers.get(b"content-encoding", b"identity").lower() != b"identity":
                raise InvalidRequest(
                    field, f"got a compressed answer; expected the file as it is. {ACTION}"
                )
            return await self._read(response, headers, field, reserve)

    async def _read(
        self,
        response: httpcore.Response,
        headers: dict[bytes, bytes],
        field: str,
        reserve: Reserve,
    ) -> bytes:
        announced = headers.get(b"content-length", b"0")
        size = int(announced) if announced.isdigit() and len(announced) < 20 else 0
        data = bytearray()
        if size <= self._max_bytes:
            async for chunk in response.aiter_stream():
                data += chunk
                size = len(data)
                if size > self._max_bytes:
                    break
                reserve(len(chunk))
        if size > self._max_bytes:
            raise InvalidRequest(
                field,
                f"got a URL of more than {self._max_bytes} bytes; expected less "
                "(--max-media-bytes). Send a smaller image.",
            )
        return bytes(data)

    async def _ssl_context(self) -> ssl.SSLContext:
        if self._ssl is None:  # reading the certificates takes a tenth of a second
            self._ssl = await asyncio.to_thread(httpcore.default_ssl_context)
        return self._ssl

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_RESOLVER_THREADS, "media-names")

    async def _resolve_name(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return [str(each[4][0]) for each in found]
