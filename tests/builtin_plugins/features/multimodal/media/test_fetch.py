"""Fetching: a server on loopback that is slow, endless, lying or redirecting; a fake resolver."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from builtin_plugins.features.multimodal.media.addresses import AllowedSources
from builtin_plugins.features.multimodal.media.fetch import MAX_FETCHES, Fetcher
from core.api import InvalidRequest
from tests.builtin_plugins.features.multimodal.media.pictures import picture

FIELD = "messages[0].content[0].image_url"
LOOPBACK = ("*", "127.0.0.0/8", "::1")
PICTURE = picture()
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]


class Server:
    """Answers each connection by `answer`; counts them and remembers the requests."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.heads: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.create_task(self._handle(reader, writer)))

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            await self._answer(reader, writer, head.split()[1])
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(
    answer: Answer, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Server, int]]:
    server = Server(answer)
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=context)
    try:
        yield server, listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await asyncio.gather(*server.tasks)


def sending(*parts: bytes) -> Answer:
    """Return an answer of these parts."""

    async def answer(reader: object, writer: asyncio.StreamWriter, target: str) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


def response(
    body: bytes, *headers: str, status: str = "200 OK", length: int | None = None
) -> bytes:
    length = len(body) if length is None else length
    head = "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {length}", *headers))
    return head.encode() + b"\r\n\r\n" + body


