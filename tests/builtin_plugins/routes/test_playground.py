"""The playground: its routes, and its page in a browser."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess

import httpx
import pytest

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.playground.counters import count_blocks
from builtin_plugins.routes.playground.routes import FILES, PAGE, PlaygroundRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from core.config import EngineConfig
from core.kv import KVManager, plan_layout
from core.model_spec.kv import FullAttention, LayerKV
from core.plugin import make_plan
from tests.served import served
from tests.system.serving.headless import Page, browsing, find_browser


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


def test_playground_loads_only_when_named():
    assert "playground" not in {ref.name for ref in make_plan().plugins}
    assert "playground" in {ref.name for ref in make_plan(["+playground"]).plugins}


def test_page_files_have_security_headers(call_api):
    for path, reply in zip(FILES, call_api(*(("GET", path, {}) for path in FILES)), strict=True):
        name, kind = FILES[path]
        assert (reply.status_code, reply.headers["content-type"]) == (200, kind)
        assert reply.content == (PAGE / name).read_bytes()
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_page_loads_only_its_own_files():
    assert {file.name for file in PAGE.iterdir()} == {name for name, _ in FILES.values()}
    for file in PAGE.iterdir():
        if file.suffix == ".png":
            continue
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


NODE = shutil.which("node")
STUB = """
const element = () => ({
  hidden: true, children: [], classList: { toggle() {} }, listeners: {},
  addEventListener(name, call) { this.listeners[name] = call; },
  setAttribute() {}, append(...more) { this.children.push(...more); },
  replaceChildren(...more) { this.children = more; }, click() { this.listeners.click?.(); },
});
const elements = {};
globalThis.FileReader = class {
  addEventListener(name, call) { if (name === "load") this.load = call; }
  readAsDataURL(file) { this.result = `url of ${file.name}`; queueMicrotask(() => this.load()); }
};
globalThis.document = {
  listeners: {},
  getElementById: (id) => (elements[id] ??= element()),
  createElement: element,
  addEventListener(name, call) { this.listeners[name] = call; },
};
const images = await import(process.argv[2]);
const files = [{ name: "a", type: "image/png" }, { name: "b", type: "text/plain" },
  { name: "c", type: "image/jpeg" }];
const event = { prevented: 0, preventDefault() { this.prevented++; }, clipboardData: { files } };
const settle = () => new Promise((resolve) => setTimeout(resolve));
document.listeners.paste(event);
await settle();
const whileOff = images.hasImages();
images.enableImages(false);
const offered = !elements["image-suggestion"].hidden;
images.enableImages(true);
document.listeners.paste(event);
await settle();
document.listeners.drop({ ...event, dataTransfer: { files: files.slice(2) } });
await settle();
elements.images.children[1].click(); // removes the second image
const taken = images.takeImages();
const hidden = elements["add-image"].hidden || elements["image-suggestion"].hidden;
console.log(JSON.stringify({ whileOff: whileOff || offered, hidden, taken,
  prevented: event.prevented, left: images.takeImages(), text: images.contentOf("hi", []),
  parts: images.contentOf("hi", taken.slice(1)), alone: images.contentOf("", taken.slice(1)) }));
