"""A slow reader loses nothing and costs no queue."""

from __future__ import annotations

import asyncio

import pytest

from core.engine.mailbox import Mailbox
from core.errors import EngineDead
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


def test_special_tokens_keep_their_places_when_deltas_are_merged() -> None:
    async def scenario() -> RequestOutput:
        mailbox = Mailbox(delta=True)
        for text, spans in (("a<x>", [(1, 4)]), ("bc", []), ("<y>", [(0, 3)])):
            item = output(text)
            item.outputs[0].special_spans = spans
            mailbox.put(item)
        return await mailbox.get()

    (merged,) = asyncio.run(scenario()).outputs
    assert [merged.text[start:end] for start, end in merged.special_spans] == ["<x>", "<y>"]


def test_unread_cumulative_outputs_are_replaced() -> None:
    async def scenario() -> str:
        mailbox = Mailbox(delta=False)
        mailbox.put(output("a"))
        mailbox.put(output("ab"))
        return (await mailbox.get()).outputs[0].text

    assert asyncio.run(scenario()) == "ab"


def test_a_failure_comes_after_what_was_already_there() -> None:
    async def scenario() -> str:
        mailbox = Mailbox(delta=True)
        mailbox.put(output("a"))
        mailbox.fail(EngineDead("gone"))
        text = (await mailbox.get()).outputs[0].text
        with pytest.raises(EngineDead):
            await mailbox.get()
        return text

    assert asyncio.run(scenario()) == "a"


def test_a_taker_gets_what_is_new_only_while_the_reader_waits_and_nothing_lies_here() -> None:
    async def scenario() -> tuple[list[bool], list[str], str]:
        taken: list[str] = []

        def take(completion: CompletionOutput) -> bool:
            taken.append(completion.text)
            return True

        mailbox = Mailbox(delta=True)
        offer = mailbox.to(take)
        found = [offer(CompletionOutput(0, "nobody reads", []))]
        reader = asyncio.ensure_future(mailbox.get())
        await asyncio.sleep(0)
        found.append(offer(CompletionOutput(0, "taken", [])))
        mailbox.put(output("a"))
        found.append(offer(CompletionOutput(0, "behind another", [])))
        return found, taken, (await reader).outputs[0].text

    assert asyncio.run(scenario()) == ([False, True, False], ["taken"], "a")
