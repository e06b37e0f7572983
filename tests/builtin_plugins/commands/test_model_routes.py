"""Requests to a server of several models: each reaches the model that it names; with processes that
answer with what they got.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from builtin_plugins.commands.route.proxy import Address, call_engine
from builtin_plugins.commands.serve.models.metrics import merge_pages
from builtin_plugins.commands.serve.models.pool import ModelPool
from builtin_plugins.commands.serve.models.process import LoadFailed
from builtin_plugins.commands.serve.models.server import ServedPool, route_groups
from builtin_plugins.commands.serve.models.settings import ModelSettings
from builtin_plugins.servers.http.server import HttpServer
from core.config import EngineConfig
from tests.timeouts import TIMEOUT_S

PAGES: Mapping[str, Any] = {
    "/health": {"status": "ready"},
    "/readyz": {"status": "ready"},
}


class EchoProcess:
    """A process that answers with the request; some paths and models answer otherwise."""

    def __init__(self, folder: Path, settings: ModelSettings) -> None:
        self.name = settings.name
        self.address = Address("http://x", "", 0, is_https=False, uds=str(folder / self.name))
        self.is_alive = True
        self.adapters: set[str] = set()
        self.requests: list[tuple[str, Any]] = []

    def follow(self) -> None:
        pass

    def exit_reason(self) -> str:
        return ""

    def get(self, target: bytes, timeout_s: float) -> AbstractAsyncContextManager[Any]:
        return call_engine(self.address, b"GET", target, [], b"", timeout_s)

    async def ready(self) -> None:
        if self.name == "broken":
            raise LoadFailed("no weights")
        self._server = await asyncio.start_unix_server(self._serve, self.address.uds)

    async def stop(self) -> None:
        if hasattr(self, "_server"):
            self._server.close()

    def terminate(self) -> None:
        pass

    def close(self) -> None:
        pass

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
        body = await reader.readexactly(length)
        target = head.split(" ")[1]
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        if target not in PAGES and not target.startswith("/v1/models"):
            self.requests.append((target, json.loads(body) if body else None))
        status, content = self._answer(target, body, fields)
        if fields.get("x-break"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
            writer.write(b"transfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n")
        else:
            text = content if isinstance(content, bytes) else json.dumps(content).encode()
            writer.write(
                b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(text)) + text
            )
        await writer.drain()
        writer.close()

    def _answer(self, target: str, body: bytes, fields: Mapping[str, str]) -> tuple[int, Any]:
        if target in PAGES:
            return 200, PAGES[target]
        if target == "/v1/models":
            return 200, {"data": [{"id": name} for name in (self.name, *sorted(self.adapters))]}
        if target.startswith("/v1/models/"):
            return (200 if target.rpartition("/")[2] in self.adapters else 404), {}
        if target == "/v1/load_lora_adapter":
            self.adapters.add(json.loads(body)["lora_name"])
            return 200, b"Success"
        if target == "/metrics":
            return 200, b"# HELP a A.\n# TYPE a counter\na 1.0\n# HELP b B.\n# TYPE b gauge\n" + (
                b'b{model_name="%s",x="1"} 2.0\n' % self.name.encode()
            )
        if target.startswith("/v1/responses/"):
            return (200 if self.name in target else 404), {"model": self.name}
        if target == "/reset_prefix_cache":
            return (409 if self.name == "two" else 200), {"of": self.name}
        return 200, {
            "model": self.name,
            "target": target,
            "for": fields.get("x-forwarded-for"),
            "key": fields.get("authorization"),
        }


class EchoStarter:
    """Starts such processes, and remembers them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.processes: dict[str, EchoProcess] = {}

    def start(self, number: int, settings: ModelSettings) -> Any:
        self.processes[settings.name] = EchoProcess(self._folder, settings)
        return self.processes[settings.name]

    def preserve(self, settings: ModelSettings, process: Any) -> None:
        pass

    def preserved(self, settings: ModelSettings) -> Any:
        return None


class Api:
    """The application of a pool with the models one, two (also called zwei*), broken."""

    def __init__(self, folder: Path, **options: Any) -> None:
        models = [
            ModelSettings(("one",), "m1", {}, None, ("early",), has_adapters=True),
            ModelSettings(("two", "zwei*"), "m2", {}, None),
            ModelSettings(("broken",), "m3", {}, None),
        ]
        self.starter = EchoStarter(folder)
        self.pool = ModelPool(models, self.starter, max_loaded=3, max_queue=10)
        config = EngineConfig(options=options)
        pool: Any = ServedPool(self.pool)
        self.app = HttpServer(pool, config, route_groups(self.pool, config)).app

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(self.app, client=("10.1.2.3", 5))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://models", timeout=TIMEOUT_S
        ) as client:
            yield client
        for process in self.starter.processes.values():
            await process.stop()


