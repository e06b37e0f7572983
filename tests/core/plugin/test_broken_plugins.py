"""Plugins that fail in a request: the log names plugin, version and remedy; others complete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from core.cli.main import main
from core.config import EngineConfig
from core.testing.plugins import fake_dist
from tests.timeouts import TIMEOUT_S

API: Final = "from core.api import *\nfrom core.api import Entry, Option, hookimpl\n"
OTHER_PROMPTS: Final = ("a short prompt", "a prompt with a few more words", "a third")
SECRET: Final = "/srv/secret"
"""Part of the plugin errors that no client may see."""


def processor(**bodies: str) -> str:
    """Return a logits processor for requests with extra_args, with these method bodies."""
    methods = {
        "__init__(self, context)": bodies.get("init", "pass"),
        "wants(self, sampling)": bodies.get("wants", "return bool(sampling.extra_args)"),
        "added(self, row, sampling, token_ids, prompt_len)": bodies.get("added", "pass"),
        "removed(self, row)": bodies.get("removed", "pass"),
        "apply(self, logits, rows)": bodies.get("apply", "return logits"),
    }
    text = "".join(f"    def {head}:\n        {body}\n" for head, body in methods.items())
    return (
        f"{API}class Acme:\n    params = ()\n    argmax_invariant = False\n{text}"
        "@hookimpl\ndef engine_logits_processors():\n    return [Entry('acme', Acme, 'broken')]\n"
    )


def extension(kind: str, method: str, body: str, attributes: str = "") -> str:
    """Return a feature extension with one broken method."""
    return (
        f"{API}class Acme:\n    name = 'acme'\n    {attributes}\n"
        f"    def {method}:\n        {body}\n"
        f"@hookimpl\ndef engine_{kind}_extensions(config, registry):\n    return [Acme()]\n"
    )


def entry(kind: str, code: str, target: str = "Acme") -> str:
    hook = f"@hookimpl\ndef engine_{kind}():\n    return [Entry('acme', {target}, 'broken')]\n"
    return f"{API}{code}\n{hook}"


RAISE: Final = f"raise ValueError('{SECRET}')"
MINE: Final = "'victim' in str(getattr(request, 'request_id', ''))"


@dataclass(frozen=True)
class Broken:
    """A broken plugin, the configuration that uses it, and the fields of the victim request."""

    source: str
    config: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the server."""
    fields: Mapping[str, Any] = field(default_factory=lambda: {"vllm_xargs": {"acme": 1}})
    says: str = "ValueError"
    """Stands in the log's line."""
    survives: bool = False
    """The request itself goes well."""


BROKEN: Final[Mapping[str, Broken]] = {
    "a processor raises in added": Broken(processor(added=RAISE)),
    "a processor raises in apply": Broken(processor(apply=RAISE)),
    "a processor raises in wants": Broken(processor(wants=f"if sampling.extra_args: {RAISE}")),
    "a processor raises in removed": Broken(processor(removed=RAISE), survives=True),
    "a processor returns other shapes": Broken(
        processor(apply="return logits[:, :3]"), says="apply returned (1, 3)"
    ),
    "a processor returns nothing": Broken(processor(apply="return None"), says="None"),
    "a parser of tool calls raises": Broken(
        entry(
            "tool_parsers",
            "from builtin_plugins.output_parsers.api import ToolFormat\n"
            f"def read(reader, request):\n    yield\n    {RAISE}\nAcme = ToolFormat(read)",
        ),
        options={"tool_call_parser": "acme", "enable_auto_tool_choice": True},
        fields={
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
            ]
        },
    ),
    "a parser of thoughts raises": Broken(
        entry(
            "reasoning_parsers",
            "from builtin_plugins.output_parsers.api import ReasoningFormat\n"
            f"def read(reader, request):\n    if request.template_kwargs: {RAISE}\n    yield from "
            "reader.content_until_call('zzz')\n"
            "Acme = ReasoningFormat(read)",
        ),
        options={"reasoning_parser": "acme"},
        fields={"chat_template_kwargs": {"x": 1}},
    ),
    "a feature extension at the edge raises": Broken(
        extension("admission", "prepare(self, draft)", RAISE, attributes="fields = ('acme',)"),
        fields={"acme": "x"},
    ),
    "a feature extension at the edge returns something else": Broken(
        extension("admission", "prepare(self, draft)", "return 7", attributes="fields = ('acme',)"),
        fields={"acme": "x"},
        says="7",
    ),
    "a scheduler extension raises": Broken(
        extension(
            "scheduler", "may_start(self, request)", f"if {MINE}: {RAISE}\n        return True"
        ),
        fields={"request_id": "victim"},
    ),
    "a tokenizer raises": Broken(
        entry(
            "tokenizers",
            "from builtin_plugins.model_sources.scripted.tokenizer import ScriptedTokenizer\nclass "
            "Acme(ScriptedTokenizer):\n"
            "    def encode_rendered(self, text, add_special_tokens=False):\n"
            f"        if 'victim' in str(text): {RAISE}\n"
            "        return super().encode_rendered(text, add_special_tokens)",
        ),
        config={"tokenizer_mode": "acme"},
    ),
    "a policy raises": Broken(
        entry(
            "scheduling_policies",
            "class Acme:\n    def key(self, request):\n"
            f"        if request.priority: {RAISE}\n        return (request.arrival_s,)",
        ),
        config={"scheduling_policy": "acme"},
        fields={"priority": 3},
    ),
    "a sink raises": Broken(
        entry(
            "metric_sinks",
            "class Acme:\n    def __init__(self, config):\n        pass\n    def step(self, "
            "stats):\n        pass\n"
            f"    def request(self, stats):\n        {RAISE}",
        ),
        survives=True,
    ),
    "a renderer raises": Broken(
        entry(
            "chat_renderers",
            "class Acme:\n    def __init__(self, tokenizer, source, config):\n        pass\n"
            "    def render(self, messages, *, tools=None, chat_template=None, "
            "add_generation_prompt=True,\n"
            "               continue_final_message=False, template_kwargs=None):\n"
            f"        if template_kwargs: {RAISE}\n"
            "        return "
            "f\"<|im_start|>user\\n{messages[-1]['content']}<|im_end|>\\n"
            '<|im_start|>assistant\\n"',
        ).replace("'broken')", "'broken', priority=99)"),
        fields={"chat_template_kwargs": {"x": 1}},
    ),
}


