"""The playground: what is served without a browser's help, and what a user sees who clicks through
it.
"""

from __future__ import annotations

import asyncio
import json
import re

import httpx
import pytest
from headless import Page, browsing, find_browser
from served import served

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.playground.blocks import counts
from builtin_plugins.routes.playground.routes import FILES, PAGE, PlaygroundRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from core.config import EngineConfig
from core.kv import KVManager, plan_layout
from core.model_spec.kv import FullAttention, LayerKV
from core.plugin import make_plan


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
def ask(engine):
    """Ask a server over the engine several things in turn."""

    def ask(*asked, **options):
        config = EngineConfig(options=options)
        app = HttpServer(
            engine, config, [make(engine, config) for make in (OpenAIRoutes, PlaygroundRoutes)]
        ).app

        async def send():
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://test"
            ) as client:
                return [await client.request(method, path, **more) for method, path, more in asked]

        return asyncio.run(send())

    return ask


def test_it_loads_only_when_named():
    assert "playground" not in {ref.name for ref in make_plan().plugins}
    assert "playground" in {ref.name for ref in make_plan(["+playground"]).plugins}


def test_every_file_comes_with_headers_that_let_nothing_else_in(ask):
    for path, reply in zip(FILES, ask(*(("GET", path, {}) for path in FILES)), strict=True):
        name, kind = FILES[path]
        assert (reply.status_code, reply.headers["content-type"]) == (200, kind)
        assert reply.content == (PAGE / name).read_bytes()
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_the_page_is_whole_in_itself():
    assert {file.name for file in PAGE.iterdir()} == {name for name, _ in FILES.values()}
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(
            r"https?:|[\"'(]//|@import|data:", text.replace('startsWith("data:")', "")
        ), file.name
        if file.suffix == ".js":
            assert not re.search(
                r"HTML|document\.write|\beval\b|new Function", text.split("\n", 1)[1]
            ), file.name
            assert not re.search(r"localStorage|sessionStorage|cookie", text), file.name
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\s(style|on\w+)=", html)
    linked = set(re.findall(r'(?:src|href)="(playground/[^"]+)"', html))
    assert {f"/{each}" for each in linked} | {"/playground", "/playground/texts.js"} == set(FILES)


def test_the_state_counts_requests_blocks_and_tokens(ask):
    question = {"messages": [{"role": "user", "content": "x" * 99}]}
    post = ("POST", "/v1/chat/completions", {"json": question})
    before, _, after = (
        reply.json()
        for reply in ask(("GET", "/playground/state", {}), post, ("GET", "/playground/state", {}))
    )
    assert (after["model"], after["max_model_len"], after["health"]["status"]) == (
        "scripted:",
        512,
        "ready",
    )
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
    assert (blocks["used"], blocks["cached"]) == (0, 0)
    assert blocks["free"] > 0


def test_blocks_are_used_cached_or_free():
    layers = [LayerKV("layer0", FullAttention(2, 64, "bfloat16"))]
    layout = plan_layout(
        layers, block_size=4, memory_bytes=0, num_blocks=10, max_model_len=1, max_num_seqs=10
    )
    kv = KVManager(layout)
    assert counts(kv) == {"used": 0, "cached": 0, "free": 10}
    lease = kv.open("")
    tokens = list(range(10))
    assert kv.admit(lease, kv.find(lease, tokens, 9), 0, 10, 10, 10)
    kv.commit(lease, tokens, 10)
    assert counts(kv) == {"used": 3, "cached": 0, "free": 7}
    kv.close(lease)
    assert counts(kv) == {"used": 0, "cached": 2, "free": 8}  # the third was not full


def test_blocks_are_counted_again_after_a_while(ask, monkeypatch):
    monkeypatch.setattr("builtin_plugins.routes.playground.routes.COUNT_AGAIN_S", 0.0)
    question = {"messages": [{"role": "user", "content": "y" * 99}]}
    post = ("POST", "/v1/chat/completions", {"json": question})
    before, _, after = (
        reply.json()
        for reply in ask(("GET", "/playground/state", {}), post, ("GET", "/playground/state", {}))
    )
    assert after["blocks"]["used"] == 0
    assert after["blocks"]["cached"] > before["blocks"]["cached"]
    assert sum(after["blocks"].values()) == sum(before["blocks"].values())


