"""Tool calls and reasoning over HTTP, streamed and whole: what the formats find is what clients
get.
"""

from __future__ import annotations

import json

import pytest
from over_http import joined

from builtin_plugins.output_parsers.tools.hermes import HERMES
from builtin_plugins.routes.conversation.asked import Conversation
from builtin_plugins.routes.conversation.fields import as_typed
from builtin_plugins.routes.conversation.formats import Formats, suggested_flags
from builtin_plugins.routes.conversation.tools import forced_form
from core.api import CallStats, ConfigError, InvalidRequest
from core.engine.sinks import Guarded

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
ON = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "think"}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_content_and_calls_are_told_apart(make_api, read_events, stream):
    said = f"<think>hm</think>Adding.\n{CALL}{CALL}"
    reply = make_api(**ON).chat(said, tools=[TOOL], stream=stream)
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


def test_an_answer_of_calls_alone_has_no_content(make_api):
    choice = make_api(**ON).chat(CALL, tools=[TOOL]).json()["choices"][0]
    assert choice["message"]["content"] is None


class Calls:
    """A metric sink that keeps what it hears of calls."""

    def __init__(self) -> None:
        self.heard: list[CallStats] = []

    def calls(self, stats: CallStats) -> None:
        self.heard.append(stats)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_unknown_tools_are_passed_on_and_counted(make_api, stream):
    api = make_api(**ON)
    sink = Calls()
    api.engine.sinks.guarded.append(Guarded("calls", "a test", sink))
    reply = api.chat(CALL + CALL.replace("add", "subtract"), tools=[TOOL], stream=stream)
    assert "subtract" in reply.text
    assert (
        sum(stats.known for stats in sink.heard) == sum(stats.unknown for stats in sink.heard) == 1
    )


def test_one_call_where_the_client_wants_no_more(make_api):
    choice = (
        make_api(**ON)
        .chat(CALL + CALL, tools=[TOOL], parallel_tool_calls=False)
        .json()["choices"][0]
    )
    assert len(choice["message"]["tool_calls"]) == 1


def test_calling_at_will_needs_a_parser(make_api):
    with pytest.raises(ConfigError, match="--enable-auto-tool-choice needs --tool-call-parser"):
        make_api(enable_auto_tool_choice=True)


def test_without_tools_or_with_none_chosen_nothing_is_a_call(make_api):
    api = make_api(**ON)
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        choice = api.chat(CALL, **fields).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


def test_tools_can_be_left_out_of_prompts_that_call_none(make_api):
    api = make_api(**ON, exclude_tools_when_tool_choice_none=True)
    api.chat("a", tools=[TOOL], tool_choice="none")
    assert api.engine.rendered[0]["tools"] is None


def test_reasoning_can_be_left_out(make_api):
    message = (
        make_api(**ON)
        .chat("<think>hm</think>yes", include_reasoning=False)
        .json()["choices"][0]["message"]
    )
    assert message == {"role": "assistant", "content": "yes", "refusal": None}


def test_a_thinking_budget_is_handed_on_with_the_texts_of_the_parser(make_api):
    api = make_api(reasoning_parser="openai_gptoss")
    api.chat("a", thinking_token_budget=5, vllm_xargs={"x": 1})
    end = "<|end|><|start|>assistant<|channel|>final<|message|>"
    expected = {"x": 1, "thinking_token_budget": 5, "thinking_starts": [], "thinking_end": end}
    assert api.engine.sampling[0].extra_args == expected
    assert (
        make_api().chat("a", thinking_token_budget=5).json()["error"]["param"]
        == "thinking_token_budget"
    )


def test_cut_off_calls_are_content(make_api):
    choice = make_api(**ON).chat(CALL, tools=[TOOL], max_tokens=20).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL[:20], "length")


def test_a_call_that_is_cut_off_in_a_stream_stays_begun_and_is_no_reason_to_call(
    make_api, read_events
):
    text = "A long text, said word for word. " * 2
    said = f'<tool_call>{{"name": "add", "arguments": {{"a": "{text}'
    reply = make_api(**ON).chat(said, tools=[TOOL], stream=True, max_tokens=len(said) - 5)
    choices = [choice for chunk in read_events(reply) for choice in chunk["choices"]]
    pieces = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert len(pieces) > 20
    (call,) = joined(choice["delta"] for choice in choices)["tool_calls"]
    assert call["function"]["name"] == "add"
    assert call["function"]["arguments"] == f'{{"a": "{text[:-5]}'
    assert choices[-1]["finish_reason"] == "length"


