"""Where thoughts end for stop strings, constraints and parsers; forms next to tools; over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from builtin_plugins.routes.anthropic.routes import AnthropicRoutes
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.responses.routes import ResponsesRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from tests.in_process import send_to

OPTIONS = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "reasoning_parser": "think",
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"x": {}}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    made = AsyncLLM(
        "scripted:",
        disable_frontend_multiprocessing=True,
        max_model_len=2048,
        kv_cache_memory_bytes=1 << 26,
        num_threads=1,
        log_level="error",
        structured_outputs_config={"warm_up": False},
        **OPTIONS,
    )
    yield made
    made.shutdown()


def post(engine: AsyncLLM, path: str, body: dict[str, Any]) -> httpx.Response:
    groups = (OpenAIRoutes, ResponsesRoutes, AnthropicRoutes)
    server = HttpServer(engine, engine.config, [make(engine, engine.config) for make in groups])

    return send_to(server.app, "POST", path, json=body)


def chat(engine: AsyncLLM, text: str, **fields: Any) -> dict[str, Any]:
    """Return the first choice and the usage of a chat answer; the model repeats the text."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 200, **fields}
    reply = post(engine, "/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    return {**reply.json()["choices"][0], "usage": reply.json()["usage"]}


STOPS = [
    ("<think>First Q: why</think>Answer. Q: x", "First Q: why", "Answer. ", "Q:"),
    ("Answer. Q: x", None, "Answer. ", "Q:"),
    ("<thi Q: x", None, "<thi ", "Q:"),
    ("<think>only Q: thoughts</think>", "only Q: thoughts", None, None),
    ("<think>never closed Q: x", "never closed Q: x", None, None),
]


@pytest.mark.parametrize(("text", "thoughts", "answer", "stop"), STOPS)
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_answers_and_not_thoughts(engine, text, thoughts, answer, stop, stream):
    if not stream:
        choice = chat(engine, text, stop=["Q:"])
        message = choice["message"]
        found = (message.get("reasoning"), message["content"], choice["stop_reason"])
        assert found == (thoughts, answer, stop)
        return
    body = {"messages": [{"role": "user", "content": text}], "stop": ["Q:"], "stream": True}
    reply = post(engine, "/v1/chat/completions", body)
    blocks = [json.loads(block[6:]) for block in reply.text.split("\n\n")[:-2]]
    deltas = [choice["delta"] for block in blocks for choice in block["choices"]]
    reasoning = "".join(delta.get("reasoning", "") for delta in deltas)
    content = "".join(delta.get("content", "") for delta in deltas)
    assert (reasoning or None, content or None) == (thoughts, answer)


def test_stop_sequences_of_messages_end_answers_and_not_thoughts(engine):
    body = {
        "max_tokens": 200,
        "stop_sequences": ["Q:"],
        "thinking": {"type": "adaptive"},
        "messages": [{"role": "user", "content": STOPS[0][0]}],
    }
    answer = post(engine, "/v1/messages", body).json()
    thoughts, text = answer["content"]
    assert (thoughts["thinking"], text["text"]) == ("First Q: why", "Answer. ")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "Q:")


SHORT = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}
"""The form of answers that the scripted model fills with random text."""


FORMS = {
    "chat": {
        "path": "/v1/chat/completions",
        "fields": {
            "max_tokens": 200,
            "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
            "tools": [{"type": "function", "function": FUNCTION}],
        },
    },
    "responses": {
        "path": "/v1/responses",
        "fields": {
            "max_output_tokens": 200,
            "text": {"format": {"type": "json_schema", "name": "r", "schema": SCHEMA}},
            "tools": [{"type": "function", **FUNCTION}],
        },
    },
    "messages": {
        "path": "/v1/messages",
        "fields": {
            "max_tokens": 200,
            "thinking": {"type": "adaptive"},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}],
        },
    },
}