def resolving(*answers: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """Return a resolver that gives these answers, one after another, and the last one for ever."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


def fetched(
    answer: Answer,
    url: str = "http://127.0.0.1:{port}/a.png",
    *,
    sources: Sequence[str] = LOOPBACK,
    max_bytes: int = 100_000,
    timeout_s: float = 20.0,
    resolve: Callable[[str, int], Awaitable[Sequence[str]]] | None = None,
) -> tuple[bytes, Server]:
    """Fetch a URL of a server with this answer."""

    async def run() -> tuple[bytes, Server]:
        async with serving(answer) as (server, port):
            fetcher = Fetcher(AllowedSources(sources), max_bytes, timeout_s, resolve)
            data = await fetcher.fetch(url.format(port=port), FIELD, lambda count: None)
            return data, server

    return asyncio.run(run())


def refused(answer: Answer, match: str, *args: object, **options: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest, match=match) as error:
        fetched(answer, *args, **options)  # type: ignore[arg-type]
    assert error.value.field == FIELD
    assert "127.0.0.1" not in str(error.value).replace("http://127.0.0.1", "")
    return error.value


def test_file_is_fetched_with_plain_headers() -> None:
    data, server = fetched(sending(response(PICTURE)), "http://127.0.0.1:{port}/a%20b.png?x=1#y")
    assert data == PICTURE
    (head,) = server.heads
    assert head.startswith("GET /a%20b.png?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "identity" in head
    assert "Authorization" not in head


def test_file_without_length_and_in_chunks_is_fetched() -> None:
    end = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + PICTURE
    assert fetched(sending(end))[0] == PICTURE
    size = f"{len(PICTURE):x}\r\n".encode()
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert fetched(sending(chunked, size, PICTURE, b"\r\n0\r\n\r\n"))[0] == PICTURE


@pytest.mark.parametrize(
    "status", ["404 Not Found", "500 Oops", "204 None", "304 Same", "206 Part"]
)
def test_other_status_is_refused(status: str) -> None:
    refused(sending(response(b"", status=status)), f"status {status[:3]}")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0" * 1000,
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        response(PICTURE[:20], length=len(PICTURE)),
    ],
    ids=["closes", "zeros", "negative", "two lengths", "huge header", "another protocol", "short"],
)
def test_invalid_answer_is_refused(answer: bytes) -> None:
    refused(sending(answer), "could not be fetched")


def test_announced_size_over_the_limit_is_refused_before_the_body() -> None:
    refused(sending(response(b"", length=10**15)), "more than 1000 bytes", max_bytes=1000)


def test_endless_body_is_cut_at_the_limit() -> None:
    sent = 0

    async def endless(reader: object, writer: asyncio.StreamWriter, target: str) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"a" * 65_536)
            await writer.drain()
            sent += 65_536

    refused(endless, "more than 1000000 bytes", max_bytes=1_000_000)
    assert sent < 30_000_000  # what the socket buffers hold


def test_compressed_answer_is_refused() -> None:
    refused(sending(response(b"x", "Content-Encoding: gzip")), "compressed")


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\na"])
def test_slow_server_is_refused_in_time(part: bytes) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        writer.write(part)
        await writer.drain()
        await reader.read()  # until the client leaves

    begun = time.monotonic()
    refused(slow, "more than 0.3 s", timeout_s=0.3)
    assert time.monotonic() - begun < 20


def test_server_that_sends_a_byte_now_and_then_is_refused_in_time() -> None:
    async def drip(reader: object, writer: asyncio.StreamWriter, target: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.01)

    refused(drip, "more than 0.3 s", timeout_s=0.3)


def test_slow_resolver_is_part_of_the_time() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return ()

    refused(sending(b""), "more than 0.3 s", "http://a.test/", timeout_s=0.3, resolve=resolve)


def test_unknown_host_is_refused() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    refused(sending(b""), "could not be fetched", "http://a.test/", resolve=resolve)


def test_host_that_is_not_listed_is_not_resolved() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise AssertionError(host)

    for url in ("http://a.test/", "http://8.8.8.8/", "http://[::1]/"):
        refused(sending(b""), "--allowed-media-domains", url, sources=["b.test"], resolve=resolve)


def redirecting(location: str) -> Answer:
    async def answer(reader: object, writer: asyncio.StreamWriter, target: str) -> None:
        moved = f"Location: {location.format(target=target)}"
        writer.write(
            response(PICTURE) if target == "/end" else response(b"", moved, status="302 Found")
        )

    return answer


def test_redirect_is_followed() -> None:
    data, server = fetched(redirecting("/end"))
    assert data == PICTURE
    assert len(server.heads) == 2


def test_redirects_are_bounded() -> None:
    refused(redirecting("{target}x"), "more than 3 redirects")


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/",
        "http://10.0.0.1/",
        "http://localhost:22/",
        "//10.0.0.1/",
        "http://2130706433/",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "gopher://127.0.0.1/",
        "http://user@127.0.0.1/",
        "\\\\10.0.0.1\\a",
    ],
)
def test_redirect_is_checked_like_the_url(location: str) -> None:
    sources = ("127.0.0.1",)
    with pytest.raises(InvalidRequest) as error:
        fetched(redirecting(location), sources=sources)
    assert error.value.field == FIELD


def test_redirect_to_less_security_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def get(self: object, address: object, field: str, reserve: object) -> bytes | str:
        return "http://a.test/"

    monkeypatch.setattr(Fetcher, "_get", get)
    fetcher = Fetcher(AllowedSources(["*"]), 10, 5.0)
    with pytest.raises(InvalidRequest, match="from https to http"):
        asyncio.run(fetcher.fetch("https://a.test/", FIELD, lambda count: None))


def test_name_is_resolved_once_and_the_checked_address_is_used() -> None:
    # The second answer would be an inner address; the connection never asks for it.
    resolve = resolving(["127.0.0.1"], ["169.254.169.254"])
    data, server = fetched(sending(response(PICTURE)), "http://a.test:{port}/", resolve=resolve)
    assert data == PICTURE
    assert "Host: a.test:" in server.heads[0]


@pytest.mark.parametrize(
    "addresses",
    [["10.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::ffff:127.0.0.1"], ["169.254.169.254"], ["fe80::1"]],
)
def test_name_with_an_inner_address_is_refused(addresses: Sequence[str]) -> None:
    resolve = resolving(addresses)
    refused(sending(b""), "not public", "http://a.test/", sources=["*"], resolve=resolve)


def test_redirect_to_a_name_that_was_rebound_is_refused() -> None:
    resolve = resolving(["127.0.0.1"], ["127.9.9.9"])
    refused(
        redirecting("/again"),
        "not public",
        "http://a.test:{port}/",
        sources=["a.test", "127.0.0.1/32"],
        resolve=resolve,
    )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a certificate for a.test."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    file = tmp_path_factory.mktemp("tls") / "a.test.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=a.test",
    ]
    name = ["-addext", "subjectAltName=DNS:a.test"]
    made = [*command, *name, "-keyout", str(file), "-out", f"{file}.crt"]
    subprocess.run(made, check=True, capture_output=True)
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


@pytest.mark.parametrize(
    ("host", "is_trusted", "is_fetched"),
    [("a.test", True, True), ("a.test", False, False), ("b.test", True, False)],
)
def test_certificate_is_checked_for_the_name_of_the_url(
    certificate: Path, host: str, is_trusted: bool, is_fetched: bool
) -> None:
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate)

    async def run() -> bytes:
        async with serving(sending(response(PICTURE)), own) as (_, port):
            sources = AllowedSources(LOOPBACK)
            fetcher = Fetcher(sources, 10**6, 20.0, resolving(["127.0.0.1"]))
            if is_trusted:
                fetcher._ssl = ssl.create_default_context(cafile=str(certificate))
            return await fetcher.fetch(f"https://{host}:{port}/", FIELD, lambda count: None)

    if is_fetched:
        assert asyncio.run(run()) == PICTURE
        return
    with pytest.raises(InvalidRequest, match="could not be fetched"):
        asyncio.run(run())


def test_next_address_is_tried_when_one_does_not_answer() -> None:
    resolve = resolving(["127.0.0.2", "127.0.0.1"])
    data, _ = fetched(sending(response(PICTURE)), "http://a.test:{port}/", resolve=resolve)
    assert data == PICTURE


def test_bytes_are_reserved_while_they_arrive() -> None:
    reserved: list[int] = []

    def reserve(count: int) -> None:
        reserved.append(count)
        if sum(reserved) > 50_000:
            raise OverflowError

    async def run() -> None:
        async with serving(sending(response(b"a" * 200_000))) as (_, port):
            fetcher = Fetcher(AllowedSources(LOOPBACK), 10**6, 20.0)
            await fetcher.fetch(f"http://127.0.0.1:{port}/", FIELD, reserve)

    with pytest.raises(OverflowError):
        asyncio.run(run())
    assert sum(reserved) < 200_000


def test_number_of_fetches_at_a_time_is_bounded() -> None:
    running = 0
    largest = 0

    async def run() -> None:
        go_on = asyncio.Event()

        async def answer(reader: object, writer: asyncio.StreamWriter, target: str) -> None:
            nonlocal running, largest
            running += 1
            largest = max(largest, running)
            if running == MAX_FETCHES:
                go_on.set()
            await go_on.wait()
            writer.write(response(PICTURE))
            await writer.drain()
            running -= 1

        async with serving(answer) as (_, port):
            fetcher = Fetcher(AllowedSources(LOOPBACK), 10**6, 60.0)
            url = f"http://127.0.0.1:{port}/"
            calls = (fetcher.fetch(url, FIELD, lambda count: None) for _ in range(3 * MAX_FETCHES))
            assert set(await asyncio.gather(*calls)) == {PICTURE}

    asyncio.run(run())
    assert largest == MAX_FETCHES


def test_cancelled_fetch_closes_its_connection() -> None:
    async def run() -> None:
        closed = asyncio.Event()
        begun = asyncio.Event()

        async def answer(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str
        ) -> None:
            begun.set()
            await reader.read()
            closed.set()

        async with serving(answer) as (_, port):
            fetcher = Fetcher(AllowedSources(LOOPBACK), 10**6, 60.0)
            task = asyncio.create_task(
                fetcher.fetch(f"http://127.0.0.1:{port}/", FIELD, lambda count: None)
            )
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(closed.wait(), 60)

    asyncio.run(run())
