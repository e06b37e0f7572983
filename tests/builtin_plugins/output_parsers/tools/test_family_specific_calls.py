"""Family-specific call syntax: further published spellings, call ids, and text that is no call."""

from __future__ import annotations

import gc
import re
import statistics
import time
from typing import Any

import pytest

from builtin_plugins.output_parsers.api import ParseRequest
from builtin_plugins.output_parsers.testing import Parsed, Reader
from core.plugin import load_plan, make_plan

REGISTRY = load_plan(make_plan(["none", "tool_parsers"]))
FORMATS = {
    registered.entry.name: REGISTRY.load(registered)
    for registered in REGISTRY.entries("tool_parsers")
}
TYPED = ParseRequest(
    tools=[
        {
            "function": {
                "name": "f",
                "parameters": {"properties": {"a": {"type": "string"}, "b": {"type": "object"}}},
            }
        }
    ]
)
F = ("f", {"a": 1})
TEXT = ("f", {"a": "1"})
"""The same call if the schema states a string."""
G = ("g", {})
F_JSON = '{"name": "f", "arguments": {"a": 1}}'
NS = "]<]minimax[>["

CASES: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    # a tag or a bracket in a string is a string
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call> \\" {"}}</tool_call>',
        "",
        [("f", {"a": '</tool_call> " {'})],
    ),
    ("longcat", f"<longcat_tool_call>{F_JSON}</longcat_tool_call> ok", "ok", [F]),
    # granite: the list may be bare, and 3.1 writes another tag
    ("granite", f"[{F_JSON}]", "", [F]),
    ("granite", f"<tool_call>[{F_JSON}]", "", [F]),
    ("granite", "[1, 2] are numbers", "[1, 2] are numbers", []),
    ("granite-20b-fc", f"<function_call> {F_JSON}\n<function_call> {F_JSON}", "", [F, F]),
    # llama: after a tag, several, wrapped; other objects are text
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [TEXT]),
    ("llama3_json", f"{F_JSON}; {F_JSON}", "", [F, F]),
    (
        "llama3_json",
        '{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}',
        "",
        [TEXT],
    ),
    (
        "llama3_json",
        'The file says {"name": "x", "version": 1}.',
        'The file says {"name": "x", "version": 1}.',
        [],
    ),
    ("llama4_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    # mistral: both generations of tokenizers
    ("mistral", f'[TOOL_CALLS] [{F_JSON}, {{"name": "g", "arguments": {{}}}}]', "", [F, G]),
    ("mistral", 'Sure.[TOOL_CALLS]f{"a": 1}', "Sure.", [F]),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}', "", [F]),
    ("mistral", "[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]", []),
    # internlm also writes code, which is not a tool call
    ("internlm", "<|action_start|><|interpreter|>1+1<|action_end|>", None, []),
    ("jamba", f"<tool_calls>[\n{F_JSON}\n]</tool_calls>", "", [F]),
    ("jamba", "<tool_calls>[]</tool_calls>", "<tool_calls>[]</tool_calls>", []),
    ("minimax", f"<tool_calls>\n{F_JSON}\n{F_JSON}\n</tool_calls>", "", [F, F]),
    ("gigachat3", f"Hm.<|message_sep|>\n\nfunction call<|role_sep|>\n{F_JSON}", "Hm.", [F]),
    ("phi4_mini_json", 'functools[{"name": "f", "parameters": {"a": 1}}]', "", [TEXT]),
    ("phi4_mini_json", "from functools import cache", "from functools import cache", []),
    ("apertus", '<|tools_prefix|>[{"f": {"a": 1}}, {"g": {}}]<|tools_suffix|>', "", [F, G]),
    # xlam: four styles
    ("xlam", f"[{F_JSON}]", "", [F]),
    ("xlam", f"Here:\n```json\n[{F_JSON}]\n```\nDone.", "Here:\nDone.", [F]),
    ("xlam", f"[TOOL_CALLS][{F_JSON}]", "", [F]),
    ("xlam", f"<tool_call>[{F_JSON}]</tool_call>", "", [F]),
    ("xlam", "```python\nx = [1]\n```", "```python\nx = [1]\n```", []),
    # kimi: the id is the model's own
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:7<|tool_call_argument_begin"
        '|>{"a": 1}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "",
        [F],
    ),
    (
        "kimi_k2",
        '<|tool_call_begin|>f<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>',
        "",
        [F],
    ),
    # text formats: strings of the schema stay strings, the section may be missing
    (
        "qwen3_coder",
        "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "",
        [("f", {"a": "1"})],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=f><parameter=b>\n{'x': 1}\n</parameter></function></tool_call>",
        "",
        [("f", {"b": "{'x': 1}"})],
    ),
    ("glm45", "<tool_call>f</tool_call>", "", [("f", {})]),
    ("glm45", f"<tool_call>{F_JSON}</tool_call>", None, []),
    (
        "deepseek_v32",
        '<｜DSML｜function_calls><｜DSML｜invoke name="f">{"a": '
        "1}</｜DSML｜invoke></｜DSML｜function_calls>",
        "",
        [F],
    ),
    (
        "k2_horizon",
        "<ifm|tool_calls><ifm|tool_call>g<ifm|arg_key>a</ifm|arg_key><ifm|arg_type>string</ifm|"
        "arg_type>"
        "<ifm|arg_value>1</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
        "",
        [("g", {"a": "1"})],
    ),
    (
        "minicpm5",
        '<function name="g"><param name="a"><![CDATA[x </param> y]]></param></function>',
        "",
        [("g", {"a": "x </param> y"})],
    ),
    (
        "minimax_m3",
        f"{NS}<tool_call>{NS}<invoke "
        f'name="g">{NS}<a>{NS}<item>1{NS}</item>{NS}<item>x{NS}</item>{NS}</a>{NS}</invoke>',
        "",
        [("g", {"a": [1, "x"]})],
    ),
    # python: nothing is evaluated, and prose is prose
    ("pythonic", "[f(a=1)]\n[g()]", "", [F, G]),
    ("pythonic", "See [f(a=1)] there.", "See [f(a=1)] there.", []),
    ("pythonic", "[f(a=-1.5e3, b=True, c=none)]", "[f(a=-1.5e3, b=True, c=none)]", []),
    ("pythonic", "[f(a=(1, 2,), b={'k': None}, c=-1.5e3, from='\\u00e9\\x41\\101')]", "", None),
    ("pythonic", "[f(1)]", "[f(1)]", []),
    ("pythonic", "[f(a=g())]", "[f(a=g())]", []),
    ("pythonic", "[f(a=__import__('os'))]", "[f(a=__import__('os'))]", []),
    ("pythonic", "[f(a=9**9)]", "[f(a=9**9)]", []),
    ("pythonic", f"[f(a={'9' * 5000})]", f"[f(a={'9' * 5000})]", []),
    ("pythonic", "[f(a='\\ud800')]", "[f(a='\\ud800')]", []),
    ("llama4_pythonic", "Hm. <|python_start|>[f(a=1), g()]<|python_end|>", "Hm.", [F, G]),
    ("olmo3", "<function_calls>f(a=1)\ng()</function_calls>", "", [F, G]),
    (
        "olmo3",
        '<function_calls>f(a="</function_calls>")</function_calls>',
        "",
        [("f", {"a": "</function_calls>"})],
    ),
    ("lfm2", f"<|tool_call_start|>[{F_JSON}]<|tool_call_end|>", "", [F]),
    ("functiongemma", "<start_function_call>call:f{a:1}<end_function_call>", "", [F]),
    (
        "gemma4",
        '<|tool_call>call:g{a:[{b:<|"|>x}<|"|>},null]}<tool_call|>',
        "",
        [("g", {"a": [{"b": "x}"}, None]})],
    ),
    ("gemma4", "<|tool_call>call:g{a:" + "[" * 500 + "}<tool_call|>", None, []),
    # harmony: answer and preamble are content, other recipients are tools
    ("openai", "<|channel|>final<|message|>Yes.<|return|>", "Yes.", []),
    (
        "openai",
        '<|channel|>commentary to=browser.search <|constrain|>json<|message|>{"a": 1}<|call|>',
        "",
        [("browser.search", {"a": 1})],
    ),
    ("openai", '<|channel|>commentary to=functions.f<|message|>{"a": 1', None, []),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_family_specific_call_syntax(
    name: str, text: str, content: str | None, calls: list[tuple[str, Any]] | None
) -> None:
    found = Reader(
        tools=FORMATS[name], request=TYPED if "parameter" in text else ParseRequest()
    ).check(text, count=30)
    if calls is None:
        calls = [("f", {"a": [1, 2], "b": {"k": None}, "c": -1500.0, "from": "\u00e9AA"})]
    assert found == Parsed(content=text if content is None else content, calls=tuple(calls))


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("mistral", '[TOOL_CALLS]f{"a": 1}', [r"[a-zA-Z0-9]{9}"]),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}', ["123456789"]),
        (
            "kimi_k2",
            "<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>",
            [r"functions\.f:7", r"functions\.f:1"],
        ),
        ("hermes", f"<tool_call>{F_JSON}</tool_call>", [r"call_[0-9a-f]{24}"]),
    ],
)
def test_call_ids_have_the_form_of_the_family(name: str, text: str, ids: list[str]) -> None:
    found = Reader(tools=FORMATS[name]).read([(text, ())], with_ids=True).ids
    assert len(found) == len(ids)
    assert all(re.fullmatch(form, one) for form, one in zip(ids, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_parsing_time_is_linear_for_plain_text(name: str) -> None:
    reader = Reader(tools=FORMATS[name])
    for unit in ("A word of text. ", " ", *FORMATS[name].markers[:2], '{"name": "f", ["(<'):
        texts = [unit * (size // len(unit)) for size in (100_000, 1_000_000)]
        ratios = []
        while not ratios or (min(ratios) > 12 and len(ratios) < 4):  # other processes cost time too
            short, long = (median_s(reader, text) for text in texts)
            ratios.append(long / short)
        assert min(ratios) <= 12, f"{unit!r}: {ratios}"


def median_s(reader: Reader, text: str) -> float:
    """Return the median CPU time of parsing a text in chunks, with garbage collection off."""
    taken = []
    for _ in range(3):
        gc.collect()
        gc.disable()
        started = time.thread_time()
        reader.read((text[at : at + 100], ()) for at in range(0, len(text), 100))
        taken.append(time.thread_time() - started)
        gc.enable()
    return statistics.median(taken)