def send(api: Api, *requests: tuple[str, str, Any]) -> list[httpx.Response]:
    """Return the answers to requests (method, path, JSON body or None), one after the other."""

    async def send_all() -> list[httpx.Response]:
        async with api.client() as client:
            return [
                await client.request(method, path, **({} if body is None else {"json": body}))
                for method, path, body in requests
            ]

    return asyncio.run(send_all())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v2/chat", "/tokenize"])
@pytest.mark.parametrize(
    ("name", "model"), [("one", "one"), ("two", "two"), ("zwei-b", "two"), ("early", "one")]
)
def test_requests_reach_the_model_they_name(
    tmp_path: Path, path: str, name: str, model: str
) -> None:
    (reply,) = send(Api(tmp_path), ("POST", path, {"model": name}))
    assert reply.json() == {"model": model, "target": path, "for": "10.1.2.3", "key": None}


def test_a_query_names_the_model_too_and_the_process_does_not_see_it(tmp_path: Path) -> None:
    (reply,) = send(Api(tmp_path), ("GET", "/openapi.json?a=1&model=two&b=", None))
    assert reply.json()["model"] == "two"
    assert reply.json()["target"] == "/openapi.json?a=1&b="


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/v1/completions", {"error": {"message": "M", "type": "T", "param": "model"}}),
        ("/v1/messages", {"type": "error", "error": {"message": "M", "type": "T"}}),
        ("/v2/chat", {"message": "M", "type": "T"}),
    ],
)
def test_errors_about_models_have_the_form_of_the_protocol(
    tmp_path: Path, path: str, found: dict[str, Any]
) -> None:
    replies = send(
        Api(tmp_path),
        ("POST", path, {"model": "three"}),
        ("POST", path, {"prompt": "x"}),
        ("POST", path, {"model": "broken"}),
        ("POST", path, {"model": "broken"}),
    )
    assert [reply.status_code for reply in replies] == [404, 400, 503, 503]
    errors = [reply.json().get("error", reply.json()) for reply in replies]
    assert all(reply.json().keys() >= found.keys() for reply in replies)
    served = "one, two, zwei*, broken, early"
    assert errors[0]["message"] == f"the model 'three' does not exist here; served: {served}."
    assert errors[1]["message"] == f"model: got none; expected one of {served}. Name one."
    assert errors[2]["message"] == "the model 'broken' cannot be loaded: no weights"
    assert errors[3]["code"] == "model_unavailable"
    assert int(replies[3].headers["retry-after"]) > 0


def test_calls_of_engines_answer_for_each_loaded_model(tmp_path: Path) -> None:
    api = Api(tmp_path)
    replies = send(
        api,
        ("POST", "/reset_prefix_cache", None),
        ("POST", "/tokenize", {"model": "one"}),
        ("POST", "/reset_prefix_cache?model=two", None),
        ("POST", "/reset_prefix_cache?model=one", None),
        ("POST", "/tokenize", {"model": "two"}),
        ("POST", "/reset_prefix_cache", None),
    )
    assert [reply.status_code for reply in replies] == [409, 200, 409, 200, 200, 409]
    assert "no model is loaded" in replies[0].json()["error"]["message"]
    assert "'two' is not loaded (unloaded)" in replies[2].json()["error"]["message"]
    assert replies[3].json() == {"of": "one"}
    assert replies[5].json() == {
        "models": {
            "one": {"status": 200, "answer": {"of": "one"}},
            "two": {"status": 409, "answer": {"of": "two"}},
        }
    }


def test_requests_by_id_reach_the_loaded_model_that_knows_it(tmp_path: Path) -> None:
    replies = send(
        Api(tmp_path),
        ("GET", "/v1/responses/resp_two", None),
        ("POST", "/tokenize", {"model": "one"}),
        ("POST", "/tokenize", {"model": "two"}),
        ("GET", "/v1/responses/resp_two", None),
        ("POST", "/v1/responses/resp_two/cancel", None),
        ("DELETE", "/v1/responses/resp_x", None),
    )
    assert [reply.status_code for reply in replies] == [404, 200, 200, 200, 200, 404]
    assert replies[3].json() == {"model": "two"}


