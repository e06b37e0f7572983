"""Formats of checkpoints' response templates, in every chunking; rejected templates."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from builtin_plugins.output_parsers.api import ParseRequest, fit_format, read_pattern
from builtin_plugins.output_parsers.reasoning.think import HF as REASONING
from builtin_plugins.output_parsers.testing import Parsed, Reader
from builtin_plugins.output_parsers.tools.hf import HF as CALLS
from core.api import ConfigError
from tests.builtin_plugins.output_parsers.runtime.response_templates import (
    COHERE,
    ERNIE,
    GEMMA,
    GPT_OSS,
    INKLING_OPEN,
    QWEN,
    SMOLLM,
)

NUM_CHUNKINGS = 10
WEATHER = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
OSLO = ("get_weather", {"city": "Oslo"})
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
}


def reader(template: dict[str, Any], *, by_id: bool = False, **request: Any) -> Reader:
    tools = fit_format(CALLS, template)
    reasoning = fit_format(REASONING, template)
    special = frozenset({*tools.markers, *reasoning.markers}) if by_id else frozenset()
    return Reader(
        tools=tools, reasoning=reasoning, request=ParseRequest(**request), special=special
    )


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize(
    ("template", "text", "found"),
    [
        (SMOLLM, "Hello!", Parsed("Hello!")),
        (SMOLLM, "<think>\nhm\n</think>\n\nHello!<|im_end|>", Parsed("Hello!", reasoning="hm")),
        (
            SMOLLM,
            f"<think>hm</think><tool_call>{WEATHER}</tool_call>",
            Parsed(calls=(OSLO,), reasoning="hm"),
        ),
        (
            SMOLLM,
            f"So:\n<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>{WEATHER}</tool_call>",
            Parsed("So:", (OSLO, OSLO)),
        ),
        (SMOLLM, f"<tool_call>{WEATHER}", Parsed(calls=(OSLO,))),
        (SMOLLM, f"<tool_call>{WEATHER[:30]}", Parsed(f"<tool_call>{WEATHER[:30]}")),
        (SMOLLM, f"<tool_call>{WEATHER[:-1]}</tool_call>", Parsed(calls=(OSLO,))),
        (
            SMOLLM,
            f"<think>I look. <tool_call>{WEATHER}</tool_call>",
            Parsed(calls=(OSLO,), reasoning="I look."),
        ),
        (
            SMOLLM,
            '<tool_call>{"name": "f"}</tool_call>',
            Parsed('<tool_call>{"name": "f"}</tool_call>'),
        ),
        (SMOLLM, "<tool_call>[1]</tool_call>", Parsed("<tool_call>[1]</tool_call>")),
        (
            COHERE,
            '<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n{"tool_call_id": "0", '
            '"tool_name": "get_weather", '
            '"parameters": {"city": "Oslo"}},\n{"tool_name": "f", "parameters": '
            "{}}\n]<|END_ACTION|>",
            Parsed(calls=(OSLO, ("f", {})), reasoning="hm"),
        ),
        (COHERE, "<|START_RESPONSE|>Hello!<|END_RESPONSE|>", Parsed("Hello!")),
        (
            ERNIE,
            "hm\n</think>\n\n<response>\nHello!\n</response>\n",
            Parsed("Hello!", reasoning="hm"),
        ),
        (
            ERNIE,
            f"hm</think>\n<tool_call>\n{WEATHER}\n</tool_call>\n",
            Parsed(calls=(OSLO,), reasoning="hm"),
        ),
        (
            GPT_OSS,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message"
            "|>Hello!",
            Parsed("Hello!", reasoning="hm"),
        ),
        (
            GPT_OSS,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
            "to=functions.get_weather "
            '<|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
            Parsed(calls=(OSLO,), reasoning="hm"),
        ),
        (
            QWEN,
            "<think>hm</think>\n<tool_call>\n<function=f>\n<parameter=a>\n1.50\n</parameter>\n<"
            "parameter=b>\n[1, 2]\n"
            "</parameter>\n<parameter=c>\nx < y\n</parameter>\n</function>\n</tool_call>",
            Parsed(calls=(("f", {"a": "1.50", "b": [1, 2], "c": "x < y"}),), reasoning="hm"),
        ),
        (QWEN, "<tool_call><function=f></function></tool_call>.", Parsed(".", (("f", {}),))),
        (
            QWEN,
            "<tool_call><function=f><parameter=a>x",
            Parsed("<tool_call><function=f><parameter=a>x"),
        ),
        (QWEN, "<tool_call><function=f>", Parsed("<tool_call><function=f>")),
        (
            QWEN,
            "<tool_call><function=f><parameter=a>x</parameter>",
            Parsed(calls=(("f", {"a": "x"}),)),
        ),
        (
            GEMMA,
            '<|channel>thought\nhm<channel|><|tool_call>call:f{a:<|"|>a } '
            'b<|"|>,n:[1,true],o:{x:null}}<tool_call|>'
            "<|tool_response>",
            Parsed(
                calls=(("f", {"a": "a } b", "n": [1, True], "o": {"x": None}}),), reasoning="hm"
            ),
        ),
        (GEMMA, "<|channel>thought\n<channel|>Hello!<turn|>", Parsed("Hello!")),
        (GEMMA, "<|tool_call>call:f{a:1", Parsed("<|tool_call>call:f{a:1")),
    ],
)
def test_response_template_formats_parse_their_outputs(
    template: dict[str, Any], text: str, found: Parsed, by_id: bool
) -> None:
    assert reader(template, by_id=by_id, tools=[TOOL]).check(text, count=NUM_CHUNKINGS) == found


@pytest.mark.parametrize(
    ("template", "prompt_end", "text", "found"),
    [
        (
            SMOLLM,
            "<|im_start|>assistant\n<think>\n",
            "hm</think>Yes.",
            Parsed("Yes.", reasoning="hm"),
        ),
        (SMOLLM, "<|im_start|>assistant\n<think>\n\n</think>\n\n", "Yes.", Parsed("Yes.")),
        (
            GEMMA,
            "<|turn>model\n<|channel>thought\n",
            "hm<channel|>Yes.",
            Parsed("Yes.", reasoning="hm"),
        ),
        (ERNIE, "Assistant:<think>\n\n</think>\n", "Yes.", Parsed("Yes.")),
    ],
)
def test_prompt_may_open_or_close_the_reasoning(
    template: dict[str, Any], prompt_end: str, text: str, found: Parsed
) -> None:
    assert reader(template, prompt_end=prompt_end).check(text, count=NUM_CHUNKINGS) == found


def test_unclaimed_text_is_content() -> None:
    assert reader(COHERE).check("Hello!", count=NUM_CHUNKINGS) == Parsed("Hello!")


def test_tool_parser_alone_drops_content_delimiters() -> None:
    alone = Reader(tools=fit_format(CALLS, ERNIE))
    found = alone.check(
        f"<response>\nHello!\n</response>\n<tool_call>{WEATHER}</tool_call>", count=NUM_CHUNKINGS
    )
    assert found == Parsed("Hello!", (OSLO,))


def test_reasoning_format_states_where_a_grammar_starts() -> None:
    assert (fit_format(REASONING, SMOLLM).starts, fit_format(REASONING, SMOLLM).ends) == (
        ("<think>",),
        ("</think>",),
    )
    assert (fit_format(REASONING, ERNIE).starts, fit_format(REASONING, ERNIE).ends) == (
        (),
        ("</think>",),
    )


def changed(template: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a template with a changed value; None removes it."""
    found = copy.deepcopy(template)
    *keys, last = path.split("/")
    inner = found
    for key in keys:
        inner = inner[key]
    inner[last] = value
    if value is None:
        del inner[last]
    return found


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("version", 2, r"response_template\.version: got 2; expected 1"),
        ("surprise", 1, r"response_template\.surprise: is not supported"),
        ("defaults", {"mood": "good"}, r"defaults\.mood"),
        ("fields", [], r"response_template\.fields: got \[\]; expected an object"),
        ("fields/mood", {"open": "<mood>"}, r"fields\.mood"),
        ("fields/thinking/surprise", 1, r"thinking\.surprise"),
        ("fields/thinking/close", None, r"thinking\.close: is missing"),
        ("fields/thinking/open", None, r"thinking\.open: is missing"),
        ("fields/thinking/open", "", r"thinking\.open: got ''; expected a non-empty string"),
        (
            "fields/thinking/close_pattern",
            "</t>",
            r"thinking\.close_pattern: got both it and `close`",
        ),
        ("fields/thinking/join", "\n", r"thinking\.join: got"),
        (
            "fields/content/open_pattern",
            "<a>.*?>",
            r"content: got a pattern of several parts; expected one text before",
        ),
        ("fields/thinking/content", "json", r"thinking\.content: got 'json'"),
        (
            "fields/tool_calls/open_pattern",
            "^|<tool_call>",
            r"tool_calls\.open_pattern: got both it and `open`",
        ),
        (
            "fields/tool_calls",
            {"open_pattern": "^|<c>", "content": "json"},
            r"open_pattern: matches at the start of the message",
        ),
        ("fields/tool_calls/content", "kv-lines", r"tool_calls\.content: got 'kv-lines'"),
        (
            "fields/tool_calls/content_args",
            {"unquoted_keys": True},
            r"tool_calls\.content_args\.string_delims",
        ),
        ("fields/tool_calls/content_args", {"lax": True}, r"tool_calls\.content_args\.lax"),
        (
            "fields/tool_calls/transform",
            {"function": "my {content}"},
            r"tool_calls\.transform: got 'my \{content\}'",
        ),
        (
            "fields/tool_calls/transform",
            {"function": "{call}"},
            r"tool_calls\.transform: got '\{call\}'; expected a name",
        ),
        (
            "fields/tool_calls",
            {"open": "<c>", "content": "json", "transform_each": True},
            r"transform_each: expected a",
        ),
        (
            "fields/tool_calls",
            None,
            r"tool_calls: is missing\. Use the model family's own --tool-call-parser",
        ),
        ("fields/thinking", None, r"thinking: is missing\. Remove --reasoning-parser"),
    ],
)
def test_unsupported_template_parts_are_rejected_by_name(
    path: str, value: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        reader(changed(SMOLLM, path, value))


@pytest.mark.parametrize(
    ("path", "value", "text", "found"),
    [
        (
            "fields/tool_calls/close_pattern",
            r"\s*</function>\s*</tool_call>",
            "<tool_call><function=f><parameter=a>x</parameter></function></tool_call>.",
            Parsed(".", (("f", {"a": "x"}),)),
        ),
        (
            "fields/tool_calls/close_pattern",
            r"</function>\s*</tool_call>",
            "<tool_call><function=f><parameter=a>x</parameter></function>",
            Parsed(calls=(("f", {"a": "x"}),)),
        ),
        (
            "fields/tool_calls/open_pattern",
            r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "So.\n<tool_call>\n<function=my.f>\n</tool_call>",
            Parsed("So.", (("my.f", {}),)),
        ),
        (
            "fields/tool_calls/content_args",
            {
                "tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>\s*"
                r"<arg_value>(?P<value>.*?)</arg_value>"
            },
            "<tool_call><function=f><arg_key>b</arg_key>\n<arg_value> 1 </arg_value></tool_call>",
            Parsed(calls=(("f", {"b": " 1 "}),)),
        ),
        (
            "fields/tool_calls/open_pattern",
            r"<tool_call>(?P<name>[^\n]+)\n",
            "<tool_call>f\n<parameter=a> x </parameter></tool_call>",
            Parsed(calls=(("f", {"a": "x"}),)),
        ),
        (
            "fields/tool_calls/content_args",
            {"tag_pattern": '<p name="(?P<key>[^"]+)">\n(?P<value>.*?)\n</p>'},
            '<tool_call><function=f><p name="a b">\n x\ny \n</p></tool_call>',
            Parsed(calls=(("f", {"a b": "x\ny"}),)),
        ),
        (
            "fields/content",
            {"close_pattern": r"<\|im_end\|>\s*|<\|endoftext\|>|$", "join": ""},
            "Hello!<|im_end|>\n",
            Parsed("Hello!"),
        ),
        (
            "fields/thinking",
            {"open_pattern": r"<think>\s*|<reason>", "close_pattern": r"(?:</think>|</reason>|\Z)"},
            "<reason>hm</reason>Yes.",
            Parsed("Yes.", reasoning="hm"),
        ),
    ],
)
def test_template_patterns_become_reader_steps(
    path: str, value: Any, text: str, found: Parsed
) -> None:
    template = changed(QWEN, path, value)
    if path.endswith("close_pattern"):
        template = changed(template, "fields/tool_calls/close", None)
    assert reader(template, tools=[TOOL]).check(text, count=NUM_CHUNKINGS) == found


@pytest.mark.parametrize("form", [CALLS, REASONING])
def test_checkpoint_without_template_is_rejected_with_advice(form: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"response_template: is missing in .* Use the model family.s own parser"
    ):
        fit_format(form, None)


@pytest.mark.parametrize(
    "pattern",
    [
        INKLING_OPEN,
        "<a|b>",
        "a(?=b)",
        r"\w+",
        "a.*?",
        "a.*b",
        "(?P<n>.+?)",
        "a(?P<n>.+)b",
        "",
        "a{2}",
        1,
    ],
)
def test_patterns_beyond_texts_names_and_gaps_are_rejected(pattern: object) -> None:
    with pytest.raises(ConfigError, match="open_pattern"):
        read_pattern("open_pattern", pattern)
