"""Tool calls and reasoning over HTTP, streamed and whole."""

from __future__ import annotations

import json

import msgspec
import pytest

from builtin_plugins.output_parsers.tools.json_calls import HERMES
from builtin_plugins.routes.common.conversation import Conversation
from builtin_plugins.routes.common.fields import with_client_field
from builtin_plugins.routes.common.output_formats import OutputFormats, suggested_flags
from builtin_plugins.routes.common.tools import forced_call_constraint
from core.api import ConfigError, InvalidRequest
from core.api.telemetry import CallStats
from core.frontend.metrics import SinkHealth
from tests.over_http import joined

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
ON = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "think"}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_content_and_calls_are_separated(make_api, read_events, stream):
    scripted = f"<think>hm</think>Adding.\n{CALL}{CALL}"
    reply = make_api(**ON).chat(scripted, tools=[TOOL], stream=stream)
    if stream:
        choices = [choice for chunk in read_events(reply) for choice in chunk["choices"]]
        message = joined(choice["delta"] for choice in choices)
        reason = choices[-1]["finish_reason"]
    else:
        choice = reply.json()["choices"][0]
        message = choice["message"]
        reason = choice["finish_reason"]
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]
    assert calls == [("add", {"a": 1})] * 2
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    assert (message["reasoning"], message["reasoning_content"]) == ("hm", "hm")
    assert (message["content"], reason) == ("Adding.", "tool_calls")


def test_answer_with_only_calls_has_null_content(make_api):
    choice = make_api(**ON).chat(CALL, tools=[TOOL]).json()["choices"][0]
    assert choice["message"]["content"] is None


class Calls:
    """A metric sink that records statistics of calls."""

    def __init__(self) -> None:
        self.heard: list[CallStats] = []

    def calls(self, stats: CallStats) -> None:
        sent = msgspec.msgpack.encode(stats)  # as an API server sends it to the shared sinks
        self.heard.append(msgspec.msgpack.decode(sent, type=CallStats))


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_tool_calls_are_returned_and_counted(make_api, stream):
    api = make_api(**ON)
    sink = Calls()
    api.engine.sinks.entries.append(SinkHealth("calls", "a test", sink))
    reply = api.chat(CALL + CALL.replace("add", "subtract"), tools=[TOOL], stream=stream)
    assert "subtract" in reply.text
    assert (
        sum(stats.known for stats in sink.heard) == sum(stats.unknown for stats in sink.heard) == 1
    )


def test_parallel_tool_calls_false_returns_one_call(make_api):
    choice = (
        make_api(**ON)
        .chat(CALL + CALL, tools=[TOOL], parallel_tool_calls=False)
        .json()["choices"][0]
    )
    assert len(choice["message"]["tool_calls"]) == 1


def test_auto_tool_choice_needs_parser(make_api):
    with pytest.raises(ConfigError, match="--enable-auto-tool-choice needs --tool-call-parser"):
        make_api(enable_auto_tool_choice=True)


def test_no_tools_or_choice_none_parses_no_calls(make_api):
    api = make_api(**ON)
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        choice = api.chat(CALL, **fields).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


def test_exclude_tools_when_choice_is_none(make_api):
    api = make_api(**ON, exclude_tools_when_tool_choice_none=True)
    api.chat("a", tools=[TOOL], tool_choice="none")
    assert api.engine.rendered[0]["tools"] is None


def test_include_reasoning_false_omits_reasoning(make_api):
    message = (
        make_api(**ON)
        .chat("<think>hm</think>yes", include_reasoning=False)
        .json()["choices"][0]["message"]
    )
    assert message == {"role": "assistant", "content": "yes", "refusal": None}


def test_thinking_budget_passes_parser_markers(make_api):
    api = make_api(reasoning_parser="openai_gptoss")
    api.chat("a", thinking_token_budget=5, vllm_xargs={"x": 1})
    end = "<|end|><|start|>assistant<|channel|>final<|message|>"
    expected = {"x": 1, "thinking_token_budget": 5, "thinking_starts": [], "thinking_end": end}
    assert api.engine.sampling[0].extra_args == expected
    assert (
        make_api().chat("a", thinking_token_budget=5).json()["error"]["param"]
        == "thinking_token_budget"
    )


def test_incomplete_calls_are_content(make_api):
    choice = make_api(**ON).chat(CALL, tools=[TOOL], max_tokens=20).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL[:20], "length")


def test_streamed_incomplete_call_does_not_finish_with_tool_calls(make_api, read_events):
    text = "A long text, scripted word for word. " * 2
    scripted = f'<tool_call>{{"name": "add", "arguments": {{"a": "{text}'
    reply = make_api(**ON).chat(scripted, tools=[TOOL], stream=True, max_tokens=len(scripted) - 5)
    choices = [choice for chunk in read_events(reply) for choice in chunk["choices"]]
    pieces = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert len(pieces) > 20
    (call,) = joined(choice["delta"] for choice in choices)["tool_calls"]
    assert call["function"]["name"] == "add"
    assert call["function"]["arguments"] == f'{{"a": "{text[:-5]}'
    assert choices[-1]["finish_reason"] == "length"


