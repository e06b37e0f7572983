"""Formats that checkpoints describe: their templates' texts in every chunking, and what of a
template is refused.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from response_templates import COHERE, ERNIE, GEMMA, GPT_OSS, INKLING_OPEN, QWEN, SMOLLM

from builtin_plugins.output_parsers.reasoning.hf import HF as THOUGHTS
from builtin_plugins.output_parsers.runtime import read_pattern
from builtin_plugins.output_parsers.tools.hf import HF as CALLS
from core.api import ConfigError, ParseRequest, fitted
from core.testing.parsing import Parsed, Reader

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
    tools = fitted(CALLS, template)
    reasoning = fitted(THOUGHTS, template)
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
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello!",
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
            "<think>hm</think>\n<tool_call>\n<function=f>\n<parameter=a>\n1.50\n</parameter>\n<parameter=b>\n[1, 2]\n"
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
def test_what_a_template_describes_is_read(
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
def test_the_prompt_may_have_begun_or_ended_the_thoughts(
    template: dict[str, Any], prompt_end: str, text: str, found: Parsed
) -> None:
    assert reader(template, prompt_end=prompt_end).check(text, count=NUM_CHUNKINGS) == found


def test_what_no_field_claims_is_part_of_the_answer() -> None:
    assert reader(COHERE).check("Hello!", count=NUM_CHUNKINGS) == Parsed("Hello!")


def test_calls_alone_are_read_with_what_is_around_the_answer_left_out() -> None:
    alone = Reader(tools=fitted(CALLS, ERNIE))
    found = alone.check(
        f"<response>\nHello!\n</response>\n<tool_call>{WEATHER}</tool_call>", count=NUM_CHUNKINGS
    )
    assert found == Parsed("Hello!", (OSLO,))


def test_an_answer_that_must_be_of_a_form_begins_behind_the_thoughts() -> None:
    assert (fitted(THOUGHTS, SMOLLM).starts, fitted(THOUGHTS, SMOLLM).ends) == (
        ("<think>",),
        ("</think>",),
    )
    assert (fitted(THOUGHTS, ERNIE).starts, fitted(THOUGHTS, ERNIE).ends) == ((), ("</think>",))


def changed(template: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a template with another value; None: without it."""
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
    ("path", "value", "said"),
    [
        ("version", 2, r"response_template\.version is 2"),
        ("surprise", 1, r"response_template\.surprise is not read"),
        ("defaults", {"mood": "good"}, r"defaults\.mood"),
        ("fields", [], r"response_template\.fields must be an object"),
        ("fields/mood", {"open": "<mood>"}, r"fields\.mood"),
        ("fields/thinking/surprise", 1, r"thinking\.surprise"),
        ("fields/thinking/close", None, r"thinking\.close is missing"),
        ("fields/thinking/open", None, r"thinking\.open is missing"),
        ("fields/thinking/open", "", r"thinking\.open must be a text"),
        ("fields/thinking/close_pattern", "</t>", r"thinking\.close_pattern stands beside `close`"),
        ("fields/thinking/join", "\n", r"thinking\.join is"),
        ("fields/content/open_pattern", "<a>.*?>", r"content must have one text in front of it"),
        ("fields/thinking/content", "json", r"thinking\.content is 'json'"),
        (
            "fields/tool_calls/open_pattern",
            "^|<tool_call>",
            r"tool_calls\.open_pattern stands beside `open`",
        ),
        (
            "fields/tool_calls",
            {"open_pattern": "^|<c>", "content": "json"},
            r"open_pattern matches where the message",
        ),
        ("fields/tool_calls/content", "kv-lines", r"tool_calls\.content is 'kv-lines'"),
        (
            "fields/tool_calls/content_args",
            {"unquoted_keys": True},
            r"tool_calls\.content_args\.string_delims",
        ),
        ("fields/tool_calls/content_args", {"lax": True}, r"tool_calls\.content_args\.lax"),
        (
            "fields/tool_calls/transform",
            {"function": "my {content}"},
            r"tool_calls\.transform has 'my \{content\}'",
        ),
        (
            "fields/tool_calls/transform",
            {"function": "{call}"},
            r"tool_calls\.transform has '\{call\}', which nothing",
        ),
        (
            "fields/tool_calls",
            {"open": "<c>", "content": "json", "transform_each": True},
            r"transform_each needs a",
        ),
        (
            "fields/tool_calls",
            None,
            r"tool_calls is missing: name the model family's own --tool-call-parser",
        ),
        ("fields/thinking", None, r"thinking is missing: leave out --reasoning-parser"),
    ],
)
def test_what_is_not_read_is_refused_by_name(path: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
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
                "tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
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
def test_patterns_are_read_as_texts(path: str, value: Any, text: str, found: Parsed) -> None:
    template = changed(QWEN, path, value)
    if path.endswith("close_pattern"):
        template = changed(template, "fields/tool_calls/close", None)
    assert reader(template, tools=[TOOL]).check(text, count=NUM_CHUNKINGS) == found


@pytest.mark.parametrize("form", [CALLS, THOUGHTS])
def test_a_checkpoint_without_a_template_is_refused_with_what_to_do(form: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"no `response_template` in .* Name the model family.s own parser"
    ):
        fitted(form, None)


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
def test_patterns_that_are_no_texts_names_and_gaps_are_refused(pattern: object) -> None:
    with pytest.raises(ConfigError, match="open_pattern"):
        read_pattern("open_pattern", pattern)
