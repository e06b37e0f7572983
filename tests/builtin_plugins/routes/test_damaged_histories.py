"""Recorded histories of real clients go on after every kind of damage, in all three protocols.

`histories/` holds the last request of each session of Claude Code 2.1.197, Codex 0.169.0, OpenCode
1.18.33, Open WebUI 0.12.4, LangChain (langchain-openai 1.7, langchain-anthropic 1.7) and
PydanticAI 2.68 with a scripted model; texts are cut short. Open WebUI's server was driven as its
page does, and its requests of titles, tags and follow-up questions are there, too; its Responses
form is made by its own conversion. The template is as strict as those of Qwen 3.5 and Mistral.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.chat_renderers.jinja.renderer import JinjaRenderer
from builtin_plugins.routes.common.mending import LeftOut
from builtin_plugins.routes.openai.mending import mend_messages
from builtin_plugins.servers.http.server import HttpServer
from core.config import EngineConfig
from core.testing.echo_engine import EchoEngine
from tests.builtin_plugins.conftest import GROUPS, Api

HISTORIES = Path(__file__).parent / "histories"
SESSIONS = {path.stem: json.loads(path.read_text()) for path in sorted(HISTORIES.glob("*.json"))}
STRICT = """
{%- macro show(value) -%}
{%- if value is string -%}{{ value }}
{%- elif value is iterable -%}
  {%- for part in value -%}
    {%- if part.type == 'text' -%}{{ part.text }}
    {%- else -%}{{ raise_exception('Unexpected item type in content.') }}{%- endif -%}
  {%- endfor -%}
{%- else -%}{{ raise_exception('Unexpected content type.') }}{%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
{%- if m.role == 'system' -%}
  {%- if not loop.first -%}{{ raise_exception('System messages come first.') }}{%- endif -%}
  [SYS]{{ show(m.content) }}
{%- elif m.role == 'user' -%}[USER]{{ show(m.content) }}
{%- elif m.role == 'assistant' -%}
  [BOT]
  {%- if m.reasoning_content is string -%}<think>{{ m.reasoning_content }}</think>{%- endif -%}
  {{ show(m.content) }}
  {%- for call in m.tool_calls or [] -%}
    <call {{ call.function.name }}>
    {%- for k, v in call.function.arguments.items() -%}
      <{{ k }}>{{ v if v is string else v | tojson }}</{{ k }}>
    {%- endfor -%}</call>
  {%- endfor -%}
{%- elif m.role == 'tool' -%}[TOOL]{{ show(m.content) }}
{%- else -%}{{ raise_exception('Unexpected message role.') }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}[BOT]{%- endif -%}
"""
NEXT = "And now the next question."
Items = list[Any]


class StrictEngine(EchoEngine):
    """Renders with a strict template."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, 1_000_000)
        self.tokenizer.chat_template = STRICT  # type: ignore[attr-defined]
        self.renderer = JinjaRenderer(self.tokenizer, self.source, config)  # type: ignore[assignment,arg-type]
        self.prompts: list[str] = []

    async def render_chat(self, messages: Any, **options: Any) -> tuple[str, list[int]]:
        given = {name: options[name] for name in ("tools", "add_generation_prompt")}
        text = self.renderer.render(messages, **given)  # type: ignore[attr-defined]
        self.prompts.append(text)
        return text, self.tokenizer.encode("ok")


# Each damage is applied to the items of a history before its last user message: chat and Anthropic
# messages, or items of the Responses API. It returns False where the history has no such place.


def calls_of(items: Items) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (holder, field) of the arguments of every call."""
    for item in items:
        for call in item.get("tool_calls") or ():
            yield call["function"], "arguments"
        if item.get("type") == "function_call":
            yield item, "arguments"
        content = item.get("content")
        for block in content if isinstance(content, list) else ():
            if block.get("type") == "tool_use":
                yield block, "input"


def texts_of(items: Items) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (holder, field) of every text."""
    for item in items:
        for field in ("content", "output"):
            value = item.get(field)
            if isinstance(value, str):
                yield item, field
            for block in value if isinstance(value, list) else ():
                if isinstance(block.get("text"), str):
                    yield block, "text"


def with_arguments(value: Any) -> Callable[[Items, str], bool]:
    def damage(items: Items, protocol: str) -> bool:
        found = [*calls_of(items)]
        for holder, field in found:
            holder[field] = value
        return bool(found)

    return damage


def with_item(make: Callable[[str], Any], at: int = 0) -> Callable[[Items, str], bool]:
    def damage(items: Items, protocol: str) -> bool:
        items.insert(at if at >= 0 else len(items), make(protocol))
        return True

    return damage


def message(role: str, content: Any) -> Callable[[str], Any]:
    return lambda protocol: {"role": role, "content": content}


def lone_surrogates(items: Items, protocol: str) -> bool:
    found = [*texts_of(items)]
    for holder, field in found:
        holder[field] += "\ud83d cut emoji"
    return bool(found)


def nulls(items: Items, protocol: str) -> bool:
    """Null every optional field, and add null fields that clients send."""
    for item in items:
        is_message = "role" in item
        item |= dict.fromkeys(("name", "refusal", "audio", "tool_calls"), None) | item
        if is_message and item["role"] == "assistant":
            item["content"] = None
        for holder, field in [*texts_of([item])][:1]:
            if holder is not item and item.get("role") == "assistant":
                holder[field] = None
    return True


def foreign(protocol: str) -> Any:
    if protocol == "responses":
        return {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"q": 1}}
    kind = "server_tool_use" if protocol == "messages" else "tool_use"
    block = {"type": kind, "id": "srv_1", "name": "web_search", "input": {"q": "x"}}
    text = {"type": "text", "text": "found"}
    return {"role": "assistant", "content": [block, text]}


