"""Models, tokenizer and probe routes."""

from __future__ import annotations

import asyncio
from importlib import metadata

import httpx
import pytest

from builtin_plugins.metric_sinks.prometheus.sink import PrometheusSink
from core.api import TokenStats
from core.engine.sinks import Guarded


def test_models_lists_the_served_names(api):
    card = api.get("/v1/models").json()["data"][0]
    assert (card["id"], card["object"], card["max_model_len"], card["parent"]) == (
        "echo",
        "model",
        256,
        None,
    )
    assert api.get("/v1/models/echo").json() == card
    assert api.get("/v1/models/a/b").status_code == 404


def test_tokenize_and_back(api):
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


def test_tokenize_wants_one_kind_of_input(api):
    for body in ({}, {"prompt": "a", "messages": []}):
        assert api.call("POST", "/tokenize", json=body).json()["error"]["param"] == "prompt"


def test_detokenize_refuses_ids_outside_the_vocabulary(api):
    for tokens in ([9999], [-1], [10**30]):
        reply = api.call("POST", "/detokenize", json={"tokens": tokens})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tokens")


def test_version_is_the_distributions(api):
    assert api.get("/version").json() == {"version": metadata.version("core")}


def test_metrics_show_the_sink(api):
    assert api.get("/metrics").status_code == 404
    sink = PrometheusSink(api.config)
    sink.tokens(TokenStats(3))
    api.engine.sinks.guarded.append(Guarded("prometheus", "a test", sink))
    reply = api.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert 'engine_generation_tokens_total{engine="0",model_name="default"} 3.0' in reply.text
    assert 'engine_ready{engine="0",model_name="default"} 1.0' in reply.text
    again = api.get("/metrics").text
    assert (
        'engine_http_requests_total{engine="0",method="GET",model_name="default",path="/metrics",status="200"}'
        in again
    )


class Exposes:
    """A metric sink that shows one page, or fails to."""

    def __init__(self, page, kind="text/plain; version=0.0.4"):
        self.page = page
        self.kind = kind

    def expose(self, health):
        if self.page is None:
            raise OSError("gone")
        return self.page, self.kind


@pytest.fixture
def page(api):
    def ask(**sinks):
        api.engine.sinks.guarded[:] = [
            Guarded(name, "a test", sink) for name, sink in sinks.items()
        ]
        return api.get("/metrics")

    return ask


def test_metrics_of_all_sinks_are_on_one_page(api, page):
    reply = page(
        acme=Exposes(b"# TYPE acme_x gauge\nacme_x 1"), prometheus=PrometheusSink(api.config)
    )
    assert reply.text.startswith("# TYPE acme_x gauge\nacme_x 1\n# HELP")
    assert "engine_ready{" in reply.text


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            Exposes(b"{}", "application/json"),
            "# metric sink 'acme' is left out: its content type is application/json\n",
        ),
        (
            Exposes(b"# TYPE engine_ready gauge\n"),
            "# metric sink 'prometheus' is left out: another sink has engine_ready\n",
        ),
        (Exposes(None), "# metric sink 'acme' is left out: it failed; the log says more\n"),
    ],
)
def test_a_sink_that_cannot_share_the_page_is_named_on_it(api, page, other, said):
    assert said in page(acme=other, prometheus=PrometheusSink(api.config)).text


def test_a_sink_alone_may_show_any_format(page):
    reply = page(acme=Exposes(b"{}", "application/json"))
    assert (reply.text, reply.headers["content-type"]) == ("{}", "application/json")


def test_everybody_who_scrapes_while_the_engine_is_busy_gets_the_page(api, monkeypatch):
    """Several wait for one answer of an engine in a long step, and all have it."""
    asked = asyncio.Event()
    answered = asyncio.Event()
    num_calls = 0

    async def call(name: str) -> list[bytes]:
        nonlocal num_calls
        num_calls += 1
        asked.set()
        await answered.wait()
        return []

    async def scrape() -> list[int]:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(api.server.app), base_url="http://test"
        ) as client:
            pages = [asyncio.ensure_future(client.get("/metrics")) for _ in range(3)]
            await asked.wait()
            await client.get("/livez")  # the others have come as far as the first one meanwhile
            answered.set()
            return [page.status_code for page in await asyncio.gather(*pages)]

    monkeypatch.setattr(api.engine, "call", call, raising=False)
    api.engine.sinks.guarded.append(Guarded("prometheus", "a test", PrometheusSink(api.config)))
    assert asyncio.run(scrape()) == [200, 200, 200]
    assert num_calls == 1
