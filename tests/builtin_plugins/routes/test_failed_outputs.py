"""A request that fails within its output: a slow reader gets the text before the error too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from builtin_plugins.routes.common.requests import final_output, raise_on_error
from core.api import RequestFailed
from core.frontend.mailbox import Mailbox
from core.types import CompletionOutput, RequestOutput


def output(text: str, *, error: str | None = None) -> RequestOutput:
    reason = None if error is None else "error"
    completion = CompletionOutput(0, text, list(text.encode()), finish_reason=reason)
    failed = error is not None
    return RequestOutput("r", None, [1], None, [completion], failed, error=error)


async def read(items: list[RequestOutput]) -> AsyncIterator[RequestOutput]:
    """Yield what a reader gets that comes after all items are there."""
    mailbox = Mailbox(delta=True)
    for item in items:
        mailbox.put(item)
    yield await mailbox.get()


@pytest.mark.parametrize(
    ("items", "texts"),
    [
        ([output("ab"), output("c"), output("", error="no more")], ["abc"]),
        ([output("ab"), output("c", error="no more")], ["abc"]),
        ([output("", error="no more")], []),
    ],
)
def test_text_is_yielded_before_the_error(items: list[RequestOutput], texts: list[str]) -> None:
    found = []

    async def scenario() -> None:
        async for item in raise_on_error(read(items)):
            assert item.error is None
            assert not item.finished
            assert item.outputs[0].finish_reason is None
            found.append(item.outputs[0].text)

    with pytest.raises(RequestFailed, match="no more"):
        asyncio.run(scenario())
    assert found == texts


def test_whole_answers_raise_the_error() -> None:
    with pytest.raises(RequestFailed, match="no more"):
        asyncio.run(final_output(read([output("ab"), output("", error="no more")])))