ADD = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("choice", "said", "calls"),
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
def test_forced_calls_are_held_to_the_tools_and_read_without_a_parser(api, choice, said, calls):
    choice_ = api.chat(said, tools=[TOOL], tool_choice=choice).json()["choices"][0]
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
def test_forced_calls_are_written_as_the_model_has_learnt_it(make_api, choice):
    api = make_api(**ON)
    message = api.chat(f"<think>hm</think>{CALL}", tools=[TOOL], tool_choice=choice).json()[
        "choices"
    ][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["add"]
    assert (message["content"], message["reasoning"]) == (None, "hm")
    form = api.engine.sampling[0].structured_outputs
    assert "<tool_call>" in json.dumps(form.structural_tag)
    assert form.skip_reasoning


def test_tags_that_are_special_tokens_are_asked_for_by_id():
    form = forced_form([TOOL], "required", HERMES, {"<tool_call>": 7, "<other>": 8}, parallel=True)
    text = json.dumps(form.structural_tag)
    assert '{"type": "token", "token": 7}' in text
    assert "<tool_call>" not in text
    assert "</tool_call>" in text


def test_no_more_than_one_call_is_let_through_where_none_is_wanted():
    forms = [
        forced_form([TOOL], "required", HERMES, {}, parallel=parallel) for parallel in (True, False)
    ]
    assert ['"star"' in json.dumps(form.structural_tag) for form in forms] == [True, False]


def test_a_forced_call_and_another_form_exclude_each_other(api):
    fields = {
        "tools": [TOOL],
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
    }
    assert api.chat("a", **fields).json()["error"]["param"] == "response_format"


@pytest.mark.parametrize("choice", ["required", ADD])
def test_forced_calls_that_are_cut_off_are_content(api, choice):
    said = '[{"name": "add", "arguments"' if choice == "required" else '{"a": [1,'
    message = api.chat(said, tools=[TOOL], tool_choice=choice).json()["choices"][0]["message"]
    assert message["content"] == said


@pytest.mark.parametrize("fields", [{"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "auto"}])
def test_auto_needs_both_flags(api, fields):
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
def test_tools_that_cannot_be_called_are_refused_by_name(make_api, fields, param):
    reply = make_api(**ON).chat("a", **fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_the_refusal_of_auto_names_the_flags_that_the_chat_template_suggests(make_api):
    api = make_api()
    template = "{% for tool in tools %}{{ tool }}{% endfor %} <tool_call> {{ '<think>' }} enable_thinking </think>"
    assert suggested_flags(template, api.engine.registry) == (
        "--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser think"
    )
    assert suggested_flags("{{ messages }} <tool_call>", api.engine.registry) == ""
    api.engine.tokenizer.chat_template = template
    formats = Formats.from_engine(api.engine, {})
    with pytest.raises(
        InvalidRequest,
        match="the chat template suggests --enable-auto-tool-choice --tool-call-parser",
    ):
        formats.check(Conversation(messages=[], tools=[TOOL]))


def test_formats_are_made_from_what_the_checkpoint_says(make_api):
    api = make_api()
    options = {"enable_auto_tool_choice": True, "tool_call_parser": "hf", "reasoning_parser": "hf"}
    with pytest.raises(ConfigError, match="no `response_template`"):
        Formats.from_engine(api.engine, options)
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
    formats = Formats.from_engine(api.engine, options)
    assert (formats.tools.call_ends, formats.reasoning.ends) == (("@end",), ("</hm>",))


def test_route_groups_of_one_engine_share_their_formats(make_api):
    api = make_api(**ON)
    first = Formats.shared(api.engine, api.config.options)
    assert Formats.shared(api.engine, {**api.config.options, "strict_fields": True}) is first
    assert Formats.shared(api.engine, {"tool_call_parser": "mistral"}) is not first


def test_refusals_name_the_field_that_the_client_wrote():
    refused = InvalidRequest("extra_args.budget", "must be an integer, not 'x'.")
    shown = as_typed(refused, {"extra_args": "vllm_xargs"})
    assert (shown.field, str(shown)) == (
        "vllm_xargs.budget",
        "vllm_xargs.budget: must be an integer, not 'x'.",
    )
    assert as_typed(InvalidRequest("n", "is 0."), {"extra_args": "vllm_xargs"}).field == "n"
