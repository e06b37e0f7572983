"""Two API keys over every route of `/openapi.json`: nothing of one key is seen, changed or ended.

A route without a rule here fails; so does a rule without a route. What is visible to all keys is
described in `docs/guides/limits.md`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from builtin_plugins.routes.common.request_ids import id_aliases
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from tests.timeouts import TIMEOUT_S

ONE = {"Authorization": "Bearer sesame-key"}
TWO = {"x-api-key": "two"}
MARK = "sesame"
"""Word in all that the first key sends."""
UNKNOWN = "unknown-0"


@dataclass(frozen=True)
class Rule:
    """How the second key calls a route, and what it gets."""

    body: dict[str, Any] | None = None
    """Body; `{id}` stands for the id of something that belongs to the first key."""
    owned: bool = False
    """Whether the id is that of an owner's object, which is a 404 for others."""
    statuses: tuple[int, ...] = (200,)


MESSAGES = [{"role": "user", "content": "b"}]
TEXTS = {"prompt": "b", "max_tokens": 2, "request_id": "{id}", "cache_salt": "{id}"}
CHAT = {**TEXTS, "messages": MESSAGES}
del CHAT["prompt"]
NOT_POOLING = (400, 404)
"""The model generates."""
RULES = {
    ("GET", "/health"): Rule(),
    ("GET", "/kv_event_sources"): Rule(),
    ("GET", "/livez"): Rule(),
    ("GET", "/metrics"): Rule(),
    ("GET", "/ping"): Rule(),
    ("GET", "/playground/request"): Rule(statuses=(400,)),
    ("GET", "/playground/state"): Rule(),
    ("POST", "/ping"): Rule(),
    ("GET", "/readyz"): Rule(),
    ("GET", "/version"): Rule(),
    ("GET", "/v1/models"): Rule(),
    ("GET", "/v1/models/{model}"): Rule(owned=True),
    ("GET", "/tokenizer_info"): Rule(),
    ("GET", "/v1/chat/completions/{completion_id}/events"): Rule(owned=True),
    ("GET", "/v1/responses/{response_id}"): Rule(owned=True),
    ("GET", "/v1/responses/{response_id}/input_items"): Rule(owned=True),
    ("POST", "/v1/responses/{response_id}/cancel"): Rule(owned=True),
    ("DELETE", "/v1/responses/{response_id}"): Rule(owned=True),
    ("POST", "/v1/responses"): Rule(
        {"input": "b", "previous_response_id": "{id}", "max_output_tokens": 2}, owned=True
    ),
    ("POST", "/v1/responses/input_tokens"): Rule(
        {"input": "b", "previous_response_id": "{id}"}, owned=True
    ),
    ("POST", "/v1/responses/compact"): Rule(
        {"model": "scripted", "previous_response_id": "{id}", "max_output_tokens": 2}, owned=True
    ),
    ("POST", "/abort_requests"): Rule({"request_ids": ["{id}"]}),
    ("POST", "/inference/v1/generate"): Rule(
        {"token_ids": [65, 66], "sampling_params": {"max_tokens": 2}, "request_id": "{id}"}
    ),
    ("POST", "/invocations"): Rule(CHAT),
    ("POST", "/tokenize"): Rule({"prompt": "b"}),
    ("POST", "/detokenize"): Rule({"tokens": [65]}),
    ("POST", "/v1/completions"): Rule(TEXTS),
    ("POST", "/v1/completions/render"): Rule(TEXTS),
    ("POST", "/v1/chat/completions"): Rule(CHAT),
    ("POST", "/v1/chat/completions/batch"): Rule({**CHAT, "messages": [MESSAGES, MESSAGES]}),
    ("POST", "/v1/chat/completions/render"): Rule(CHAT),
    ("POST", "/v1/chat/completions/derender"): Rule(
        {"generate_response": {"choices": [{"token_ids": [65]}]}}
    ),
    ("POST", "/v1/completions/derender"): Rule(
        {"generate_responses": [{"choices": [{"token_ids": [65]}]}]}
    ),
    ("POST", "/v1/messages"): Rule({"messages": MESSAGES, "max_tokens": 2, "model": "scripted"}),
    ("POST", "/v1/messages/count_tokens"): Rule({"messages": MESSAGES, "model": "scripted"}),
    ("POST", "/v2/chat"): Rule({"messages": MESSAGES, "max_tokens": 2, "model": "scripted"}),
    ("POST", "/v1/decisions"): Rule(
        {"messages": MESSAGES, "labels": ["b", "c"]}, statuses=(200, 400)
    ),
    ("POST", "/generative_scoring"): Rule(
        {"query": "b", "items": ["c"], "label_token_ids": [65, 66]}, statuses=(200, 400)
    ),
    ("POST", "/classify"): Rule({"input": "b"}, statuses=NOT_POOLING),
    ("POST", "/pooling"): Rule({"input": "b"}, statuses=NOT_POOLING),
    ("POST", "/v1/embeddings"): Rule({"input": "b"}, statuses=NOT_POOLING),
    **{
        ("POST", path): Rule({"query": "b", "documents": ["c"]}, statuses=NOT_POOLING)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    },
    **{
        ("POST", path): Rule({"text_1": "b", "text_2": "c"}, statuses=NOT_POOLING)
        for path in ("/score", "/v1/score")
    },
    ("POST", "/v2/embed"): Rule(
        {"texts": ["b"], "model": "scripted", "input_type": "search_query"}, statuses=NOT_POOLING
    ),
}
OPERATOR = {
    *(("GET", path) for path in ("/explain", "/is_paused", "/is_sleeping", "/server_info")),
    *(("POST", path) for path in ("/collective_rpc", "/pause", "/resume", "/sleep", "/wake_up")),
    *(("POST", f"/reset_{cache}_cache") for cache in ("encoder", "mm", "prefix")),
    *(("POST", path) for path in ("/start_profile", "/stop_profile", "/release_kv_cache_memory")),
}
"""Routes of `--enable-operator-routes`: every key may use them on all requests."""
UNLISTED = {
    *(f"/playground{name}" for name in ("", "/", "/state")),
    *("/openapi.json", "/", "/v1/responses"),
}
"""Paths of routes that are not in the document; the WebSocket has a test of its own."""


