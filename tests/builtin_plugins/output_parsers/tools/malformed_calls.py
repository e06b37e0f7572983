"""Malformed model outputs and their expected parse: text, tools, calls, content.

Sources are public: vLLM's tests of its parsers (`tests/builtin_plugins/output_parsers/tools/test_*`
there). "marker lost" and the like are variations of a family's published format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Calls = Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Case:
    """One malformed output."""

    parser: str
    why: str
    text: str
    calls: Calls = ()
    content: str = ""
    source: str = "variation"


PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "share": {"type": "float"},
    "sure": {"type": "boolean"},
    "where": {
        "anyOf": [
            {"type": "object", "properties": {"level": {"type": "integer"}}},
            {"type": "null"},
        ]
    },
    "lines": {"type": "array", "items": {"type": "number"}},
    "note": {"type": ["string", "null"]},
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}},
    },
    {
        "type": "function",
        "function": {"name": "g", "parameters": {"type": "object", "properties": {}}},
    },
    {
        "type": "function",
        "function": {
            "name": "send",
            "parameters": {"properties": {"input": {"type": "string"}, "to": {}}},
        },
    },
]
OSLO: tuple[str, dict[str, Any]] = ("f", {"city": "Oslo"})
ROME: tuple[str, dict[str, Any]] = ("f", {"city": "Rome"})
G: tuple[str, dict[str, Any]] = ("g", {})


def coder(city: str, end: str = "\n</function>\n</tool_call>") -> str:
    return f"<tool_call>\n<function=f>\n<parameter=city>\n{city}\n</parameter>{end}"


def as_json(city: str) -> str:
    return f'{{"name": "f", "arguments": {{"city": "{city}"}}}}'


HARMONY_OSLO, HARMONY_ROME = (
    f'<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"city": "{city}"}}'
    for city in ("Oslo", "Rome")
)


QWEN = "vLLM test_qwen3coder_tool_parser"
MISTRAL = "vLLM test_mistral_tool_parser"

CASES = [
    # Qwen 3 Coder, MiMo
    Case("qwen3_coder", "section's end lost", coder("Oslo", "\n</function>"), [OSLO]),
    Case("qwen3_coder", "both ends lost", coder("Oslo", ""), [OSLO]),
    Case("qwen3_coder", "call's end lost", coder("Oslo", "\n</tool_call>"), [OSLO]),
    Case(
        "qwen3_coder",
        "ends lost before the next",
        coder("Oslo", "\n") + coder("Rome"),
        [OSLO, ROME],
    ),
    Case(
        "qwen3_coder",
        "no section",
        coder("Oslo", "\n</function>").removeprefix("<tool_call>\n"),
        [OSLO],
        "",
        QWEN,
    ),
    Case("qwen3_coder", "section opened twice", "<tool_call>\n" + coder("Oslo"), [OSLO]),
    Case("qwen3_coder", "nothing in it", "Hm.<tool_call>\n</tool_call>Yes.", content="Hm.Yes."),
    Case(
        "qwen3_coder",
        "parameter's end lost",
        "<tool_call>\n<function=f>\n<parameter=city>\nOslo\n<parameter=days>\n3\n</parameter>"
        "\n</function>\n</tool_call>",
        [("f", {"city": "Oslo", "days": 3})],
        "",
        QWEN,
    ),
    Case(
        "qwen3_coder",
        "last parameter's end lost",
        "<tool_call>\n<function=f>\n<parameter=city>\nOslo\n</function>\n</tool_call>",
        [OSLO],
    ),
    Case(
        "qwen3_coder",
        "types of the schema",
        "<tool_call><function=f><parameter=days>\n42\n</parameter><parameter=share>3.14</parameter>"
        "<parameter=sure>True</parameter><parameter=city>7</parameter><parameter=where>null</pa"
        "rameter>"
        '<parameter=lines>["1", '
        "2.5]</parameter><parameter=note>None</parameter></function></tool_call>",
        [
            (
                "f",
                {
                    "days": 42,
                    "share": 3.14,
                    "sure": True,
                    "city": "7",
                    "where": None,
                    "lines": [1, 2.5],
                    "note": None,
                },
            )
        ],
        "",
        QWEN,
    ),
    Case(
        "qwen3_coder",
        "no schema: text",
        "<tool_call><function=h><parameter=text>42</parameter></function></tool_call>",
        [("h", {"text": "42"})],
    ),
    Case(
        "qwen3_coder",
        "value cut off",
        "<tool_call>\n<function=f>\n<parameter=city>\nOs",
        [],
        "<tool_call>\n<function=f>\n<parameter=city>\nOs",
    ),
    Case(
        "qwen3_coder",
        "broken name, complete next call",
        f"<tool_call><function=f<parameter=city>x</parameter></function></tool_call>"
        f"\n{coder('Rome')}",
        [ROME],
        "<tool_call><function=f<parameter=city>x</parameter></function></tool_call>",
    ),
    Case("qwen3_xml", "many < in a value", coder("<" * 500), [("f", {"city": "<" * 500})]),
    # Mistral
    Case("mistral", "marker twice", f"[TOOL_CALLS][TOOL_CALLS] [{as_json('Oslo')}]", [OSLO]),
    Case(
        "mistral",
        "text after",
        f"[TOOL_CALLS] [{as_json('Oslo')}]\nextra",
        [OSLO],
        "extra",
        MISTRAL,
    ),
    Case(
        "mistral",
        "arguments before the name",
        '[TOOL_CALLS] [{"arguments":{"city": "Oslo"}, "name": "f"}]',
        [OSLO],
        "",
        MISTRAL,
    ),
    Case(
        "mistral",
        "one after the other",
        '[TOOL_CALLS]f{"city": "Oslo"}[TOOL_CALLS]f[ARGS]{"city": "Rome"}',
        [OSLO, ROME],
        "",
        MISTRAL,
    ),
    Case(
        "mistral",
        "open string does not affect the next call",
        '[TOOL_CALLS]f{"city": "Os}[TOOL_CALLS]f{"city": "Rome"}',
        [ROME],
        '[TOOL_CALLS]f{"city": "Os}',
    ),
    Case(
        "mistral",
        "no arguments",
        "[TOOL_CALLS]toolname_no_args",
        [],
        "[TOOL_CALLS]toolname_no_args",
        MISTRAL,
    ),
    # families that write messages on channels
    Case(
        "openai",
        "end lost before the next",
        HARMONY_OSLO + "<|start|>assistant" + HARMONY_ROME,
        [OSLO, ROME],
    ),
    Case("openai", "end cut off", HARMONY_OSLO + "<|ca", [OSLO]),
    Case("openai", "JSON cut off", HARMONY_OSLO[:-1], [], HARMONY_OSLO[:-1]),
    Case("olmo3", "end lost", "<function_calls>f(city='Oslo')\ng()", [OSLO, G]),
    Case("lfm2", "end lost", "<|tool_call_start|>[f(city='Oslo')]", [OSLO]),
    Case(
        "plamo3",
        "inner end lost",
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_too"
        "l_name:plamo|>f"
        "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>js"
        "on<|plamo:msg|>"
        '{"city": "Oslo"}<|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>',
        [OSLO],
    ),
]