def unreadable(protocol: str) -> Any:
    part = {
        "chat": {"type": "image_url", "image_url": {"url": "data:"}},
        "responses": {"type": "input_image", "image_url": "data:"},
        "messages": {"type": "image", "source": {"type": "base64", "data": ""}},
    }[protocol]
    text = {"type": "input_text" if protocol == "responses" else "text", "text": "look"}
    return {"role": "user", "content": [part, text]}


def orphan_result(protocol: str) -> Any:
    if protocol == "responses":
        return {"type": "function_call_output", "call_id": "gone", "output": "late"}
    if protocol == "chat":
        return {"role": "tool", "tool_call_id": "gone", "content": "late"}
    block = {"type": "tool_result", "tool_use_id": "gone", "content": "late"}
    return {"role": "user", "content": [block]}


def without_results(items: Items, protocol: str) -> bool:
    """Remove the results of all calls, as an interrupted session does."""
    before = len(items)
    items[:] = [
        item
        for item in items
        if item.get("role") != "tool"
        and not str(item.get("type")).endswith("_output")
        and not any(
            block.get("type") == "tool_result"
            for block in (item.get("content") if isinstance(item.get("content"), list) else ())
        )
    ]
    return len(items) < before


def odd_results(items: Items, protocol: str) -> bool:
    """Make results null, an object, or a list with a part that is no text."""
    found = False
    values: Items = [None, {"ok": True}, [{"type": "image"}, {"type": "text", "text": "b"}]]
    for number, item in enumerate(items):
        value = values[number % 3]
        content = item.get("content")
        if item.get("role") == "tool":
            item["content"] = value
            found = True
        elif item.get("type") == "function_call_output":
            item["output"] = value
            found = True
        for block in content if isinstance(content, list) else ():
            if block.get("type") == "tool_result":
                block["content"] = value
                found = True
    return found


DAMAGES: dict[str, tuple[Callable[[Items, str], bool], ...]] = {
    "arguments cut off": (with_arguments('{"command": "ec'),),
    "arguments null": (with_arguments(None),),
    "arguments no object": (with_arguments('"x"'), with_arguments("[1]"), with_arguments([1])),
    "items of another provider": (with_item(foreign), with_item(foreign, -1)),
    "role developer": (with_item(message("developer", "Be brief.")),),
    "system in the middle": (with_item(message("system", "Be kind."), -1),),
    "two systems": (with_item(message("system", "A")), with_item(message("system", "B"))),
    "lone surrogates": (lone_surrogates,),
    "nulls": (nulls,),
    "unreadable parts": (with_item(unreadable), with_item(unreadable, -1)),
    "results without calls": (with_item(orphan_result), with_item(orphan_result, -1)),
    "calls without results": (without_results,),
    "results that are no text": (odd_results,),
}


@pytest.fixture(scope="module")
def strict_api() -> Any:
    api: Any = Api(
        enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser="think"
    )
    made = StrictEngine(api.config)
    made.served_names = ["*"]
    made.registry = api.engine.registry
    api.engine = made
    api.server = HttpServer(made, api.config, [make(made, api.config) for make in GROUPS])
    return api


def protocol_of(session: dict[str, Any]) -> str:
    return {"/v1/messages": "messages", "/v1/responses": "responses"}.get(session["path"], "chat")


