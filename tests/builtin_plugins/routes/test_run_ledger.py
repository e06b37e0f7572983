"""Answers that another process continues: records, and the outputs after them."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.routes.common import run_ledger
from builtin_plugins.routes.common.run_ledger import RecordedRun, RunLedger
from builtin_plugins.servers.api import PreservedState
from builtin_plugins.servers.http.server import HttpServer
from core.api import CompletionOutput, EngineConfig, RequestOutput
from core.api.plugins import load_plan
from core.testing.echo_engine import EchoEngine
from tests.builtin_plugins.conftest import GROUPS, PLAN

KEY = {"Authorization": "Bearer one"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


class FakeParent:
    """Preserves descriptors as the parent process does."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def preserved(self, name: str) -> PreservedState | None:
        found = self._descriptors.get(name)
        return None if found is None else PreservedState(descriptors=(os.dup(found),))

    def preserve(self, name: str, note: bytes = b"", *, descriptors: Any = ()) -> None:
        before = self._descriptors.pop(name, None)
        if before is not None:
            os.close(before)
        self._descriptors[name] = os.dup(descriptors[0])

    def freeze(self) -> None:
        """Preserve what there is now, whatever the process still writes."""
        for name, descriptor in self._descriptors.items():
            copy = os.memfd_create(name)
            os.write(copy, os.pread(descriptor, os.fstat(descriptor).st_size, 0))
            self._descriptors[name] = copy
            os.close(descriptor)
        self.preserve = lambda *state, **more: None  # type: ignore[method-assign, assignment]

    @property
    def num_bytes(self) -> int:
        return sum(os.fstat(each).st_size for each in self._descriptors.values())


def opened(ledger: RunLedger, number: int, owner: str = "a", body: bytes = b"{}") -> Any:
    return ledger.open(owner, "client", "/path", body, f"answer-{number}", f"run-{number}", 5)


def output(index: int, text: str, *, finished: bool = False) -> RequestOutput:
    spans = [(m.start(), m.end()) for m in re.finditer("<", text)]
    reason = "stop" if finished else None
    completion = CompletionOutput(
        index, text, list(text.encode()), finish_reason=reason, special_spans=spans
    )
    return RequestOutput("run", None, None, None, [completion], finished)


async def live(parts: list[RequestOutput]) -> AsyncGenerator[RequestOutput]:
    for each in parts:
        yield each


async def read(run: RecordedRun, parts: list[RequestOutput], limit: int | None = None) -> list[Any]:
    found = []
    outputs = run.outputs(live(parts), [1])
    async for each in outputs:
        found.append(
            [(c.index, c.text, list(c.token_ids), list(c.special_spans)) for c in each.outputs]
        )
        if len(found) == limit:
            break
    await outputs.aclose()
    return found


def grouped(texts: dict[int, str], cuts: list[int]) -> list[RequestOutput]:
    """Return outputs of the texts of sequences, in pieces of these sizes."""
    parts = []
    position = dict.fromkeys(texts, 0)
    for i, cut in enumerate(cuts):
        index = i % len(texts)
        parts.append(output(index, texts[index][position[index] : position[index] + cut]))
        position[index] += cut
    for index in texts:
        last = index == max(texts)
        parts.append(output(index, texts[index][position[index] :], finished=last))
    return parts


CUTS = st.lists(st.integers(1, 6), max_size=12)
TEXT = st.text("ab<\u00e9", max_size=20)


@given(TEXT, TEXT, CUTS, CUTS, st.integers(0, 14))
def test_outputs_after_a_restart_continue_those_before_for_every_grouping(
    first: str, second: str, before: list[int], after: list[int], killed_at: int
) -> None:
    texts = {0: first, 1: second}

    async def run() -> None:
        parent = FakeParent()
        made = opened(RunLedger(parent), 1)
        start = await read(made, grouped(texts, before), killed_at) if killed_at else []
        ledger = RunLedger(parent)
        (again,) = ledger.take_unfinished("/path")
        assert ledger.take_unfinished("/path") == []
        whole = await read(again, grouped(texts, after))
        assert whole[: len(start)] == start
        for index in texts:
            parts = [each for pieces in whole for each in pieces if each[0] == index]
            assert "".join(text for _, text, _, _ in parts) == texts[index]
            assert [i for _, _, ids, _ in parts for i in ids] == list(texts[index].encode())
            for _, text, _, spans in parts:
                assert [text[a:b] for a, b in spans] == ["<"] * text.count("<")

    asyncio.run(run())


def test_incomplete_and_ended_records_are_left_out() -> None:
    parent = FakeParent()
    ledger = RunLedger(parent)
    first, second, third = (opened(ledger, i) for i in range(3))
    second.close()
    descriptor = ledger._descriptor
    os.write(descriptor, (1000).to_bytes(4, "big") + b"cut")
    found = RunLedger(parent).take_unfinished("/path")
    assert [each.opened.answer_id for each in found] == ["answer-0", "answer-2"]
    assert first.opened == found[0].opened
    assert third.seed == found[1].seed
    assert [third.next_id() for _ in range(3)] == [found[1].next_id() for _ in range(3)]