def test_plugins_are_shown_with_what_their_sinks_have_raised(ask, engine):
    guarded = next(each for each in engine.sinks.guarded if each.name == "playground")
    guarded.failed("step", OSError("gone"))
    (reply,) = ask(("GET", "/playground/state", {}))
    guarded.in_a_row.clear()
    guarded.faults = 0
    plugins = {each["name"]: each for each in reply.json()["plugins"]}
    ill = plugins["playground"]
    assert (ill["builtin"], ill["faults"], ill["stopped"], ill["error"]) == (
        True,
        1,
        False,
        "OSError: gone",
    )
    assert all(not each["faults"] for name, each in plugins.items() if name != "playground")


def test_the_state_wants_the_key_and_the_page_does_not(ask):
    key = {"headers": {"Authorization": "Bearer secret"}}
    asked = [
        ("GET", "/playground", {}),
        ("GET", "/playground/state", {}),
        ("GET", "/playground/state", key),
    ]
    assert [reply.status_code for reply in ask(*asked, api_key=["secret"])] == [200, 401, 200]


# --- in a browser

TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}},
    }
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ANSWERS = {
    "think": "<think>\nfirst this\n</think>\n\nthen <b>that</b>\n```python\nprint(1)\n```\nend",
    "call": CALL,
    "18": "It is warm.",
    "json": '{"a": [1, 2]}',
    "long": "never ending " * 100,
    "<img src=x onerror=alert(1)>": "<img src=x onerror=alert(1)>",
}
ENDED = "document.querySelectorAll('.assistant:not([aria-busy])').length"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a server with a key, that answers as `ANSWERS` says."""
    program = find_browser()
    if program is None:
        pytest.skip(
            "there is no Chromium on this machine (chromium, google-chrome, or one that Playwright "
            "brought)"
        )
    folder = tmp_path_factory.mktemp("playground")
    answers = folder / "answers.txt"
    lines = [json.dumps({"prompt": asked, "answer": answer}) for asked, answer in ANSWERS.items()]
    answers.write_text("\n".join(lines), encoding="utf-8")
    options = [
        "--api-key",
        "secret",
        "--scripted-answers",
        str(answers),
        "--scripted-tokens-per-second",
        "300",
    ]
    parsers = [
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
        "--reasoning-parser",
        "think",
    ]
    with served("scripted:", "--plugins", "+playground", *options, *parsers) as client:
        (folder / "browser").mkdir()
        with browsing(program, folder / "browser") as page:
            page.resize(1280, 800)
            page.open(f"{str(client.base_url).removesuffix('v1/')}playground")
            yield page


@pytest.fixture
def chat(page: Page):
    """Say something in a new conversation, and return the answer's text once it has ended."""
    page.until("document.querySelector('#status').textContent != 'connecting'")
    page.write("[name=key]", "secret")
    page.until("document.querySelector('#status').textContent == 'ready'")
    page.click("#clear")

    def say(text: str) -> str:
        before = page.value(ENDED)
        page.write("#prompt", text)
        page.press("Enter", 13)
        page.until(f"{ENDED} > {before} || document.querySelector('.failed')")
        said: str = page.value("[...document.querySelectorAll('#log article')].at(-1).innerText")
        return said

    return say


def test_without_the_key_it_says_so_and_goes_to_the_field(page):
    page.until("document.querySelector('#status').textContent == 'key wanted'")
    page.write("#prompt", "hello")
    page.click("#send")
    page.until("document.querySelector('.failed')")
    assert "wants an API key" in page.value("document.querySelector('.failed').textContent")
    assert page.value("document.activeElement.name") == "key"
    assert page.value("document.querySelector('#prompt').value") == "hello"


def test_thoughts_are_folded_and_code_stands_apart(page, chat):
    said = chat("think")
    assert "then <b>that</b>" in said
    assert "first this" not in said
    assert page.value("document.querySelector('.thought').open") is False
    page.click(".thought summary")
    assert page.value("document.querySelector('.thought .text').innerText") == "first this"
    assert page.value("document.querySelector('pre code').textContent") == "print(1)"
    assert page.value("document.querySelector('#log b')") is None
    assert re.search(r"\d+ tokens · \d+/s · first after \d+ ms", said)