def answer_of(engine: AsyncLLM, protocol: str, text: str) -> tuple[str, str, list[Any]]:
    """Return reasoning, content and arguments of calls in an answer with tools and a form."""
    path = FORMS[protocol]["path"]
    fields = FORMS[protocol]["fields"]
    given = {"input": text} if protocol == "responses" else {}
    given = given or {"messages": [{"role": "user", "content": text}]}
    body = post(engine, path, {**fields, **given}).json()
    if protocol == "chat":
        message = body["choices"][0]["message"]
        calls = [json.loads(c["function"]["arguments"]) for c in message.get("tool_calls", ())]
        return message.get("reasoning", ""), message["content"] or "", calls
    if protocol == "responses":
        kinds = {item["type"]: item for item in body["output"]}
        texts = [
            kinds.get(kind, {}).get("content", [{}])[0].get("text", "")
            for kind in ("reasoning", "message")
        ]
        calls = (
            [json.loads(kinds["function_call"]["arguments"])] if "function_call" in kinds else []
        )
        return *texts, calls
    blocks = {block["type"]: block for block in body["content"]}
    calls = [blocks["tool_use"]["input"]] if "tool_use" in blocks else []
    thoughts = blocks.get("thinking", {}).get("thinking", "")
    return thoughts, blocks.get("text", {}).get("text", ""), calls


@pytest.mark.parametrize("protocol", FORMS)
def test_answer_with_form_and_tools_is_a_call_or_has_the_form(engine, protocol):
    assert answer_of(engine, protocol, CALL) == ("", "", [{"x": 1}])
    assert answer_of(engine, protocol, f"<think>hm</think>{CALL}") == ("hm", "", [{"x": 1}])
    assert answer_of(engine, protocol, '{"a": true}') == ("", '{"a": true}', [])
    thoughts, content, calls = answer_of(engine, protocol, '{"neither": "of both"}')
    assert (thoughts, calls) == ("", [])
    assert content.startswith("{")
    assert "neither" not in content


def test_text_of_a_form_is_never_a_call_or_a_tag(engine):
    form = {"type": "json_object"}
    tools = FORMS["chat"]["fields"]["tools"]
    for text in (f'{{"b": {json.dumps(CALL)}}}', '{"b": "</think> <think>x</think>"}'):
        for fields in ({}, {"tools": tools}):
            choice = chat(engine, text, response_format=form, **fields)
            assert choice["message"]["content"] == text
            assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("tools", [False, True])
def test_call_in_open_thoughts_does_not_end_them_under_a_form(engine, tools):
    fields = {"tools": FORMS["chat"]["fields"]["tools"]} if tools else {}
    message = chat(engine, f"<think>plan\n{CALL}", **SHORT, **fields)["message"]
    assert message["reasoning"].startswith(f"plan\n{CALL}")
    assert isinstance(json.loads(message["content"])["a"], bool)


def test_thoughts_leave_room_for_the_form_and_for_forced_calls(engine):
    text = "<think>" + "so " * 300
    form = chat(engine, text, **SHORT)
    assert "so so" in form["message"]["reasoning"]
    assert isinstance(json.loads(form["message"]["content"])["a"], bool)
    choice = {"tools": FORMS["chat"]["fields"]["tools"], "tool_choice": "required"}
    call = chat(engine, f"{text}</think>{CALL}", **choice)
    assert "so so" in call["message"]["reasoning"]
    assert call["message"]["content"] is not None or call["message"]["tool_calls"]


def test_optional_thoughts_do_not_start_because_a_form_forbids_the_answer(engine):
    choice = chat(engine, "Hello!", structured_outputs={"choice": ["yes", "no"]})
    assert choice["message"]["content"] in ("yes", "no")
    assert "reasoning" not in choice["message"]


def test_usage_has_the_reasoning_tokens(engine):
    thoughts = "hm, so"
    usage = chat(engine, f"<think>{thoughts}</think>Yes.")["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len(thoughts)}
    assert chat(engine, "Yes.")["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    body = {
        "messages": [{"role": "user", "content": f"<think>{thoughts}</think>Yes."}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    reply = post(engine, "/v1/chat/completions", body)
    last = json.loads(reply.text.split("\n\n")[-3].removeprefix("data: "))
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(thoughts)}