def test_states_of_models_are_on_the_pages(tmp_path: Path) -> None:
    replies = send(
        Api(tmp_path, enable_server_load_tracking=True),
        ("POST", "/tokenize", {"model": "one"}),
        ("POST", "/tokenize", {"model": "broken"}),
        ("GET", "/v1/models", None),
        ("GET", "/health", None),
        ("GET", "/health?model=one", None),
        ("GET", "/health?model=two", None),
        ("GET", "/health?model=broken", None),
        ("GET", "/health?model=none", None),
        ("GET", "/v1/models/zwei-x", None),
        ("GET", "/load", None),
        ("GET", "/metrics", None),
        ("GET", "/readyz", None),
    )
    states = {card["id"]: card["status"]["value"] for card in replies[2].json()["data"]}
    assert states == {"one": "loaded", "two": "unloaded", "zwei*": "unloaded", "broken": "failed"}
    models = replies[3].json()["models"]
    assert {name: each["value"] for name, each in models.items()} == {
        "one": "loaded",
        "two": "unloaded",
        "broken": "failed",
    }
    assert models["one"]["engine"] == {"status": "ready"}
    assert models["broken"]["reason"] == "no weights"
    assert [reply.status_code for reply in replies[4:8]] == [200, 200, 503, 404]
    assert replies[8].json()["id"] == "zwei-x"
    assert replies[9].json() == {
        "server_load": 0,
        "models": {"one": 0, "two": 0, "broken": 0},
    }
    page = replies[10].text
    assert 'engine_model_loaded{model_name="one"} 1\n' in page
    assert 'engine_model_loads_total{model_name="two"} 0\n' in page
    assert 'a{model_name="one"} 1.0\n' in page
    assert replies[11].status_code == 200


def test_adapters_of_clients_select_their_model_also_after_it_was_reloaded(tmp_path: Path) -> None:
    api = Api(tmp_path, enable_operator_routes=True)
    load = {"lora_name": "late", "lora_path": "/a", "base_model_name": "one"}
    replies = send(
        api,
        ("POST", "/v1/load_lora_adapter", load),
        ("POST", "/v1/completions", {"model": "late"}),
        ("POST", "/models/unload", {"model": "one"}),
        ("POST", "/v1/completions", {"model": "late"}),
        ("POST", "/v1/unload_lora_adapter", {"lora_name": "late"}),
        ("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "/a"}),
    )
    assert [reply.status_code for reply in replies] == [200, 200, 200, 200, 200, 400]
    assert api.starter.processes["one"].requests[0] == ("/v1/load_lora_adapter", load)
    assert api.pool.models[0].num_loads == 2


def test_models_with_adapters_are_queried_for_unknown_names(tmp_path: Path) -> None:
    api = Api(tmp_path)

    async def test() -> None:
        async with api.client() as client:
            await client.post("/tokenize", json={"model": "one"})
            api.starter.processes["one"].adapters.add("found")
            reply = await client.post("/v1/completions", json={"model": "found"})
            assert reply.json()["model"] == "one"
            reply = await client.post("/v1/completions", json={"model": "lost"})
            assert reply.status_code == 404

    asyncio.run(test())


def test_keys_are_checked_before_a_model_is_loaded_and_sent_on(tmp_path: Path) -> None:
    api = Api(tmp_path, api_key=["k"])

    async def test() -> None:
        async with api.client() as client:
            reply = await client.post("/tokenize", json={"model": "one"})
            assert reply.status_code == 401
            assert api.pool.models[0].num_loads == 0
            headers = {"Authorization": "Bearer k", "X-Forwarded-For": "6.6.6.6"}
            reply = await client.post("/tokenize", json={"model": "one"}, headers=headers)
            assert reply.json()["key"] == "bearer k"
            assert reply.json()["for"] == "10.1.2.3"

    asyncio.run(test())


def test_a_stream_of_an_ended_process_ends_with_an_error(tmp_path: Path) -> None:
    async def test() -> None:
        async with Api(tmp_path).client() as client:
            reply = await client.post(
                "/v1/completions", json={"model": "one"}, headers={"X-Break": "1"}
            )
            first, error, done, _ = reply.text.split("\n\n")
            assert first == "data: 1"
            assert "the model's process has ended" in error
            assert done == "data: [DONE]"

    asyncio.run(test())


def test_operators_load_and_unload_models_with_their_switch_only(tmp_path: Path) -> None:
    api = Api(tmp_path, enable_operator_routes=True)
    load, unload = send(
        api, ("POST", "/models/load", {"model": "one"}), ("POST", "/models/unload?model=one", None)
    )
    assert load.json()["status"]["value"] == "loaded"
    assert unload.json()["status"]["value"] == "unloading"
    (reply,) = send(Api(tmp_path), ("POST", "/models/load", {"model": "broken"}))
    assert reply.status_code == 503  # a path like all others, which names a model


def test_pages_of_metrics_are_merged_by_family() -> None:
    one = '# HELP a A.\n# TYPE a histogram\na_bucket{le="1"} 1\na_count 1\n# EOF\n'
    two = '# HELP a A.\n# TYPE a histogram\na_bucket{model_name="x",le="1"} 2\n'
    assert merge_pages({'o"ne': one, "two": two}) == (
        "# HELP a A.\n# TYPE a histogram\n"
        'a_bucket{model_name="o\\"ne",le="1"} 1\n'
        'a_count{model_name="o\\"ne"} 1\n'
        'a_bucket{model_name="x",le="1"} 2\n'
    )