def test_ids_of_calls_are_those_before_the_restart() -> None:
    parent = FakeParent()
    run = opened(RunLedger(parent), 1)
    assert [run.call_id(f"call_{i}") for i in range(2)] == ["call_0", "call_1"]
    (again,) = RunLedger(parent).take_unfinished("/path")
    assert [again.call_id(f"other_{i}") for i in range(3)] == ["call_0", "call_1", "other_2"]


def test_records_are_bounded_by_owner_and_removed_with_their_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_ledger, "MAX_OWNER_BYTES", 3_000)
    monkeypatch.setattr(run_ledger, "SPARE_BYTES", 1_000)
    parent = FakeParent()
    ledger = RunLedger(parent)
    runs = [opened(ledger, i, body=b"x" * 1_000) for i in range(4)]
    assert [run is not None for run in runs] == [True, True, False, False]
    assert opened(ledger, 9, owner="b", body=b"x" * 1_000) is not None
    asyncio.run(read(runs[0], [output(0, "y" * 100) for _ in range(30)]))  # no room: given up
    left = RunLedger(parent).take_unfinished("/path")
    assert [each.opened.answer_id for each in left] == ["answer-1", "answer-9"]
    for number in range(200):
        opened(ledger, number, owner="c", body=b"x" * 900).close()
    assert parent.num_bytes < 10_000
    assert opened(ledger, 1, body=b"x" * (run_ledger.MAX_BODY_BYTES + 1)) is None


class Server:
    """An application with a parent process."""

    def __init__(self, parent: FakeParent) -> None:
        options = {
            "api_key": ["one"],
            "stream_resume_timeout": 60.0,
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
        }
        config = EngineConfig(options=options)
        self.engine = EchoEngine(config)
        registry = self.engine.registry = load_plan(PLAN)
        registry.shared("parent", lambda: parent)
        groups = [make(self.engine, config) for make in GROUPS]
        self.app = HttpServer(self.engine, config, groups).app

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://test", headers=KEY)

    def runs(self) -> list[Any]:
        return list(self.engine.registry.shared("event runs", dict)._runs.values())


def body_of(path: str) -> dict[str, Any]:
    """Return a request with a text and a call for its answer."""
    text = f"Look: {CALL}"
    if path == CHAT:
        tools = [{"type": "function", "function": TOOL}]
        return {"stream": True, "messages": [{"role": "user", "content": text}], "tools": tools}
    tools = [{"type": "function", **TOOL}]
    return {"stream": True, "input": text, "tools": tools, "background": True}


async def killed_after(
    server: Server, parent: FakeParent, path: str, num_events: int
) -> tuple[str, str]:
    """Return the id of a stream and its first events; the process then ends."""
    async with server.client() as client:
        posting = asyncio.ensure_future(client.post(path, json=body_of(path)))
        while not server.runs():
            await asyncio.sleep(0)
        (run,) = server.runs()
        while len(run._events) < num_events:
            assert run.is_running
            await asyncio.sleep(0)
        server.engine.gate.clear()
        events = b"".join(run._events).decode()
        parent.freeze()
        run.task.cancel()
        await asyncio.wait({run.task, posting})
        return run.id, events


async def restored(server: Server, path: str, run_id: str) -> str:
    """Return the events of a stream from the next process."""
    async with server.app.router.lifespan_context(server.app), server.client() as client:
        if path == CHAT:
            found = await client.get(f"{CHAT}/{run_id}/events")
        else:
            found = await client.get(f"{RESPONSES}/{run_id}?stream=true")
    return re.sub(r"^id: \d+\n", "", found.text, flags=re.MULTILINE)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("num_events", [0, 1, 3, 5, 8])
def test_events_after_a_restart_are_those_before(path: str, num_events: int) -> None:
    parent = FakeParent()
    run_id, start = asyncio.run(killed_after(Server(parent), parent, path, num_events))
    whole = asyncio.run(restored(Server(parent), path, run_id))
    assert whole.startswith(start)
    data = [json.loads(line[6:]) for line in whole.splitlines() if line.startswith("data: {")]
    if path == RESPONSES:
        assert [each["sequence_number"] for each in data] == list(range(len(data)))
        assert data[-1]["type"] == "response.completed"
        assert {each["item_id"] for each in data if "item_id" in each} == {
            item["id"] for item in data[-1]["response"]["output"]
        }
    else:
        assert whole.endswith("data: [DONE]\n\n")
        assert {each["id"] for each in data} == {run_id}
    calls = set(re.findall(r'"(?:call_id|id)":"(call_[^"]*|chatcmpl-tool[^"]*)"', whole))
    assert len(calls) == 1, calls
