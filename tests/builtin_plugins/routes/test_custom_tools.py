"""Custom tools of chat completions: the model calls a function, the client gets a text."""

from __future__ import annotations

import json

import pytest

ON = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
ADD = {"type": "function", "function": {"name": "add"}}
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Edits files."}}
TEXT = '*** Begin\n+f("\\t")\n*** End'


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def streamed_calls(chunks):
    """Return the calls of a stream, joined as a client joins them, and the deltas of inputs."""
    calls = {}
    deltas = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            for part in choice["delta"].get("tool_calls", ()):
                known = calls.setdefault(part["index"], part)
                if part is not known and "custom" in part:
                    known["custom"]["input"] += part["custom"]["input"]
                    deltas.append(part["custom"]["input"])
                elif part is not known:
                    known["function"]["arguments"] += part["function"]["arguments"]
    return [calls[index] for index in sorted(calls)], deltas


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_custom_and_other_tools_have_their_own_forms(make_api, read_events, stream):
    written = call("patch", json.dumps({"input": TEXT})) + call("add", '{"a": 1}')
    reply = make_api(**ON).chat(written, tools=[PATCH, ADD], stream=stream)
    if stream:
        (first, second), deltas = streamed_calls(read_events(reply))
        assert len(deltas) > len(TEXT) // 4
    else:
        choice = reply.json()["choices"][0]
        first, second = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
    assert (first["type"], first["custom"]) == ("custom", {"name": "patch", "input": TEXT})
    assert "function" not in first
    assert second["function"] == {"name": "add", "arguments": '{"a": 1}'}


@pytest.mark.parametrize("stream", [False, True])
def test_arguments_in_another_form_are_the_input(make_api, read_events, stream):
    reply = make_api(**ON).chat(call("patch", '{ "text": "b" }'), tools=[PATCH], stream=stream)
    if stream:
        (made,), _ = streamed_calls(read_events(reply))
    else:
        (made,) = reply.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(made["custom"]["input"]) == {"text": "b"}


def test_model_gets_a_function_with_one_text(make_api):
    api = make_api(**ON)
    api.chat("hi", tools=[PATCH])
    (tool,) = api.engine.rendered[0]["tools"]
    assert tool["function"]["name"] == "patch"
    assert tool["function"]["parameters"]["required"] == ["input"]


def test_chosen_custom_tool_is_forced(make_api):
    api = make_api(**ON)
    choice = {"type": "custom", "custom": {"name": "patch"}}
    written = call("patch", json.dumps({"input": "b"}))
    message = api.chat(written, tools=[ADD, PATCH], tool_choice=choice).json()["choices"][0]
    assert message["message"]["tool_calls"][0]["custom"]["input"] == "b"
    form = json.dumps(api.engine.sampling[0].structured_outputs.structural_tag)
    assert "patch" in form
    assert "add" not in form


@pytest.mark.parametrize(("mode", "is_forced"), [("auto", False), ("required", True)])
def test_only_allowed_tools_are_offered(make_api, mode, is_forced):
    api = make_api(**ON)
    named = [{"type": "custom", "custom": {"name": "patch"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
    reply = api.chat(call("patch", '{"input": "b"}'), tools=[ADD, PATCH], tool_choice=choice)
    assert reply.json()["choices"][0]["message"]["tool_calls"][0]["custom"]["name"] == "patch"
    form = api.engine.sampling[0].structured_outputs
    assert (form is not None) == is_forced
    assert form is None or "add" not in json.dumps(form.structural_tag)


def test_grammar_of_a_tool_is_named_as_ignored(make_api):
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}}
    tool = {"type": "custom", "custom": {"name": "patch", "format": grammar}}
    assert make_api(**ON).chat("hi", tools=[tool]).headers["X-Ignored-Fields"] == (
        "tools.0.custom.format"
    )
    refused = make_api(**ON, strict_fields=True).chat("hi", tools=[tool]).json()["error"]
    assert refused["param"] == "tools.0.custom.format"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, "tools[0].custom.name"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "no"}}}, "tool_choice"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": []}}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [{"type": "x"}]}}},
            "tool_choice.allowed_tools.tools[0]",
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "x", "tools": [PATCH]},
                }
            },
            "tool_choice.allowed_tools.mode",
        ),
    ],
)
def test_invalid_custom_tools_and_choices_are_rejected(make_api, fields, param):
    reply = make_api(**ON).chat("a", **{"tools": [PATCH], **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_tokenize_reads_custom_tools_as_chats_do(make_api):
    api = make_api(**ON)
    messages = [{"role": "user", "content": "hi"}]
    api.chat(messages=messages, tools=[PATCH])
    assert api.call("POST", "/tokenize", json={"messages": messages, "tools": [PATCH]}).is_success
    in_chat, in_tokenize = (options["tools"] for options in api.engine.rendered)
    assert in_chat == in_tokenize
