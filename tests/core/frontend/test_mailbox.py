"""A slow reader loses no output and needs no queue."""

from __future__ import annotations

import asyncio

import pytest

from core.errors import EngineDead
from core.frontend.mailbox import Mailbox
from core.types import CompletionOutput, RequestOutput


def output(text: str, index: int = 0, finished: bool = False) -> RequestOutput:
    completion = CompletionOutput(
        index, text, list(text.encode()), finish_reason="stop" if finished else None
    )
    return RequestOutput("r", None, [1], None, [completion], finished)


def test_unread_deltas_are_merged_per_sequence() -> None:
    async def scenario() -> RequestOutput:
        mailbox = Mailbox(delta=True)
        for item in (output("a"), output("x", 1), output("b"), output("c", finished=True)):
            mailbox.put(item)
        return await mailbox.get()

    merged = asyncio.run(scenario())
    assert {c.index: c.text for c in merged.outputs} == {0: "abc", 1: "x"}
    assert merged.outputs[0].token_ids == list(b"abc")
    assert merged.finished


def test_merged_deltas_keep_special_spans() -> None:
    async def scenario() -> RequestOutput:
        mailbox = Mailbox(delta=True)
        for text, spans in (("a<x>", [(1, 4)]), ("bc", []), ("<y>", [(0, 3)])):
            item = output(text)
            item.outputs[0].special_spans = spans
            mailbox.put(item)
        return await mailbox.get()

    (merged,) = asyncio.run(scenario()).outputs
    assert [merged.text[start:end] for start, end in merged.special_spans] == ["<x>", "<y>"]


def test_unread_cumulative_output_is_replaced() -> None:
    async def scenario() -> str:
        mailbox = Mailbox(delta=False)
        mailbox.put(output("a"))
        mailbox.put(output("ab"))
        return (await mailbox.get()).outputs[0].text

    assert asyncio.run(scenario()) == "ab"


def test_error_is_raised_after_the_unread_output() -> None:
    async def scenario() -> str:
        mailbox = Mailbox(delta=True)
        mailbox.put(output("a"))
        mailbox.fail(EngineDead("gone"))
        text = (await mailbox.get()).outputs[0].text
        with pytest.raises(EngineDead):
            await mailbox.get()
        return text

    assert asyncio.run(scenario()) == "a"


def test_callback_runs_only_while_the_reader_waits_and_nothing_is_unread() -> None:
    async def scenario() -> tuple[list[bool], list[str], str]:
        taken: list[str] = []

        def consume(completion: CompletionOutput) -> bool:
            taken.append(completion.text)
            return True

        mailbox = Mailbox(delta=True)
        deliver = mailbox.try_deliver(consume)
        found = [deliver(CompletionOutput(0, "no reader", []))]
        reader = asyncio.ensure_future(mailbox.get())
        await asyncio.sleep(0)
        found.append(deliver(CompletionOutput(0, "taken", [])))
        mailbox.put(output("a"))
        found.append(deliver(CompletionOutput(0, "after another", [])))
        return found, taken, (await reader).outputs[0].text

    assert asyncio.run(scenario()) == ([False, True, False], ["taken"], "a")
