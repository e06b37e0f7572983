"""Calls as JSON objects, or lists of them, behind a tag or between two.

Formats: the chat templates of ibm-granite/granite-3.0-8b-instruct, granite-3.1-8b-instruct,
granite-20b-functioncalling and granite-4.0-h-small, internlm/internlm2_5-7b-chat,
ai21labs/AI21-Jamba-1.5-Mini, Salesforce/xLAM-2-8b-fc-r, MiniMaxAI/MiniMax-M1-80k,
meituan-longcat/LongCat-Flash-Chat, tencent/Hunyuan-A13B-Instruct, baidu/ERNIE-4.5-21B-A3B-Thinking,
microsoft/Phi-4-mini-instruct, ai-sage/GigaChat3-10B-A1.8B, swiss-ai/Apertus-8B-Instruct-2509 and
meta-llama/Llama-3.1-8B-Instruct.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from core.api import Broken, CallKeys, CallText, ParseRequest, Reading, Scan, ToolFormat

KEYS: Final = CallKeys(inner="function")
ARGUMENTS: Final = KEYS.arguments
FIRST_KEYS: Final = ('"name"', '"arguments"', '"parameters"', '"type"', '"function"', '"id"')


def named(scan: Scan, call: Mapping[str, Any]) -> None:
    """Note a call that says its name beside its arguments, or in an object of its own."""
    key = next((key for key in call if key in (*ARGUMENTS, KEYS.inner)), "")
    inner = call.get(key)
    if key == KEYS.inner and isinstance(inner, Mapping):
        call = inner
    arguments: Any = next((call[key] for key in call if key in ARGUMENTS), {})
    scan.call(call.get("name"), {} if arguments is None else arguments)


def read(starts: tuple[str, ...], end: str, scan: Scan, request: ParseRequest) -> Reading:
    """Read `start JSON end`, or `start JSON JSON end`; without an end there is one JSON behind each
    start.
    """
    while start := (yield from scan.text(*starts)):
        with scan.attempt():
            bracket = (
                start[-1] if start[-1] in "[{" else (yield from scan.expect("{", "["))
            )  # `functools[`
            while bracket:
                yield from one_or_list(scan, bracket)
                bracket = (yield from scan.maybe("{", "[")) if end else None
            if end:
                yield from scan.close_call(end)


def one_or_list(
    scan: Scan,
    bracket: str,
    note: Callable[[Scan, Mapping[str, Any]], None] = named,
    keys: CallKeys = KEYS,
) -> Reading:
    """Note the call, or the calls of the list, whose first bracket was read; of a broken list those
    before the break.
    """
    if bracket == "{":
        note(scan, (yield from scan.object(bracket, keys)))
        return
    while (yield from scan.maybe("{")):
        note(scan, (yield from scan.object("{", keys)))
        scan.keep()
        yield from scan.maybe(",")
    yield from scan.maybe("]")


def note_all(scan: Scan, value: Any) -> None:
    """Note the call, or the list of calls, that a JSON value is. Raises `Broken` for other values."""
    for call in value if isinstance(value, list) else [value]:
        if not isinstance(call, Mapping):
            raise Broken
        named(scan, call)


def tags(
    *starts: str,
    end: str = "",
    behind: tuple[str, ...] = (),
    signs: tuple[str, ...] = (),
    writes: CallText | None = None,
) -> ToolFormat:
    """Return the format of JSON between tags that are special tokens where the tokenizer has them.

    `behind`: what else ends calls, and need not be there.
    """
    ends = tuple(filter(None, (end, *behind)))
    signs = (*starts[:1], *signs)
    return ToolFormat(
        partial(read, starts, end),
        markers=(*starts, *ends),
        call_ends=ends,
        signs=signs,
        writes=writes,
    )


def one_by_one(start: str, end: str = "", between: str = "\n", key: str = "arguments") -> CallText:
    """Return how calls are written that have tags each."""
    return CallText(f'{start}{{"name": "{{name}}", "{key}": ', f"}}{end}", between)


def in_a_list(start: str, end: str, between: str = ", ") -> CallText:
    """Return how calls are written that have tags around them all."""
    return replace(one_by_one("", between=between), start=start, end=end)


def bare(scan: Scan, begun: str) -> Reading:
    """Note the calls of JSON whose first bracket was read; other JSON and prose break at their
    first word.
    """
    if begun == "[":
        begun += yield from scan.expect("{")
    begun += yield from scan.expect(*FIRST_KEYS)
    value = yield from scan.json(begun, KEYS)
    calls = value if isinstance(value, list) else [value]
    if not all(
        isinstance(call, Mapping) and {*ARGUMENTS, "function"} & call.keys() for call in calls
    ):
        raise Broken
    note_all(scan, value)


def read_apertus(scan: Scan, request: ParseRequest) -> Reading:
    """Read a list of `{name: {...}}` between tags; a call is whole with its arguments, its own
    brackets may be missing.
    """
    while (yield from scan.text("<|tools_prefix|>")):
        with scan.attempt():
            yield from scan.maybe("[")
            while (yield from scan.maybe("{")):
                while (yield from scan.maybe('"')):
                    name, _ = yield from scan.take('"')
                    yield from scan.expect(":")
                    scan.call(name, (yield from scan.arguments(scan.begin(name))))
                    scan.keep()
                    yield from scan.maybe(",")
                yield from scan.maybe("}")
                scan.keep()
                yield from scan.maybe(",")
            yield from scan.maybe("]")
            yield from scan.close_call("<|tools_suffix|>")


def read_llama(scan: Scan, request: ParseRequest) -> Reading:
    """Read `{"name": ..., "parameters": {...}}`, several with `;` between them, each perhaps behind
    a tag.
    """
    while start := (yield from scan.text("<|python_tag|>", "{")):
        with scan.attempt():
            yield from bare(scan, start if start == "{" else (yield from scan.expect("{")))
        yield from scan.layout(";")


def read_granite(scan: Scan, request: ParseRequest) -> Reading:
    """Read a list of calls behind a tag, which some versions leave out in front of everything."""
    with scan.attempt():
        yield from bare(scan, (yield from scan.expect("[")))
    yield from read(("<|tool_call|>", "<tool_call>"), "", scan, request)


def read_xlam(scan: Scan, request: ParseRequest) -> Reading:
    """Read a list of calls: bare, as a code block, or behind a tag."""
    ends = {"```": "```", "<tool_call>": "</tool_call>"}
    while start := (yield from scan.text("```", "[TOOL_CALLS]", "<tool_call>", "[")):
        with scan.attempt():
            if start == "```":
                yield from scan.maybe("json")
            yield from bare(scan, "[" if start == "[" else (yield from scan.expect("[", "{")))
            if start in ends:
                yield from scan.close_call(ends[start])


APERTUS: Final = ToolFormat(
    read_apertus,
    markers=("<|tools_prefix|>", "<|tools_suffix|>"),
    call_ends=("<|tools_suffix|>",),
    signs=("<|tools_prefix|>",),
    writes=CallText('{"{name}": ', "}", ", ", start="<|tools_prefix|>[", end="]<|tools_suffix|>"),
)
ERNIE45: Final = tags(
    "<tool_call>",
    end="</tool_call>",
    signs=("<response>",),
    writes=one_by_one("<tool_call>\n", "\n</tool_call>"),
)
GIGACHAT3: Final = replace(
    tags(
        "<|function_call|>",
        *(f"{text}function call<|role_sep|>" for text in ("", "<|message_sep|>\n\n")),
    ),
    markers=("<|function_call|>", "<|role_sep|>", "<|message_sep|>", "</s>"),
    call_ends=("<|message_sep|>", "</s>"),
    signs=("function call", "<|role_sep|>"),
    writes=one_by_one("<|function_call|>"),
)
GRANITE: Final = ToolFormat(
    read_granite,
    markers=("<|tool_call|>", "<tool_call>", "</tool_call>"),
    call_ends=("</tool_call>",),
    signs=("<|tool_call|>", "<|start_of_role|>"),
    writes=in_a_list("<|tool_call|>[", "]"),
)
GRANITE_20B_FC: Final = tags(
    "<function_call>", behind=("</function_call>",), writes=one_by_one("<function_call> ")
)
GRANITE4: Final = tags(
    "<tool_call>",
    end="</tool_call>",
    signs=("<|start_of_role|>",),
    writes=one_by_one("<tool_call>\n", "\n</tool_call>"),
)
HUNYUAN_A13B: Final = tags(
    "<tool_calls>",
    end="</tool_calls>",
    signs=("<|extra_0|>",),
    writes=in_a_list("<tool_calls>[", "]</tool_calls>"),
)
INTERNLM: Final = replace(
    tags("<|action_start|><|plugin|>", end="<|action_end|>"),
    markers=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    signs=("<|plugin|>",),
    writes=one_by_one("<|action_start|><|plugin|>\n", "<|action_end|>", key="parameters"),
)
JAMBA: Final = tags(
    "<tool_calls>",
    end="</tool_calls>",
    writes=in_a_list("<tool_calls>[\n", "\n]</tool_calls>", ",\n"),
)
LLAMA_JSON: Final = ToolFormat(
    read_llama,
    markers=("<|python_tag|>",),
    signs=("<|python_tag|>",),
    writes=one_by_one("", between="; ", key="parameters"),
)
LONGCAT: Final = tags(
    "<longcat_tool_call>",
    end="</longcat_tool_call>",
    writes=one_by_one("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
)
MINIMAX: Final = tags(
    "<tool_calls>",
    end="</tool_calls>",
    signs=("<beginning_of_sentence>",),
    writes=in_a_list("<tool_calls>\n", "\n</tool_calls>", "\n"),
)
PHI4_MINI: Final = replace(
    tags("functools["), signs=("<|tool|>", "<|/tool|>"), writes=in_a_list("functools[", "]")
)
XLAM: Final = ToolFormat(
    read_xlam,
    markers=("[TOOL_CALLS]", "<tool_call>", "</tool_call>"),
    call_ends=("</tool_call>",),
    writes=in_a_list("[", "]"),
)