ADD = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("choice", "scripted", "calls"),
    [
        (
            "required",
            '[{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {}}]',
            [{"a": 1}, {}],
        ),
        ("required", '[{"name": "add", "arguments": {"a": [1, "]"]}}]', [{"a": [1, "]"]}]),
        (ADD, '{"a": {"b": "}"}}', [{"a": {"b": "}"}}]),
    ],
)
def test_forced_calls_are_constrained_and_need_no_parser(api, choice, scripted, calls):
    choice_ = api.chat(scripted, tools=[TOOL], tool_choice=choice).json()["choices"][0]
    found = [json.loads(call["function"]["arguments"]) for call in choice_["message"]["tool_calls"]]
    assert (found, choice_["message"]["content"], choice_["finish_reason"]) == (
        calls,
        None,
        "tool_calls",
    )
    form = api.engine.sampling[0].structured_outputs
    assert (form.structural_tag or form.json)["type"] == (
        "structural_tag" if choice == "required" else "object"
    )


@pytest.mark.parametrize("choice", ["required", ADD])
def test_forced_calls_use_model_family_format(make_api, choice):
    api = make_api(**ON)
    message = api.chat(f"<think>hm</think>{CALL}", tools=[TOOL], tool_choice=choice).json()[
        "choices"
    ][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["add"]
    assert (message["content"], message["reasoning"]) == (None, "hm")
    form = api.engine.sampling[0].structured_outputs
    assert "<tool_call>" in json.dumps(form.structural_tag)
    bounds = api.engine.options[0]["reasoning_bounds"]
    assert (bounds.at_start, bounds.ends) == ("optional", ("</think>",))


def test_forced_call_special_tokens_use_ids():
    form = forced_call_constraint(
        [TOOL], "required", HERMES, {"<tool_call>": 7, "<other>": 8}, parallel=True
    )
    text = json.dumps(form.structural_tag)
    assert '{"type": "token", "token": 7}' in text
    assert "<tool_call>" not in text
    assert "</tool_call>" in text


def test_forced_single_call_constraint_allows_one_call():
    forms = [
        forced_call_constraint([TOOL], "required", HERMES, {}, parallel=parallel)
        for parallel in (True, False)
    ]
    assert ['"star"' in json.dumps(form.structural_tag) for form in forms] == [True, False]


def test_forced_call_conflicts_with_response_format(api):
    fields = {
        "tools": [TOOL],
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
    }
    assert api.chat("a", **fields).json()["error"]["param"] == "response_format"


@pytest.mark.parametrize("choice", ["required", ADD])
def test_incomplete_forced_calls_are_content(api, choice):
    scripted = '[{"name": "add", "arguments"' if choice == "required" else '{"a": [1,'
    message = api.chat(scripted, tools=[TOOL], tool_choice=choice).json()["choices"][0]["message"]
    assert message["content"] == scripted


@pytest.mark.parametrize("fields", [{"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "auto"}])
def test_auto_tool_choice_needs_both_flags(api, fields):
    error = api.chat("a", **fields).json()["error"]
    assert error["param"] == "tool_choice"
    assert "--enable-auto-tool-choice" in error["message"]
    assert "--tool-call-parser" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        (
            {"tools": [TOOL, {"type": "function", "function": {"name": "a b"}}]},
            "tools[1].function.name",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": 5}}]},
            "tools[0].function.parameters",
        ),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}
                ]
            },
            "tools[0].function.parameters.type",
        ),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [TOOL], "tool_choice": "often"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "tool_choice",
        ),
    ],
)
def test_invalid_tools_are_rejected(make_api, fields, param):
    reply = make_api(**ON).chat("a", **fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_auto_tool_choice_error_suggests_flags(make_api):
    api = make_api()
    template = (
        "{% for tool in tools %}{{ tool }}{% endfor %} <tool_call> {{ '<think>' }} "
        "enable_thinking </think>"
    )
    assert suggested_flags(template, api.engine.registry) == (
        "--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser think"
    )
    assert suggested_flags("{{ messages }} <tool_call>", api.engine.registry) == ""
    api.engine.tokenizer.chat_template = template
    formats = OutputFormats.from_engine(api.engine, {})
    with pytest.raises(
        InvalidRequest,
        match="the chat template suggests --enable-auto-tool-choice --tool-call-parser",
    ):
        formats.check(Conversation(messages=[], tools=[TOOL]))


def test_formats_are_built_from_checkpoint(make_api):
    api = make_api()
    options = {"enable_auto_tool_choice": True, "tool_call_parser": "hf", "reasoning_parser": "hf"}
    with pytest.raises(ConfigError, match="response_template: is missing"):
        OutputFormats.from_engine(api.engine, options)
    api.engine.tokenizer.response_template = {
        "fields": {
            "thinking": {"open": "<hm>", "close": "</hm>"},
            "tool_calls": {
                "open": "@call",
                "close": "@end",
                "content": "json",
                "transform": {"function": "{content}"},
            },
        }
    }
    formats = OutputFormats.from_engine(api.engine, options)
    assert (formats.tools.call_ends, formats.reasoning.ends) == (("@end",), ("</hm>",))


def test_route_groups_share_formats(make_api):
    api = make_api(**ON)
    first = OutputFormats.shared(api.engine, api.config.options)
    assert OutputFormats.shared(api.engine, {**api.config.options, "strict_fields": True}) is first
    assert OutputFormats.shared(api.engine, {"tool_call_parser": "mistral"}) is not first


def test_errors_name_client_field():
    refused = InvalidRequest("extra_args.budget", "must be an integer, not 'x'.")
    renamed = with_client_field(refused, {"extra_args": "vllm_xargs"})
    assert (renamed.field, str(renamed)) == (
        "vllm_xargs.budget",
        "vllm_xargs.budget: must be an integer, not 'x'.",
    )
    assert (
        with_client_field(InvalidRequest("n", "is 0."), {"extra_args": "vllm_xargs"}).field == "n"
    )