def test_what_a_model_writes_is_never_html(page, chat):
    assert "<img src=x" in chat("<img src=x onerror=alert(1)>")
    assert page.value("document.querySelectorAll('#log img').length") == 0


def test_calls_are_shown_and_take_results(page, chat):
    page.write("[name=tools]", json.dumps(TOOLS))
    said = chat("call")
    page.write("[name=tools]", "")
    assert "get_weather" in said
    assert (
        page.value("document.querySelector('.call code').textContent") == '{\n  "city": "Paris"\n}'
    )
    assert page.value("document.querySelector('#prompt').placeholder") == "Result of get_weather"
    chat("18")
    assert page.value("document.querySelector('article.tool .text').textContent") == "18"
    assert page.value("document.querySelector('#prompt').placeholder") == "Message"


def test_json_is_shown_in_lines_and_a_schema_holds(page, chat):
    chat("json")
    assert page.value("document.querySelector('pre code').textContent") == json.dumps(
        {"a": [1, 2]}, indent=2
    )
    page.click("#clear")
    page.write("[name=schema]", "{")
    assert "JSON schema of the answer: This is not JSON" in chat("json")
    assert page.value("document.activeElement.name") == "schema"
    page.write("[name=schema]", "")


def test_settings_are_sent(page, chat):
    page.write("[name=max_tokens]", "5")
    said = chat("long")
    assert "5 tokens" in said
    assert "cut at most tokens" in said
    page.write("[name=max_tokens]", "")


def test_an_answer_is_stopped_with_what_came_of_it(page, chat):
    page.write("#prompt", "long")
    page.click("#send")
    page.until(
        "document.querySelector('.assistant > .text')?.textContent.includes('never ending never')"
    )
    assert page.value("document.querySelector('#send').textContent") == "Stop"
    page.until("document.querySelector('#running').textContent == '1'")
    page.until("Number(document.querySelector('#used').textContent) > 0")
    page.until("Number(document.querySelector('#speed').textContent) > 0")
    page.click("#send")
    page.until(f"{ENDED} == 1")
    assert "stopped" in page.value("document.querySelector('.assistant footer').textContent")
    assert page.value("document.querySelector('#send').textContent") == "Send"
    page.until("document.querySelector('#running').textContent == '0'")
    page.until("document.querySelector('#step').textContent.endsWith(' ms')")


def test_a_new_conversation_knows_nothing_of_the_one_before(page, chat):
    page.write("#prompt", "long")
    page.press("Enter", 13)
    page.until("document.querySelector('.assistant > .text')?.textContent.includes('never')")
    page.click("#clear")
    page.until("document.querySelector('#send').textContent == 'Send'")
    alone = re.search(r"prompt \d+", chat("json"))[0]
    page.click("#clear")
    assert alone in chat("json")
    assert page.value("document.querySelectorAll('article').length") == 2


def test_plugins_are_listed(page, chat):
    page.click("#plugins summary")
    listed = page.value(
        "[...document.querySelectorAll('#list span')].map(each => each.textContent)"
    )
    page.click("#plugins summary")
    assert {"playground", "routes_openai", "scripted"} <= set(listed)
    assert (
        page.value("document.querySelector('#wellness').textContent") == f"{len(listed)}, all well"
    )


def test_it_fits_a_phone_in_every_view(page, chat):
    page.write("[name=system]", "unbroken" * 40)
    chat("think")
    page.resize(360, 740, phone=True)
    for view in ("settings", "engine", "chat"):
        page.click(f"nav [data-view={view}]")
        page.until(f"document.querySelector('#{view}').offsetWidth")
        wide = "[document.documentElement, document.querySelector('#VIEW')].map(e => e.scrollWidth)"
        assert max(page.value(wide.replace("VIEW", view))) <= 360, view
    page.resize(1280, 800)
    page.write("[name=system]", "")


def test_every_control_has_a_name_and_nothing_was_refused_or_thrown(page, chat):
    chat("think")
    unnamed = "[...document.querySelectorAll('input, textarea, button')]"
    unnamed += ".filter(e => !(e.labels?.length ? e.labels[0] : e).textContent.trim()).length"
    assert page.value(unnamed) == 0
    assert page.complaints == []
