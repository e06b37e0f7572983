"""Fast path of streams: events reach the connection in order, once, while it accepts them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from starlette.requests import Request

from builtin_plugins.routes.common.fast_stream import FastStream
from core.api import CompletionOutput, RequestOutput


class Engine:
    """Delivers outputs like `AsyncLLM`."""

    def __init__(self) -> None:
        self.take: Callable[[CompletionOutput], bool] = lambda completion: False

    def set_delivery_callback(
        self, request_id: str, taker: Callable[[CompletionOutput], bool]
    ) -> None:
        assert request_id == "r"
        self.take = taker

    async def outputs(self, texts: str) -> AsyncGenerator[RequestOutput]:
        for text in texts:
            completion = CompletionOutput(
                0, text, [1], finish_reason="stop" if text == texts[-1] else None
            )
            if completion.finish_reason is not None or not self.take(completion):
                yield RequestOutput(
                    "r",
                    None,
                    [1],
                    None,
                    [completion],
                    finished=completion.finish_reason is not None,
                )


class Writer:
    """The connection's direct writer."""

    def __init__(self) -> None:
        self.must_wait = False
        self.written: list[bytes] = []

    def write_soon(self, data: bytes) -> None:
        self.written.append(data)


class EventEncoder:
    """Encodes events as their mere text."""

    def encode_output(self, output: RequestOutput) -> bytes:
        return output.outputs[0].text.encode()

    def encode_delta(self, completion: CompletionOutput) -> bytes:
        if completion.text == "!":
            raise ValueError("cannot be encoded")
        return completion.text.encode()


def read(texts: str, writer: Writer | None, crowded: str = "") -> list[tuple[str, bytes]]:
    """Return the sent events with their path; the client does not keep up before `crowded`."""

    async def scenario() -> list[tuple[str, bytes]]:
        engine = Engine()
        sent = list[tuple[str, bytes]]()
        state: dict[str, Any] = {}
        stream = FastStream(engine, Request({"type": "http", "state": state}))
        if writer is not None:
            write = lambda data: sent.append(("short", data))  # noqa: E731
            writer.write_soon = write  # type: ignore[method-assign]
        async for data in stream.events("r", engine.outputs(texts), EventEncoder()):
            sent.append(("long", data))
            state["direct_writer"] = writer
            if writer is not None:
                writer.must_wait = data.decode() < crowded
        return sent

    return asyncio.run(scenario())


def test_fast_stream_delivers_all_but_first_and_last() -> None:
    assert read("abcd", Writer()) == [
        ("long", b"a"),
        ("short", b"b"),
        ("short", b"c"),
        ("long", b"d"),
    ]


def test_without_direct_writer_reader_gets_everything() -> None:
    assert read("abcd", None) == [("long", text.encode()) for text in "abcd"]


def test_slow_client_falls_back_to_reader_in_order() -> None:
    assert read("abcde", Writer(), crowded="c") == [
        *(("long", b"a"), ("long", b"b"), ("long", b"c")),
        *(("short", b"d"), ("long", b"e")),
    ]


def test_encoding_error_is_raised_by_reader() -> None:
    with pytest.raises(ValueError, match="cannot be encoded"):
        read("ab!d", Writer())
