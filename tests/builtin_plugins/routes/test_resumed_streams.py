"""Streams that outlive their connections, and are continued after any event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.routes.common import event_runs
from builtin_plugins.routes.common.event_runs import EventRun, EventRuns
from core.api import InvalidRequest

ONE = {"Authorization": "Bearer one"}
TWO = {"x-api-key": "two"}
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


def run_with(api: Any, work: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        transport = httpx.ASGITransport(api.server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await work(client)

    asyncio.run(run())


def body(path: str, **fields: Any) -> dict[str, Any]:
    text = "a long text with many tokens"
    given = (
        {"input": text} if path == RESPONSES else {"messages": [{"role": "user", "content": text}]}
    )
    return {**given, "stream": True, **fields}


class Connection:
    """One HTTP request, from which the client can disconnect."""

    def __init__(self, api: Any, path: str, fields: dict[str, Any]) -> None:
        self.text = ""
        self.gone = asyncio.Event()
        self._sent = asyncio.Event()
        encoded = json.dumps(fields).encode()
        self._messages = [{"type": "http.request", "body": encoded}]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"authorization", b"Bearer one"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
        }
        self.task = asyncio.ensure_future(api.server.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.text += message.get("body", b"").decode()
        self._sent.set()

    async def read(self, num_events: int) -> None:
        while self.text.count("\n\n") < num_events:
            self._sent.clear()
            await self._sent.wait()

    async def leave(self) -> None:
        self.gone.set()
        await self.task


@asynccontextmanager
async def cut_stream(
    api: Any, path: str, num_events: int, **fields: Any
) -> AsyncIterator[tuple[str, str]]:
    """Read the start of a stream, and leave; yield its id and what was read."""
    api.engine.gate.clear()
    connection = Connection(api, path, body(path, **fields))
    if num_events:
        api.engine.gate.set()
        await connection.read(num_events)
    await connection.leave()
    first = json.loads(connection.text.partition("data: ")[2].partition("\n")[0])
    yield first["response"]["id"] if path == RESPONSES else first["id"], connection.text


def events_of(text: str) -> list[str]:
    assert text.endswith("\n\n")
    return text.split("\n\n")[:-1]


def resume(path: str, stream_id: str, after: int) -> tuple[str, dict[str, str]]:
    if path == RESPONSES:
        return f"{path}/{stream_id}?stream=true&starting_after={after}", ONE
    return f"{path}/{stream_id}/events", {**ONE, "Last-Event-ID": str(after)}


@pytest.mark.parametrize("path", [RESPONSES, CHAT])
def test_stream_continues_after_any_event_without_gap_or_repetition(
    make_api: Any, path: str
) -> None:
    api = make_api(api_key=["one", "two"], stream_resume_timeout=60.0)

    async def work(client: httpx.AsyncClient) -> None:
        async with cut_stream(api, path, 3) as (stream_id, start):
            url, headers = resume(path, stream_id, -1)
            whole = (await client.get(url, headers=headers)).text
            events = events_of(whole)
            assert whole.startswith(start)
            assert len(events) > 5
            if path == CHAT:
                assert events[-1].endswith("data: [DONE]")
                assert [event.partition("\n")[0] for event in events] == [
                    f"id: {i}" for i in range(len(events))
                ]
            for after in range(-1, len(events)):
                url, headers = resume(path, stream_id, after)
                rest = (await client.get(url, headers=headers)).text
                assert events_of(rest) == events[after + 1 :] if rest else after == len(events) - 1
        assert not api.engine.aborted

    run_with(api, work)


@pytest.mark.parametrize("path", [RESPONSES, CHAT])
def test_cut_stream_equals_an_undisturbed_one(make_api: Any, path: str) -> None:
    api = make_api(api_key=["one", "two"], stream_resume_timeout=60.0)

    def texts(stream: str) -> list[Any]:
        found = []
        for event in events_of(stream):
            data = event.partition("data: ")[2]
            if data != "[DONE]":
                value = json.loads(data)
                found.append(value.get("delta") or value.get("choices"))
        return found

    async def work(client: httpx.AsyncClient) -> None:
        undisturbed = (await client.post(path, json=body(path), headers=ONE)).text
        async with cut_stream(api, path, 4) as (stream_id, start):
            url, headers = resume(path, stream_id, len(events_of(start)) - 1)
            rest = (await client.get(url, headers=headers)).text
        assert texts(start + rest) == texts(undisturbed)

    run_with(api, work)


@pytest.mark.parametrize("path", [RESPONSES, CHAT])
def test_stream_of_another_key_is_a_404(make_api: Any, path: str) -> None:
    api = make_api(api_key=["one", "two"], stream_resume_timeout=60.0)

    async def work(client: httpx.AsyncClient) -> None:
        async with cut_stream(api, path, 3) as (stream_id, _):
            url, headers = resume(path, stream_id, -1)
            del headers  # those of the owner
            assert (await client.get(url, headers=TWO)).status_code == 404
            assert (await client.get(url, headers=ONE)).status_code == 200

    run_with(api, work)


@pytest.mark.parametrize("path", [RESPONSES, CHAT])
def test_stream_that_is_not_continued_is_aborted(make_api: Any, path: str) -> None:
    api = make_api(api_key=["one", "two"], stream_resume_timeout=0.01)

    async def work(client: httpx.AsyncClient) -> None:
        api.engine.gate.clear()
        connection = Connection(api, path, body(path))
        while not api.engine.open:
            await asyncio.sleep(0)
        await connection.leave()
        while not api.engine.aborted:
            await asyncio.sleep(0.001)
        api.engine.gate.set()

    run_with(api, work)


@pytest.mark.parametrize("path", [RESPONSES, CHAT])
def test_streams_end_with_their_connection_by_default(make_api: Any, path: str) -> None:
    api = make_api(api_key=["one", "two"])

    async def work(client: httpx.AsyncClient) -> None:
        api.engine.gate.clear()
        connection = Connection(api, path, body(path))
        while not api.engine.open:
            await asyncio.sleep(0)
        await connection.leave()
        assert api.engine.aborted

    run_with(api, work)


def test_events_of_a_background_response_are_held_after_its_end(make_api: Any) -> None:
    api = make_api(api_key=["one", "two"])

    async def work(client: httpx.AsyncClient) -> None:
        fields = {"input": "hello", "background": True, "stream": True}
        whole = (await client.post(RESPONSES, json=fields, headers=ONE)).text
        response_id = json.loads(whole.partition("data: ")[2].partition("\n")[0])["response"]["id"]
        path = f"{RESPONSES}/{response_id}?stream=true&starting_after=1"
        assert (await client.get(path, headers=ONE)).text == "".join(
            f"{event}\n\n" for event in events_of(whole)[2:]
        )
        await client.delete(f"{RESPONSES}/{response_id}", headers=ONE)
        assert (await client.get(path, headers=ONE)).status_code == 404

    run_with(api, work)


def test_error_in_a_continued_stream_is_its_last_event(make_api: Any) -> None:
    api = make_api(api_key=["one", "two"], stream_resume_timeout=60.0)
    api.engine.fail_at = 5

    async def work(client: httpx.AsyncClient) -> None:
        whole = await client.post(CHAT, json=body(CHAT), headers=ONE)
        assert whole.status_code == 200
        first = json.loads(whole.text.partition("data: ")[2].partition("\n")[0])
        url, headers = resume(CHAT, first["id"], 0)
        rest = (await client.get(url, headers=headers)).text
        assert '"error"' in events_of(whole.text)[-2]
        assert events_of(rest) == events_of(whole.text)[1:]

    run_with(api, work)


@pytest.mark.parametrize("number", ["a", "-2", "1e3", "9" * 20, "\u0663"])
def test_invalid_number_of_an_event_is_refused_by_name(make_api: Any, number: str) -> None:
    api = make_api(api_key=["one", "two"], stream_resume_timeout=60.0)

    async def work(client: httpx.AsyncClient) -> None:
        async with cut_stream(api, CHAT, 3) as (stream_id, _):
            headers = {**ONE, "Last-Event-ID": number.encode()}
            refused = await client.get(f"{CHAT}/{stream_id}/events", headers=headers)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "Last-Event-ID"

    run_with(api, work)


def test_same_id_of_a_client_twice_answers_both(make_api: Any) -> None:
    api = make_api(api_key=["one", "two"], stream_resume_timeout=60.0)

    async def work(client: httpx.AsyncClient) -> None:
        headers = {**ONE, "x-request-id": "mine"}
        both = await asyncio.gather(
            *(client.post(CHAT, json=body(CHAT), headers=headers) for _ in range(2))
        )
        assert [answer.status_code for answer in both] == [200, 200]
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in both)

    run_with(api, work)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(1, 300), st.booleans()),
        max_size=60,
    )
)
def test_held_events_of_an_owner_are_bounded_and_other_owners_lose_none(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    limit = 1_000

    async def run() -> None:
        runs = EventRuns()
        gates: dict[tuple[str, str], asyncio.Event] = {}
        made: dict[tuple[str, str], EventRun] = {}
        for owner, number, size, ends in steps:
            key = (owner, str(number))
            if runs.get(*key) is None:
                gates[key] = asyncio.Event()
                made[key] = EventRun(*key)
                runs.start(made[key], gates[key].wait())
            if not made[key].is_running:
                continue
            others = {k: r.num_bytes for k, r in made.items() if k[0] != owner and runs.get(*k)}
            runs.append(made[key], b"x" * size + b"\n\n")
            assert others == {k: r.num_bytes for k, r in made.items() if k in others}
            held = sum(r.num_bytes for k, r in made.items() if k[0] == owner and runs.get(*k) is r)
            assert held <= limit
            if ends:
                gates[key].set()
                while made[key].is_running:
                    await asyncio.sleep(0)
        for key, each in made.items():
            if runs.get(*key) is not None:
                first = each._first
                if first:
                    with pytest.raises(InvalidRequest, match="starting_after"):
                        each.check(first - 1)
                each.check(first)
                await each.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_runs, "MAX_OWNER_BYTES", limit)
        asyncio.run(run())


def test_events_of_ended_answers_are_held_for_some_minutes() -> None:
    now_s = [0.0]

    async def run() -> None:
        runs = EventRuns(lambda: now_s[0])
        run = EventRun("a", "1")
        runs.start(run, asyncio.sleep(0))
        while run.is_running:
            await asyncio.sleep(0)
        run.ended_s = 0.0
        now_s[0] = event_runs.HELD_S
        assert runs.get("a", "1") is run
        now_s[0] += 1
        assert runs.get("a", "1") is None

    asyncio.run(run())