"""


@pytest.mark.skipif(NODE is None, reason="there is no Node.js on this machine")
def test_pasted_and_dropped_images_become_parts(tmp_path):
    for name in ("images.js", "texts.js"):
        (tmp_path / name.replace(".js", ".mjs")).write_text(
            (PAGE / name).read_text().replace("texts.js", "texts.mjs")
        )
    (tmp_path / "stub.mjs").write_text(STUB)
    command = [NODE, str(tmp_path / "stub.mjs"), str(tmp_path / "images.mjs")]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    image = {"type": "image_url", "image_url": {"url": "url of c"}}
    assert found == {
        "whileOff": False,
        "hidden": False,
        "taken": ["url of a", "url of c"],
        "prevented": 1,
        "left": [],
        "text": "hi",
        "parts": [image, {"type": "text", "text": "hi"}],
        "alone": [image],
    }


ENGINES_STUB = """
const texts = (node) => [node.textContent ?? "", ...(node.children ?? []).map(texts)].flat();
const element = () => ({
  hidden: false, textContent: "", children: [], dataset: {}, style: {},
  classList: { states: {}, toggle(name, on) { this.states[name] = on; } },
  setAttribute() {}, querySelector: element,
  append(...more) { this.children.push(...more); },
  replaceChildren(...more) { this.children = more; },
});
const elements = {};
globalThis.document = {
  hidden: false, getElementById: (id) => (elements[id] ??= element()), createElement: element,
};
const states = JSON.parse(process.argv[3]);
globalThis.fetch = async () => ({ ok: true, status: 200, json: async () => states.shift() });
globalThis.setTimeout = (again) => queueMicrotask(() => states.length ? again() : print());
function print() {
  const lines = elements["engine-list"].children.map((item) => texts(item).filter(Boolean));
  const faulty = elements.engines.classList.states.faulty;
  console.log(JSON.stringify({
    hidden: elements.engines.hidden, lines, faulty,
    status: elements["engine-status"].textContent }));
}
await import(process.argv[2]);
"""


@pytest.mark.skipif(NODE is None, reason="there is no Node.js on this machine")
def test_page_shows_each_of_several_engines(tmp_path):
    stubs = {
        "chat": "export const headers = () => ({});",
        "images": "export const enableImages = () => {};",
    }
    stubs["texts"] = (PAGE / "texts.js").read_text()
    stubs["engine"] = (PAGE / "engine.js").read_text().replace('.js";', '.mjs";')
    for name, text in stubs.items():
        (tmp_path / f"{name}.mjs").write_text(text)
    (tmp_path / "stub.mjs").write_text(ENGINES_STUB)
    state = {
        "health": {"status": "ready", "reason": "", "restarts": 1},
        "requests": {"running": 2, "waiting": 0},
        "defaults": {},
        "plugins": [],
        "max_model_len": 512,
    }
    ready = {"rank": 0, "status": "ready", "reason": "", "restarts": 0, "running": 2, "waiting": 1}
    blocks = {"used": 3, "cached": 1, "free": 6}
    engines = [
        {**ready, "blocks": blocks},
        {**ready, "rank": 1, "status": "restarting", "reason": "it died", "restarts": 1},
    ]

    def rendered(*states):
        command = [NODE, str(tmp_path / "stub.mjs"), str(tmp_path / "engine.mjs")]
        command.append(json.dumps(states))
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    found = rendered({**state, "engines": engines})
    assert found == {
        "hidden": False,
        "status": "1 of 2 ready",
        "faulty": True,
        "lines": [
            ["Engine 0", "ready, 2 running, 1 waiting, 3 of 10 blocks used, 1 cached"],
            ["Engine 1", "restarting, 2 running, 1 waiting, 1 restarts", "it died"],
        ],
    }
    assert rendered({**state, "engines": engines}, {**state, "engines": []})["hidden"] is True


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
    assert (blocks["used"], blocks["cached"]) == (0, 0)
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


# --- In a browser

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
    """The page of a server with a key and the scripted `ANSWERS`."""
    program = find_browser()
    if program is None:
        pytest.skip(
            "there is no Chromium on this machine (chromium, google-chrome, or one that Playwright "
            "brought)"
        )
    folder = tmp_path_factory.mktemp("playground")
    answers = folder / "answers.txt"
    lines = [
        json.dumps({"prompt": requests, "answer": answer}) for requests, answer in ANSWERS.items()
    ]
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
    """Send a message in a new conversation, and return the complete answer."""
    page.until("document.querySelector('#status').textContent != 'connecting'")
    page.write("[name=key]", "secret")
    page.until("document.querySelector('#status').textContent == 'ready'")
    page.click("#clear")

    def send(text: str) -> str:
        before = page.value(ENDED)
        page.write("#prompt", text)
        page.press("Enter", 13)
        page.until(f"{ENDED} > {before} || document.querySelector('.failed')")
        text_content: str = page.value(
            "[...document.querySelectorAll('#log article')].at(-1).innerText"
        )
        return text_content

    return send


def test_missing_key_focuses_key_field(page):
    page.until("document.querySelector('#status').textContent == 'key required'")
    page.write("#prompt", "hello")
    page.click("#send")
    page.until("document.querySelector('.failed')")
    assert "requires an API key" in page.value("document.querySelector('.failed').textContent")
    assert page.value("document.activeElement.name") == "key"
    assert page.value("document.querySelector('#prompt').value") == "hello"


def test_thoughts_are_collapsed_and_code_is_formatted(page, chat):
    text_content = chat("think")
    assert "then <b>that</b>" in text_content
    assert "first this" not in text_content
    assert page.value("document.querySelector('.thought').open") is False
    page.click(".thought summary")
    assert page.value("document.querySelector('.thought .text').innerText") == "first this"
    assert page.value("document.querySelector('pre code').textContent") == "print(1)"
    assert page.value("document.querySelector('#log b')") is None
    assert re.search(r"\d+ tokens · \d+/s · first after \d+ ms", text_content)


def test_model_output_is_never_html(page, chat):
    assert "<img src=x" in chat("<img src=x onerror=alert(1)>")
    assert page.value("document.querySelectorAll('#log img').length") == 0


def test_tool_calls_are_displayed_and_take_results(page, chat):
    page.write("[name=tools]", json.dumps(TOOLS))
    text_content = chat("call")
    page.write("[name=tools]", "")
    assert "get_weather" in text_content
    assert (
        page.value("document.querySelector('.call code').textContent") == '{\n  "city": "Paris"\n}'
    )
    assert page.value("document.querySelector('#prompt').placeholder") == "Result of get_weather"
    chat("18")
    assert page.value("document.querySelector('article.tool .text').textContent") == "18"
    assert page.value("document.querySelector('#prompt').placeholder") == "Message"


def test_json_is_indented_and_schema_applies(page, chat):
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
    text_content = chat("long")
    assert "5 tokens" in text_content
    assert "cut at max tokens" in text_content
    page.write("[name=max_tokens]", "")


def test_stopped_answer_keeps_partial_text(page, chat):
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


def test_new_conversation_is_empty(page, chat):
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
        page.value("document.querySelector('#plugin-status').textContent")
        == f"{len(listed)}, no faults"
    )


def test_page_fits_phone_screens(page, chat):
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


def test_controls_have_names_and_console_is_clean(page, chat):
    chat("think")
    unnamed = "[...document.querySelectorAll('input, textarea, button')]"
    unnamed += ".filter(e => !(e.labels?.length ? e.labels[0] : e).textContent.trim()).length"
    assert page.value(unnamed) == 0
    assert page.complaints == []
