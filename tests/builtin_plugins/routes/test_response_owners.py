"""Stored and running responses belong to the client that made them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from builtin_plugins.routes.common.event_runs import MAX_OWNER_RUNS

ONE = {"Authorization": "Bearer one"}
TWO = {"x-api-key": "two"}


def in_one_loop(api: Any, work: Any) -> Any:
    async def run() -> Any:
        transport = httpx.ASGITransport(api.server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await work(client)

    return asyncio.run(run())


async def send(client: httpx.AsyncClient, headers: dict[str, str], **body: Any) -> httpx.Response:
    return await client.post("/v1/responses", json={"input": "hello", **body}, headers=headers)


ROUTES = [
    ("GET", "/v1/responses/{id}", None),
    ("GET", "/v1/responses/{id}?stream=true", None),
    ("GET", "/v1/responses/{id}/input_items", None),
    ("POST", "/v1/responses/{id}/cancel", None),
    ("POST", "/v1/responses", {"input": "a", "previous_response_id": "{id}"}),
    ("POST", "/v1/responses", {"input": "a", "previous_response_id": "{id}", "background": True}),
    ("POST", "/v1/responses/input_tokens", {"input": "a", "previous_response_id": "{id}"}),
    ("POST", "/v1/responses/compact", {"model": "echo", "previous_response_id": "{id}"}),
    ("DELETE", "/v1/responses/{id}", None),
]


def filled(value: Any, response_id: str) -> Any:
    if isinstance(value, dict):
        return {name: filled(item, response_id) for name, item in value.items()}
    return value.replace("{id}", response_id) if isinstance(value, str) else value


async def call(
    client: httpx.AsyncClient, headers: dict[str, str], route: Any, response_id: str
) -> httpx.Response:
    method, path, body = route
    return await client.request(
        method, filled(path, response_id), json=filled(body, response_id), headers=headers
    )


@pytest.mark.parametrize("is_running", [False, True])
def test_every_route_answers_404_to_another_key(make_api: Any, is_running: bool) -> None:
    api = make_api(api_key=["one", "two"])

    async def work(client: httpx.AsyncClient) -> None:
        if is_running:
            api.engine.gate.clear()
        made = (await send(client, ONE, background=is_running)).json()
        paths = (await client.get("/openapi.json", headers=ONE)).json()["paths"]
        stored = {path for path in paths if path.startswith("/v1/responses")}
        tried = {path.replace("{id}", "{response_id}").partition("?")[0] for _, path, _ in ROUTES}
        assert stored == tried
        for route in ROUTES:
            other = await call(client, TWO, route, made["id"])
            unknown = await call(client, TWO, route, "resp_0")
            assert other.status_code == 404, (route, other.text)
            assert other.text.replace(made["id"], "resp_0") == unknown.text
        own = (await client.get(f"/v1/responses/{made['id']}", headers=ONE)).json()
        assert own["status"] == ("queued" if is_running else "completed")
        assert not api.engine.aborted
        api.engine.gate.set()

    in_one_loop(api, work)


def test_websocket_of_another_key_cannot_continue_a_response(make_api: Any) -> None:
    def last_event(client: TestClient, headers: dict[str, str], response_id: str) -> Any:
        body = {"type": "response.create", "input": "a", "previous_response_id": response_id}
        with client.websocket_connect("/v1/responses", headers=headers) as socket:
            socket.send_json(body)
            while True:
                event = socket.receive_json()
                if event["type"] in ("response.completed", "error"):
                    return event

    with TestClient(make_api(api_key=["one", "two"]).server.app) as client:
        made = client.post("/v1/responses", json={"input": "hello"}, headers=ONE).json()
        assert last_event(client, ONE, made["id"])["type"] == "response.completed"
        other = last_event(client, TWO, made["id"])
        assert (other["status"], other["error"]["code"]) == (404, "previous_response_not_found")


def test_items_of_another_key_cannot_be_referenced(make_api: Any) -> None:
    async def work(client: httpx.AsyncClient) -> list[int]:
        (item,) = (await send(client, ONE)).json()["output"]
        reference = [{"type": "item_reference", "id": item["id"]}]
        return [(await send(client, key, input=reference)).status_code for key in (ONE, TWO)]

    assert in_one_loop(make_api(api_key=["one", "two"]), work) == [200, 400]


def test_one_key_empties_no_store_of_another(make_api: Any) -> None:
    api = make_api(api_key=["one", "two"], responses_store_bytes=10_000)

    async def work(client: httpx.AsyncClient) -> None:
        made = (await send(client, ONE)).json()["id"]
        api.engine.gate.clear()
        running = (await send(client, ONE, background=True)).json()["id"]
        codes = [
            (await send(client, TWO, input="x" * 200, background=True)).status_code
            for _ in range(12)
        ]
        assert codes[0] == 200
        assert codes[-1] == 503
        api.engine.gate.set()
        while True:
            body = (await client.get(f"/v1/responses/{running}", headers=ONE)).json()
            if body["status"] == "completed":
                break
            await asyncio.sleep(0)
        assert (await client.get(f"/v1/responses/{made}", headers=ONE)).status_code == 200

    in_one_loop(api, work)


def test_response_that_does_not_fit_says_so(make_api: Any) -> None:
    api = make_api(responses_store_bytes=10_000)

    async def work(client: httpx.AsyncClient) -> None:
        small = (await send(client, {})).json()
        large = (await send(client, {}, input=[{"role": "user", "content": "a"}] * 30)).json()
        assert (small["store"], large["store"]) == (True, False)
        found = await client.get(f"/v1/responses/{large['id']}")
        assert found.status_code == 404
        assert (await client.get(f"/v1/responses/{small['id']}")).status_code == 200

    in_one_loop(api, work)


def test_response_with_too_large_an_output_says_so(make_api: Any) -> None:
    api = make_api(responses_store_bytes=3_200)

    async def work(client: httpx.AsyncClient) -> None:
        body = (await send(client, {})).json()
        assert body["store"] is False  # the response's fields alone are larger than the share
        assert (await client.get(f"/v1/responses/{body['id']}")).status_code == 404

    in_one_loop(api, work)


def test_background_responses_of_one_key_leave_room_for_others(make_api: Any) -> None:
    api = make_api(api_key=["one", "two"])

    async def work(client: httpx.AsyncClient) -> list[int]:
        api.engine.gate.clear()
        codes = [
            (await send(client, ONE, background=True)).status_code
            for _ in range(MAX_OWNER_RUNS + 1)
        ]
        codes.append((await send(client, TWO, background=True)).status_code)
        api.engine.gate.set()
        return codes

    assert in_one_loop(api, work) == [200] * MAX_OWNER_RUNS + [503, 200]


def test_continuation_counts_the_stored_bytes_it_reads(make_api: Any) -> None:
    api = make_api(
        max_request_bytes=4_000, max_client_bytes_in_flight=20_000, max_bytes_in_flight=40_000
    )

    async def work(client: httpx.AsyncClient) -> None:
        items = [{"role": "user", "content": "a"}] * 100
        made = (await send(client, {}, input=items)).json()["id"]
        path = f"/v1/responses/{made}"
        assert (await client.get(f"{path}/input_items?limit=1")).status_code == 200
        reply = await send(client, {}, input="b", previous_response_id=made)
        assert reply.status_code == 429
        assert reply.headers["retry-after"]
        assert (await client.get(path)).status_code == 200
        assert api.server.app.guard._body_limiter.num_bytes == 0

    in_one_loop(api, work)