@contextmanager
def server(broken: Broken) -> Iterator[Any]:
    """Yield the application of a server with the plugin installed."""
    with fake_dist("engine-acme", "1.7", {"acme": "engine_acme"}, {"engine_acme": broken.source}):
        engine = AsyncLLM(
            "scripted:",
            plugins=["acme"],
            disable_frontend_multiprocessing=True,
            max_model_len=512,
            max_num_seqs=8,
            kv_cache_memory_bytes=1 << 24,
            num_threads=1,
            log_level="warning",
            **broken.config,
        )
        try:
            config = EngineConfig(options=dict(broken.options))
            yield HttpServer(engine, engine.config, [OpenAIRoutes(engine, config)]).app
        finally:
            engine.shutdown()


async def chat(app: Any, text: str, **fields: Any) -> httpx.Response:
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 100,
        "temperature": 0,
        **fields,
    }
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", timeout=TIMEOUT_S
    ) as client:
        return await client.post(
            "/v1/chat/completions", json=body, headers={"X-Request-Id": "mine-7"}
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_plugin_error_in_a_request_fails_only_that_request(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = BROKEN[name]
    with server(broken) as app:

        async def post_all() -> list[httpx.Response]:
            others = [chat(app, text) for text in OTHER_PROMPTS]
            return await asyncio.gather(chat(app, "the victim", **broken.fields), *others)

        victim, *others_done = asyncio.run(post_all())
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    contents = [answer.json()["choices"][0]["message"]["content"] for answer in others_done]
    assert contents == list(OTHER_PROMPTS)
    assert (victim.status_code == 200) is broken.survives
    assert SECRET not in victim.text
    (line,) = lines
    for part in ("plugin 'acme' (engine-acme 1.7)", broken.says, "--plugins no:acme"):
        assert part in line.getMessage()
    if not broken.survives:
        assert "plugin 'acme' failed in request" in victim.json()["error"]["message"]
        # the id in the body overrides the header
        request_id = "victim" if "request_id" in broken.fields else "mine-7"
        assert request_id in victim.json()["error"]["message"]
        assert request_id in line.getMessage()
        assert line.exc_info is not None


def errors(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if not line.startswith("INFO")]


def plugin(name: str, code: str) -> dict[str, str]:
    return {f"engine_{name}": API + code}


AT_START: Final[Mapping[str, tuple[str, str]]] = {
    "cannot be imported": ("import missing_module", "ModuleNotFoundError"),
    "ends the process": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "has a syntax error": ("def engine_models(:", "SyntaxError"),
    "raises in a hook": ("@hookimpl\ndef engine_models():\n    return 1 / 0", "ZeroDivisionError"),
    "returns something else from a hook": (
        "@hookimpl\ndef engine_models():\n    return {'a': 1}",
        "a list of Entry objects",
    ),
    "takes an argument that is none": (
        "@hookimpl\ndef engine_find_model(modle): ...",
        "did you mean 'model'?",
    ),
    "has a hook that is none": (
        "@hookimpl\ndef engine_model(): ...",
        "did you mean 'engine_models'?",
    ),
    "is written for another engine": (
        "@hookimpl\ndef engine_models():\n    return [Entry('A', 'a:b', 'x', api=9)]",
        "Upgrade the engine",
    ),
}


@pytest.mark.parametrize("name", AT_START)
def test_plugin_error_at_start_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, says = AT_START[name]
    with fake_dist("engine-acme", "1.7", {"acme": "engine_acme"}, plugin("acme", code)):
        assert main(["--plugins", "acme", "generate", "scripted:", "--prompt", "hello"]) == 1
        (line,) = errors(capsys)
        for part in ("plugin 'acme' (engine-acme 1.7)", says, "--plugins no:acme"):
            assert part in line
        assert main(["--plugins", "no:acme", "generate", "scripted:", "--prompt", "hello"]) == 0


def test_duplicate_plugins_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        fake_dist("engine-acme", "1.7", {"acme": "engine_acme"}, plugin("acme", "")),
        fake_dist("engine-other", "2.0", {"acme": "engine_other"}, plugin("other", "")),
    ):
        assert main(["generate", "scripted:", "--prompt", "hello"]) == 1
    (line,) = errors(capsys)
    for part in ("'acme'", "engine-acme 1.7", "engine-other 2.0", "--plugins no:acme"):
        assert part in line


def test_edited_locked_plugin_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lock = str(tmp_path / "lock")
    with fake_dist("engine-acme", "1.7", {"acme": "engine_acme"}, plugin("acme", "")) as root:
        assert main(["--plugins", "acme", "plugins", "lock", "-o", lock]) == 0
        (root / "engine_acme.py").write_text("edited = True")
        capsys.readouterr()
        assert (
            main(
                [
                    "--plugins",
                    "acme",
                    "--plugins-lock",
                    lock,
                    "generate",
                    "scripted:",
                    "--prompt",
                    "x",
                ]
            )
            == 2
        )
    (line,) = errors(capsys)
    for part in ("engine-acme 1.7", "engine_acme.py is edited", "engine plugins lock"):
        assert part in line
