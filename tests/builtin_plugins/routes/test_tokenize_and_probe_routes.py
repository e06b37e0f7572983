"""Models, tokenizer and probe routes."""

from __future__ import annotations

import asyncio
from importlib import metadata

import httpx
import pytest

from builtin_plugins.metric_sinks.prometheus.sink import PrometheusSink
from core.api.execution import CallAnswer
from core.api.telemetry import TokenStats
from core.frontend.metrics import SinkHealth


def test_models_list_served_names(api):
    card = api.get("/v1/models").json()["data"][0]
    assert (card["id"], card["object"], card["max_model_len"], card["parent"]) == (
        "echo",
        "model",
        256,
        None,
    )
    assert api.get("/v1/models/echo").json() == card
    assert api.get("/v1/models/a/b").status_code == 404


def test_tokenize_detokenize_round_trip(api):
    body = api.call("POST", "/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert (body["count"], body["tokens"], body["max_model_len"]) == (3, [104, 195, 169], 256)
    assert len(body["token_strs"]) == 3
    assert api.call("POST", "/detokenize", json={"tokens": body["tokens"]}).json() == {
        "prompt": "hé"
    }


def test_tokenize_renders_messages(api):
    body = api.call(
        "POST", "/tokenize", json={"messages": [{"role": "user", "content": "ab"}]}
    ).json()
    assert body["tokens"] == [97, 98]


def test_tokenize_takes_a_chat_template_with_the_trust_flag(api, make_api):
    body = {"messages": [{"role": "user", "content": "ab"}], "chat_template": "{{ 1 }}"}
    refused = api.call("POST", "/tokenize", json=body).json()["error"]
    assert (refused["param"], "--trust-request-chat-template" in refused["message"]) == (
        "chat_template",
        True,
    )
    trusting = make_api(trust_request_chat_template=True)
    assert trusting.call("POST", "/tokenize", json=body).status_code == 200
    assert trusting.engine.rendered[-1]["chat_template"] == "{{ 1 }}"


def test_tokenize_needs_prompt_or_messages(api):
    for body in ({}, {"prompt": "a", "messages": []}):
        assert api.call("POST", "/tokenize", json=body).json()["error"]["param"] == "prompt"


def test_detokenize_rejects_ids_outside_vocabulary(api):
    for tokens in ([9999], [-1], [10**30]):
        reply = api.call("POST", "/detokenize", json={"tokens": tokens})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tokens")


def test_version_is_distribution_version(api):
    assert api.get("/version").json() == {"version": metadata.version("core")}


def test_metrics_without_a_sink_are_not_found(api):
    assert api.get("/metrics").status_code == 404


def test_metrics_expose_sink(api):
    sink = PrometheusSink(api.config)
    sink.tokens(TokenStats(3))
    api.engine.sinks.entries.append(SinkHealth("prometheus", "a test", sink))
    reply = api.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert 'engine_generation_tokens_total{engine="0",model_name="default"} 3.0' in reply.text
    assert 'engine_ready{engine="0",model_name="default"} 1.0' in reply.text
    again = api.get("/metrics").text
    assert (
        'engine_http_requests_total{method="GET",model_name="default",'
        'path="/metrics",status="200"}' in again
    )


class Exposes:
    """A metric sink that exposes one page, or raises."""

    def __init__(self, page, kind="text/plain; version=0.0.4"):
        self.page = page
        self.kind = kind

    def expose(self, health):
        if self.page is None:
            raise OSError("gone")
        return self.page, self.kind


@pytest.fixture
def page(api):
    def send(**sinks):
        api.engine.sinks.entries[:] = [
            SinkHealth(name, "a test", sink) for name, sink in sinks.items()
        ]
        return api.get("/metrics")

    return send


def test_metrics_page_merges_all_sinks(api, page):
    reply = page(
        acme=Exposes(b"# TYPE acme_x gauge\nacme_x 1"), prometheus=PrometheusSink(api.config)
    )
    assert reply.text.startswith("# TYPE acme_x gauge\nacme_x 1\n# HELP")
    assert "engine_ready{" in reply.text


@pytest.mark.parametrize(
    ("other", "comment"),
    [
        (
            Exposes(b"{}", "application/json"),
            "# metric sink 'acme' is left out: its content type is application/json\n",
        ),
        (
            Exposes(b"# TYPE engine_ready gauge\n"),
            "# metric sink 'prometheus' is left out: another sink has engine_ready\n",
        ),
        (Exposes(None), "# metric sink 'acme' is left out: it failed; see the log\n"),
    ],
)
def test_unmergeable_sink_is_named_on_page(api, page, other, comment):
    assert comment in page(acme=other, prometheus=PrometheusSink(api.config)).text


def test_single_sink_may_use_any_format(page):
    reply = page(acme=Exposes(b"{}", "application/json"))
    assert (reply.text, reply.headers["content-type"]) == ("{}", "application/json")


def test_concurrent_scrapes_of_busy_engine_get_page(api, monkeypatch):
    """Concurrent scrapes share one answer of an engine in a long step."""
    was_called = asyncio.Event()
    answered = asyncio.Event()
    num_calls = 0

    async def call(name: str) -> list[CallAnswer]:
        nonlocal num_calls
        num_calls += 1
        was_called.set()
        await answered.wait()
        return []

    async def scrape() -> list[int]:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(api.server.app), base_url="http://test"
        ) as client:
            pages = [asyncio.ensure_future(client.get("/metrics")) for _ in range(3)]
            await was_called.wait()
            await client.get("/livez")  # the others have come as far as the first one meanwhile
            answered.set()
            return [page.status_code for page in await asyncio.gather(*pages)]

    monkeypatch.setattr(api.engine, "call", call, raising=False)
    api.engine.sinks.entries.append(SinkHealth("prometheus", "a test", PrometheusSink(api.config)))
    assert asyncio.run(scrape()) == [200, 200, 200]
    assert num_calls == 1