class Served:
    """A server with all routes, and a client of both keys."""

    def __init__(self, **options: Any) -> None:
        self.engine = AsyncLLM(
            "scripted:",
            served_model_name=["scripted"],
            disable_frontend_multiprocessing=True,
            scripted_tokens_per_second=40,
            max_model_len=512,
            max_num_seqs=8,
            num_threads=1,
            log_level="error",
            api_key=[ONE["Authorization"].removeprefix("Bearer "), TWO["x-api-key"]],
            tokens_only=True,
            enable_scale_out=True,
            enable_tokenizer_info_endpoint=True,
            stream_resume_timeout=600.0,
            **options,
        )
        registry = self.engine.registry
        groups = {
            each.entry.name: registry.load(each)(self.engine, self.engine.config)
            for each in registry.entries("routes")
        }
        self.app = HttpServer(self.engine, self.engine.config, groups).app

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=TIMEOUT_S, headers={}
        )

    def is_open(self, answer_id: str) -> bool:
        return any(answer_id in id_aliases(each) for each in self.engine.open_ids())

    async def operations(self, client: httpx.AsyncClient) -> set[tuple[str, str]]:
        paths = (await client.get("/openapi.json", headers=TWO)).json()["paths"]
        return {(method.upper(), path) for path, methods in paths.items() for method in methods}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    found = Served()
    yield found
    found.engine.shutdown()


def filled(value: Any, object_id: str) -> Any:
    if isinstance(value, dict):
        return {name: filled(item, object_id) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item, object_id) for item in value]
    return value.replace("{id}", object_id) if isinstance(value, str) else value


async def call(
    client: httpx.AsyncClient, route: tuple[str, str], object_id: str, headers: dict[str, str]
) -> httpx.Response:
    method, template = route
    start, brace, rest = template.partition("{")
    path = start + object_id + rest.partition("}")[2] if brace else template
    if not brace and template == "/abort_requests":
        headers = {**headers, "x-request-id": object_id}
    body = RULES[route].body
    return await client.request(
        method, path, json=filled(body, object_id) if body else None, headers=headers
    )


