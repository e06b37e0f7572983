"""The playground: where it is served, its files and data. Its page is in a file of its own."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.playground.counters import MAX_ANSWERS, Totals, count_blocks
from builtin_plugins.routes.playground.files import PAGE, page_files
from builtin_plugins.routes.playground.offer import is_offered
from builtin_plugins.routes.playground.routes import PlaygroundRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from core.api.telemetry import RequestStats
from core.config import EngineConfig
from core.kv import KVManager, plan_layout
from core.model_spec.kv import FullAttention, LayerKV
from core.plugin import load_plan, make_plan

VENDOR = PAGE / "vendor"


@pytest.fixture(scope="module")
def engine():
    engine = AsyncLLM(
        "scripted:",
        plugins=["+playground"],
        disable_frontend_multiprocessing=True,
        max_model_len=512,
        kv_cache_memory_bytes=1 << 20,
        num_threads=1,
        log_level="error",
    )
    yield engine
    engine.shutdown()


@pytest.fixture
def call_api(engine):
    """Send several requests, in order, to a server over the engine."""

    def call_api(*requests, **options):
        config = EngineConfig(options=options)
        app = HttpServer(
            engine, config, [make(engine, config) for make in (OpenAIRoutes, PlaygroundRoutes)]
        ).app

        async def send():
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://test"
            ) as client:
                return [
                    await client.request(method, path, **more) for method, path, more in requests
                ]

        return asyncio.run(send())

    return call_api


def offered(plugins=(), **options):
    return is_offered(EngineConfig(options=options), load_plan(make_plan(plugins)))


def test_page_is_served_where_no_other_machine_reaches_it():
    assert offered()
    assert all(offered(host=host) for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost"))
    for options in ({"host": "0.0.0.0"}, {"host": "::"}, {"host": "box"}, {"uds": "/tmp/a"}):
        assert not offered(**options), options
        assert offered(plugins=["+playground"], **options), options
    assert not offered(api_server_count=2)


def test_page_can_be_turned_off():
    names = {ref.name for ref in make_plan(["no:playground"]).plugins}
    assert "playground" not in names


def test_server_without_the_page_has_no_route_of_it(engine):
    group = PlaygroundRoutes(engine, EngineConfig(options={"host": "0.0.0.0"}))
    assert group.routes() != []  # its plugin is named
    assert group.page in group.public_paths
    unnamed = SimpleNamespace(registry=load_plan(make_plan()))
    group = PlaygroundRoutes(unnamed, EngineConfig(options={"host": "0.0.0.0"}))
    assert (group.routes(), group.public_paths, group.page) == ([], frozenset(), "")


def test_page_files_have_security_headers(call_api):
    files = page_files()
    for path, reply in zip(files, call_api(*(("GET", path, {}) for path in files)), strict=True):
        assert reply.status_code == 200, path
        assert reply.headers["content-type"] == files[path].content_type
        assert reply.content == files[path].path.read_bytes()
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_texts_of_the_page_are_sent_compressed_and_once(call_api):
    identity = {"headers": {"Accept-Encoding": "identity"}}
    (plain,) = call_api(("GET", "/playground/main.js", identity))
    assert "content-encoding" not in plain.headers
    (packed,) = call_api(("GET", "/playground/main.js", {}))
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    again = {"headers": {"If-None-Match": packed.headers["etag"]}}
    (known,) = call_api(("GET", "/playground/main.js", again))
    assert (known.status_code, known.content) == (304, b"")


def test_root_leads_to_the_page_below_a_path_prefix_too(call_api):
    (reply,) = call_api(("GET", "/", {}))
    assert (reply.status_code, reply.headers["location"]) == (307, "playground")


OWN = [path for path in page_files() if "/vendor/" not in path and not path.endswith(".png")]


@pytest.mark.parametrize("path", OWN)
def test_page_loads_only_files_of_this_server(path):
    text = page_files()[path].path.read_text(encoding="utf-8")
    for namespace in ("http://www.w3.org/2000/svg",):
        text = text.replace(namespace, "")
    assert not re.search(r"https?:|[\"'(]//(?!\))|@import", text)
    if path.endswith(".js"):
        assert not re.search(r"(inner|outer|insertAdjacent)HTML|document\.write|\beval\b", text)
        assert not re.search(r"localStorage|sessionStorage|document\.cookie", text)
    if path == "/playground":
        assert not re.search(r"\s(style|on\w+)=", text)


def test_modules_import_files_that_are_served():
    files = page_files()
    for path in files:
        if not path.endswith(".js") or "/vendor/" in path:
            continue
        text = files[path].path.read_text(encoding="utf-8")
        for name in re.findall(r"""(?:from|import)\s*\(?"\./([^"]+)\"""", text):
            assert f"/playground/{name}" in files, (path, name)


def test_libraries_of_the_page_are_those_of_their_list():
    """Each file has the hash that its list names, and each library its licence."""
    listed = json.loads((VENDOR / "libraries.json").read_text(encoding="utf-8"))
    hashes = {
        f"{library['name']}/{name}": found
        for library in listed
        for name, found in library["files"].items()
    }
    files = {
        path.relative_to(VENDOR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path.parent != VENDOR
    }
    assert files == hashes
    for library in listed:
        assert library["integrity"].startswith("sha512-")
        assert f"{library['name']}/LICENSE" in files


def test_files_of_the_page_take_at_most_400_kb():
    sizes = {
        path: len(data if Path(path).suffix == ".png" else gzip.compress(data, 9))
        for path, file in page_files().items()
        if (data := file.path.read_bytes()) and not path.endswith(".woff2")
    }
    assert sum(sizes.values()) <= 300_000, sizes  # and at most 100 kB of fonts with a formula


def test_request_numbers_are_those_of_its_answer(call_api):
    question = {"messages": [{"role": "user", "content": "z" * 99}]}
    (answer,) = call_api(("POST", "/v1/chat/completions", {"json": question}))
    usage = answer.json()["usage"]
    path = f"/playground/request?id={answer.json()['id']}"
    found, unknown, missing = call_api(
        ("GET", path, {}),
        ("GET", "/playground/request?id=chatcmpl-0", {}),
        ("GET", "/playground/request", {}),
    )
    numbers = found.json()
    assert numbers["prompt_tokens"] == usage["prompt_tokens"]
    assert numbers["generated_tokens"] == usage["completion_tokens"]
    assert min(numbers["queue_s"], numbers["prefill_s"]) >= 0
    assert numbers["e2e_s"] >= numbers["decode_s"] > 0
    assert (numbers["drafted"], numbers["explains"]) == (0, False)
    assert numbers["block_size"] > 0
    assert (unknown.status_code, missing.status_code) == (404, 400)
    (again,) = call_api(("POST", "/v1/chat/completions", {"json": question}))
    (found,) = call_api(("GET", f"/playground/request?id={again.json()['id']}", {}))
    assert found.json()["cached_tokens"] > 0


def test_numbers_of_a_request_with_an_id_of_its_client_are_not_served(call_api):
    """Such an id can be guessed by other clients."""
    question = {"messages": [{"role": "user", "content": "a"}]}
    named = {"json": question, "headers": {"X-Request-Id": "mine"}}
    (answer,) = call_api(("POST", "/v1/chat/completions", named))
    assert answer.json()["id"] == "chatcmpl-mine"
    (found,) = call_api(("GET", "/playground/request?id=chatcmpl-mine", {}))
    assert found.status_code == 404


def test_remembered_answers_are_bounded():
    totals = Totals(EngineConfig())
    ids = [f"chatcmpl-{number:032x}" for number in range(MAX_ANSWERS + 1)]
    for each in ids:
        totals.request(RequestStats("stop", 8, 30, 1.0, 0.1, 0.1, request_id=f"{each}-ab12"))
    assert totals.answer(ids[0]) is None
    assert totals.answer(ids[1])["generated_tokens"] == 30
    assert totals.answer(ids[-1])["decode_s"] == pytest.approx(0.9)


def test_state_counts_requests_blocks_and_tokens(call_api):
    question = {"messages": [{"role": "user", "content": "x" * 99}]}
    post = ("POST", "/v1/chat/completions", {"json": question})
    before, _, after = (
        reply.json()
        for reply in call_api(
            ("GET", "/playground/state", {}), post, ("GET", "/playground/state", {})
        )
    )
    assert (after["model"], after["max_model_len"], after["health"]["status"]) == (
        "scripted:",
        512,
        "ready",
    )
    assert after["takes_images"] is False
    assert after["requests"] == {"running": 0, "waiting": 0}
    totals = {name: after["totals"][name] - count for name, count in before["totals"].items()}
    assert (totals["generated_tokens"], totals["ended_requests"], totals["failed_requests"]) == (
        100,
        1,
        0,
    )
    assert totals["steps"] >= 100
    assert totals["step_s"] > 0
    assert after["time_s"] > before["time_s"]
    blocks = before["blocks"]
    assert blocks["used"] == 0
    assert blocks["free"] > 0


def test_blocks_are_used_cached_or_free():
    layers = [LayerKV("layer0", FullAttention(2, 64, "bfloat16"))]
    layout = plan_layout(
        layers, block_size=4, memory_bytes=0, num_blocks=10, max_model_len=1, max_num_seqs=10
    )
    kv = KVManager(layout)
    assert count_blocks(kv) == {"used": 0, "cached": 0, "free": 10}
    lease = kv.open_lease("")
    tokens = list(range(10))
    assert kv.admit(lease, kv.find_longest_hit(lease, tokens, 9), 0, 10, 10, 10)
    kv.publish(lease, tokens, 10)
    assert count_blocks(kv) == {"used": 3, "cached": 0, "free": 7}
    kv.close_lease(lease)
    assert count_blocks(kv) == {"used": 0, "cached": 2, "free": 8}  # the third was not full


def test_block_counts_refresh_after_interval(call_api, monkeypatch):
    monkeypatch.setattr("builtin_plugins.routes.playground.routes.COUNT_AGAIN_S", 0.0)
    question = {"messages": [{"role": "user", "content": "y" * 99}]}
    post = ("POST", "/v1/chat/completions", {"json": question})
    before, _, after = (
        reply.json()
        for reply in call_api(
            ("GET", "/playground/state", {}), post, ("GET", "/playground/state", {})
        )
    )
    assert after["blocks"]["used"] == 0
    assert after["blocks"]["cached"] > before["blocks"]["cached"]
    assert sum(after["blocks"].values()) == sum(before["blocks"].values())


def test_state_shows_plugin_sink_faults(call_api, engine):
    entry = next(each for each in engine.sinks.entries if each.name == "playground")
    entry.failed("step", OSError("gone"))
    (reply,) = call_api(("GET", "/playground/state", {}))
    entry.in_a_row.clear()
    entry.faults = 0
    plugins = {each["name"]: each for each in reply.json()["plugins"]}
    faulty = plugins["playground"]
    assert (faulty["builtin"], faulty["faults"], faulty["stopped"], faulty["error"]) == (
        True,
        1,
        False,
        "OSError: gone",
    )
    assert all(not each["faults"] for name, each in plugins.items() if name != "playground")


def test_state_needs_key_and_page_does_not(call_api):
    key = {"headers": {"Authorization": "Bearer secret"}}
    requests = [
        ("GET", "/playground", {}),
        ("GET", "/playground/state", {}),
        ("GET", "/playground/state", key),
    ]
    assert [reply.status_code for reply in call_api(*requests, api_key=["secret"])] == [
        200,
        401,
        200,
    ]