def continued(session: dict[str, Any], *damages: Callable[[Items, str], bool]) -> dict[str, Any]:
    """Return the body of a session's next request, after damage; empty if none applies."""
    body = copy.deepcopy(session["body"])
    protocol = protocol_of(session)
    name = "input" if protocol == "responses" else "messages"
    items = body[name]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    applied = [damage(items, protocol) for damage in damages]
    if damages and not any(applied):
        return {}
    body[name] = [*items, {"role": "user", "content": NEXT}]
    return body | {"stream": False}


def send(api: Any, path: str, body: dict[str, Any]) -> Any:
    """Send a body as clients do that write lone surrogates as escapes."""
    content = json.dumps(body).encode()
    return api.call("POST", path, content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize("name", SESSIONS)
def test_history_goes_on_after_every_damage(strict_api: Any, name: str) -> None:
    session = SESSIONS[name]
    for damage, damages in {"none": (), **DAMAGES}.items():
        body = continued(session, *damages)
        if not body:
            continue
        reply = send(strict_api, session["path"], body)
        assert reply.status_code == 200, (damage, reply.text)
        assert (
            f"[USER]{NEXT}" in strict_api.engine.prompts[-1]
            or NEXT in (strict_api.engine.prompts[-1].rpartition("[USER]")[2])
        ), damage


def test_sessions_of_six_clients_cover_every_damage_in_all_protocols() -> None:
    assert len(SESSIONS) >= 65
    assert {name.split("_")[0].split("-")[0] for name in SESSIONS} == {
        "claude",
        "codex",
        "langchain",
        "opencode",
        "openwebui",
        "pydanticai",
    }
    for protocol in ("chat", "responses", "messages"):
        own = [each for each in SESSIONS.values() if protocol_of(each) == protocol]
        for damage, damages in DAMAGES.items():
            assert any(continued(session, *damages) for session in own), (protocol, damage)
    for protocol in ("chat", "responses"):
        named = [
            each for name, each in SESSIONS.items() if name.startswith(f"openwebui_{protocol}")
        ]
        for damage, damages in DAMAGES.items():
            assert any(continued(session, *damages) for session in named), (protocol, damage)


HEADER = "X-Ignored-Fields"
LEFT_OUT: dict[str, tuple[str, Items, str]] = {
    "chat": (
        "/v1/chat/completions",
        [foreign("chat"), unreadable("chat"), message("user", "a")("chat")],
        "messages.0.content.0, messages.1.content.0",
    ),
    "responses": (
        "/v1/responses",
        [foreign("responses"), unreadable("responses"), message("user", "a")("responses")],
        "input.1.content.0, input.0",
    ),
    "messages": (
        "/v1/messages",
        [foreign("messages"), unreadable("messages"), message("user", "a")("messages")],
        "messages.0.content.0, messages.1.content.0",
    ),
}


@pytest.mark.parametrize("protocol", LEFT_OUT)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_left_out_is_named(strict_api: Any, protocol: str, stream: bool) -> None:
    path, items, names = LEFT_OUT[protocol]
    name = "input" if protocol == "responses" else "messages"
    limit = {"max_tokens": 9} if protocol == "messages" else {}
    reply = send(strict_api, path, {name: items, "stream": stream, **limit})
    assert reply.status_code == 200, reply.text
    assert sorted(reply.headers[HEADER].split(", ")) == sorted(names.split(", "))


@pytest.mark.parametrize("protocol", LEFT_OUT)
def test_strict_fields_refuse_what_would_be_left_out(protocol: str) -> None:
    path, items, names = LEFT_OUT[protocol]
    name = "input" if protocol == "responses" else "messages"
    limit = {"max_tokens": 9} if protocol == "messages" else {}
    reply = send(Api(strict_fields=True), path, {name: items, **limit})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] in names


@pytest.mark.parametrize("protocol", LEFT_OUT)
def test_last_message_of_a_user_is_checked(strict_api: Any, protocol: str) -> None:
    path, _, _ = LEFT_OUT[protocol]
    name = "input" if protocol == "responses" else "messages"
    limit = {"max_tokens": 9} if protocol == "messages" else {}
    reply = send(strict_api, path, {name: [unreadable(protocol)], **limit})
    assert reply.status_code == 400
    assert f"{name}[0].content[0]" in reply.json()["error"]["param"]


@pytest.mark.parametrize("is_last", [True, False])
def test_content_that_is_one_part_becomes_a_list(is_last: bool) -> None:
    part = {"type": "text", "text": "hi"}
    message = {"role": "user", "content": part}
    body: dict[str, Any] = {"messages": [message] if is_last else [message, {"role": "user"}]}
    mend_messages(body, LeftOut())
    assert body["messages"][0]["content"] == [part]
