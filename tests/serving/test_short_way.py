"""Events that go from the engine's delivery straight to the connection: in order, once, and only
while that takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from starlette.requests import Request

from builtin_plugins.routes.short_way import ShortWay
from core.api import CompletionOutput, RequestOutput


class Engine:
    """Hands its outputs over, as `AsyncLLM` does."""

    def __init__(self) -> None:
        self.take: Callable[[CompletionOutput], bool] = lambda completion: False

    def hand_to(self, request_id: str, taker: Callable[[CompletionOutput], bool]) -> None:
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


class Parts:
    """The connection."""

    def __init__(self) -> None:
        self.must_wait = False
        self.written: list[bytes] = []

    def write_soon(self, data: bytes) -> None:
        self.written.append(data)


class Encoder:
    """Its events are the texts themselves."""

    def of(self, output: RequestOutput) -> bytes:
        return output.outputs[0].text.encode()

    def more(self, completion: CompletionOutput) -> bytes:
        if completion.text == "!":
            raise ValueError("cannot be encoded")
        return completion.text.encode()


def read(texts: str, parts: Parts | None, crowded: str = "") -> list[tuple[str, bytes]]:
    """Return what was sent, and by which way; at `crowded` the client does not keep up."""

    async def scenario() -> list[tuple[str, bytes]]:
        engine = Engine()
        sent = list[tuple[str, bytes]]()
        state: dict[str, Any] = {}
        way = ShortWay(engine, Request({"type": "http", "state": state}))
        if parts is not None:
            parts.write_soon = lambda data: sent.append(("short", data))  # type: ignore[method-assign]
        async for data in way.events("r", engine.outputs(texts), Encoder()):
            sent.append(("long", data))
            state["parts"] = parts
            if parts is not None:
                parts.must_wait = data.decode() < crowded
        return sent

    return asyncio.run(scenario())


def test_the_first_and_the_last_go_the_long_way_and_what_is_between_the_short_one() -> None:
    assert read("abcd", Parts()) == [
        ("long", b"a"),
        ("short", b"b"),
        ("short", b"c"),
        ("long", b"d"),
    ]


def test_without_a_connection_of_its_own_all_go_the_long_way() -> None:
    assert read("abcd", None) == [("long", text.encode()) for text in "abcd"]


def test_while_the_client_does_not_keep_up_the_reader_gets_all_in_order() -> None:
    assert read("abcde", Parts(), crowded="c") == [
        *(("long", b"a"), ("long", b"b"), ("long", b"c")),
        *(("short", b"d"), ("long", b"e")),
    ]


def test_what_cannot_be_encoded_is_for_the_reader_to_tell() -> None:
    with pytest.raises(ValueError, match="cannot be encoded"):
        read("ab!d", Parts())