class Belongings:
    """What the first key leaves on the server."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.stored = ""
        self.running = ""
        self.stream = f"chatcmpl-{MARK}-stream"
        self.tokens = f"generate-tokens-{MARK}"

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self._client.post(path, json=body, headers=ONE)

    async def make(self) -> None:
        """Store a response, and start a background response, a held stream and a generation."""
        marked = {"metadata": {MARK: MARK}, "user": MARK, "instructions": MARK}
        stored = await self.post("/v1/responses", input=MARK, max_output_tokens=2, **marked)
        self.stored = stored.json()["id"]
        running = await self.post(
            "/v1/responses", input=f"{MARK} runs", background=True, max_output_tokens=60, **marked
        )
        self.running = running.json()["id"]
        self.streamed = asyncio.ensure_future(
            self.post(
                "/v1/chat/completions",
                messages=[{"role": "user", "content": f"{MARK} streams"}],
                stream=True,
                request_id=f"{MARK}-stream",
                max_tokens=60,
            )
        )
        self.generated = asyncio.ensure_future(
            self.post(
                "/inference/v1/generate",
                token_ids=[65, 66, 67],
                request_id=MARK,
                sampling_params={"max_tokens": 160, "ignore_eos": True},
            )
        )

    @property
    def ids(self) -> tuple[str, ...]:
        return self.stored, self.running, self.stream, self.tokens

    async def state(self) -> dict[str, Any]:
        """Return everything, once it has ended."""
        while True:
            path = f"/v1/responses/{self.running}"
            running = (await self._client.get(path, headers=ONE)).json()
            if running["status"] not in ("queued", "in_progress"):
                break
            await asyncio.sleep(0.02)
        stored = (await self._client.get(f"/v1/responses/{self.stored}", headers=ONE)).json()
        events = f"/v1/chat/completions/{self.stream}/events"
        held = (await self._client.get(events, headers=ONE)).text
        return {
            "stored": (stored["status"], stored["output"][0]["content"]),
            "running": (running["status"], running["output"][0]["content"]),
            "stream": _text((await self.streamed).text),
            "held": _text(held),
            "generated": (await self.generated).json()["choices"],
        }


def _text(stream: str) -> str:
    """Return the text of a stream, which is cut into events as the machine is busy."""
    events = [event.partition("data: ")[2] for event in stream.split("\n\n")[:-1]]
    choices = [json.loads(event)["choices"] for event in events if event != "[DONE]"]
    return "".join(choice["delta"].get("content") or "" for each in choices for choice in each)


def test_every_route_has_a_rule() -> None:
    served = Served(enable_operator_routes=True, enable_sleep_mode=True)

    async def run() -> None:
        async with served.client() as client:
            assert await served.operations(client) == RULES.keys() | OPERATOR

    try:
        asyncio.run(run())
        listed = {path for _, path in RULES.keys() | OPERATOR}
        unlisted = {
            route.path
            for route in served.app.routes
            if route.path.replace(":path", "") not in listed
            and not route.path.startswith("/playground/")
        }
        assert unlisted <= UNLISTED
    finally:
        served.engine.shutdown()


def test_second_key_sees_changes_and_ends_nothing_of_the_first(served: Served) -> None:
    async def run() -> None:
        async with served.client() as client:
            undisturbed = Belongings(client)
            await undisturbed.make()
            expected = await undisturbed.state()
            assert expected["running"][0] in ("completed", "incomplete")
            for response_id in (undisturbed.stored, undisturbed.running):
                await client.delete(f"/v1/responses/{response_id}", headers=ONE)
            belongings = Belongings(client)
            await belongings.make()
            while not served.is_open(belongings.tokens):
                await asyncio.sleep(0)
            abort = ("POST", "/abort_requests")
            for route in sorted(RULES, key=lambda each: (each != abort, each)):
                assert route != abort or served.is_open(belongings.tokens)
                rule = RULES[route]
                unknown = await call(client, route, UNKNOWN, TWO)
                for object_id in belongings.ids:
                    answer = await call(client, route, object_id, TWO)
                    seen = (answer.text + str(answer.headers)).replace(object_id, UNKNOWN)
                    assert MARK not in seen, (route, answer.text)
                    assert not any(other in seen for other in belongings.ids), (route, answer.text)
                    assert answer.status_code == unknown.status_code, (route, answer.text)
                    if rule.owned:
                        assert answer.status_code == 404, (route, answer.text)
                        assert answer.text.replace(object_id, UNKNOWN) == unknown.text
                    else:
                        assert answer.status_code in rule.statuses, (route, answer.text)
            assert await belongings.state() == expected

    asyncio.run(run())


def test_first_key_gets_what_the_second_is_refused(served: Served) -> None:
    """The walk above fails if a rule is wrong: its calls succeed with the owner's key."""

    async def run() -> None:
        async with served.client() as client:
            belongings = Belongings(client)
            await belongings.make()
            await belongings.state()
            last = ("DELETE", "/v1/responses/{response_id}")
            owned = [route for route, rule in RULES.items() if rule.owned and route != last]
            for route in [*owned, last]:
                object_id = belongings.stored
                if route[1].startswith("/v1/chat"):
                    object_id = belongings.stream
                elif route[1].startswith("/v1/models"):
                    object_id = "scripted"
                elif route[1].endswith("cancel"):
                    object_id = belongings.running
                answer = await call(client, route, object_id, ONE)
                assert answer.status_code == 200, (route, answer.text)

    asyncio.run(run())
