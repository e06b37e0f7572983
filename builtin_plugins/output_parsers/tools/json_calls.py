"""Calls as JSON objects, or lists of them, after a tag or between two.

Formats: the chat templates of ibm-granite/granite-3.0-8b-instruct, granite-3.1-8b-instruct,
granite-20b-functioncalling and granite-4.0-h-small, internlm/internlm2_5-7b-chat,
ai21labs/AI21-Jamba-1.5-Mini, Salesforce/xLAM-2-8b-fc-r, MiniMaxAI/MiniMax-M1-80k,
meituan-longcat/LongCat-Flash-Chat, tencent/Hunyuan-A13B-Instruct,
baidu/ERNIE-4.5-21B-A3B-Thinking, microsoft/Phi-4-mini-instruct, ai-sage/GigaChat3-10B-A1.8B,
swiss-ai/Apertus-8B-Instruct-2509, meta-llama/Llama-3.1-8B-Instruct, the `tool_use` template of
NousResearch/Hermes-2-Pro-Llama-3-8B, and Qwen2.5's and Qwen3's.

Mistral's: mistralai/Mistral-7B-Instruct-v0.3 (list), Mistral-Small-3.1-24B-Instruct-2503 (with
`[CALL_ID]`), Magistral-Small-2509 (with `[ARGS]`), and the encoders of mistral-common.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from builtin_plugins.output_parsers.api import Broken, CallKeys, OutputReader, Reading
from builtin_plugins.output_parsers.contract import CallText, ParseRequest, ToolFormat

KEYS: Final = CallKeys(inner="function")
ARGUMENTS: Final = KEYS.arguments
_ALPHANUMERIC: Final = string.ascii_letters + string.digits
FIRST_KEYS: Final = ('"name"', '"arguments"', '"parameters"', '"type"', '"function"', '"id"')


def add_named_call(reader: OutputReader, call: Mapping[str, Any]) -> None:
    """Add a call with its name next to its arguments, or within an inner object."""
    key = next((key for key in call if key in (*ARGUMENTS, KEYS.inner)), "")
    inner = call.get(key)
    if key == KEYS.inner and isinstance(inner, Mapping):
        call = inner
    arguments: Any = next((call[key] for key in call if key in ARGUMENTS), {})
    reader.add_call(call.get("name"), {} if arguments is None else arguments)


def read_json_calls(
    starts: tuple[str, ...], end: str, reader: OutputReader, request: ParseRequest
) -> Reading:
    """Read `start JSON end` or `start JSON JSON end`; without an end one JSON value per start."""
    while start := (yield from reader.content_until_call(*starts)):
        with reader.attempt():
            bracket = start[-1]  # `functools[`
            if bracket not in "[{":
                bracket = yield from reader.expect("{", "[")
            while bracket:
                yield from read_one_or_list(reader, bracket)
                bracket = (yield from reader.skip_optional("{", "[")) if end else None
            if end:
                yield from reader.close_call(end)


def read_one_or_list(
    reader: OutputReader,
    bracket: str,
    add: Callable[[OutputReader, Mapping[str, Any]], None] = add_named_call,
    keys: CallKeys = KEYS,
) -> Reading:
    """Add the call, or the calls of the list, after `bracket`; of a broken list its first ones."""
    if bracket == "{":
        add(reader, (yield from reader.read_object(bracket, keys)))
        return
    while (yield from reader.skip_optional("{")):
        add(reader, (yield from reader.read_object("{", keys)))
        reader.keep_calls()
        yield from reader.skip_optional(",")
    yield from reader.skip_optional("]")


def add_all(reader: OutputReader, value: Any) -> None:
    """Add the call, or the calls of the list, in a JSON value. Raises `Broken` otherwise."""
    for call in value if isinstance(value, list) else [value]:
        if not isinstance(call, Mapping):
            raise Broken
        add_named_call(reader, call)


def json_between(
    *starts: str,
    end: str = "",
    optional_ends: tuple[str, ...] = (),
    template_hints: tuple[str, ...] = (),
    writes: CallText | None = None,
) -> ToolFormat:
    """Return the format of JSON between tags, which may be special tokens.

    `optional_ends`: further texts that may end calls.
    """
    ends = tuple(filter(None, (end, *optional_ends)))
    template_hints = (*starts[:1], *template_hints)
    return ToolFormat(
        partial(read_json_calls, starts, end),
        markers=(*starts, *ends),
        call_ends=ends,
        template_hints=template_hints,
        writes=writes,
    )


def each_between(
    start: str, end: str = "", between: str = "\n", key: str = "arguments"
) -> CallText:
    """Return the texts around calls with tags of their own."""
    return CallText(f'{start}{{"name": "{{name}}", "{key}": ', f"}}{end}", between)


def list_between(start: str, end: str, between: str = ", ") -> CallText:
    """Return the texts around calls with one pair of tags around all."""
    return replace(each_between("", between=between), start=start, end=end)


def read_bare(reader: OutputReader, begun: str) -> Reading:
    """Add the calls of JSON after its first bracket; other text breaks at its first word."""
    if begun == "[":
        begun += yield from reader.expect("{")
    begun += yield from reader.expect(*FIRST_KEYS)
    value = yield from reader.read_json(begun, KEYS)
    for call in value if isinstance(value, list) else [value]:
        if not (isinstance(call, Mapping) and {*ARGUMENTS, "function"} & call.keys()):
            raise Broken
    add_all(reader, value)


def read_mistral(reader: OutputReader, request: ParseRequest) -> Reading:
    """Read `[TOOL_CALLS][{...}]`, or repeated `[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`."""
    while (yield from reader.content_until_call("[TOOL_CALLS]")):
        with reader.attempt():
            bracket = yield from reader.skip_optional("[", "{")
            if bracket:
                yield from read_one_or_list(reader, bracket)
                continue
            name = yield from reader.read_name()
            call_id = None
            if (yield from reader.skip_optional("[CALL_ID]")):
                call_id = yield from reader.read_name()
            yield from reader.skip_optional("[ARGS]")
            call = reader.begin_call(name, call_id)
            reader.add_call(name, (yield from reader.read_arguments(call)), call_id)


def mistral_call_id(name: str, index: int) -> str:
    """Return an id in the form that Mistral's templates require: nine letters or digits."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


def read_apertus(reader: OutputReader, request: ParseRequest) -> Reading:
    """Read a list of `{name: {...}}` between tags; the brackets around a call may be missing."""
    while (yield from reader.content_until_call("<|tools_prefix|>")):
        with reader.attempt():
            yield from reader.skip_optional("[")
            while (yield from reader.skip_optional("{")):
                while (yield from reader.skip_optional('"')):
                    name, _ = yield from reader.read_until('"')
                    yield from reader.expect(":")
                    arguments = yield from reader.read_arguments(reader.begin_call(name))
                    reader.add_call(name, arguments)
                    reader.keep_calls()
                    yield from reader.skip_optional(",")
                yield from reader.skip_optional("}")
                reader.keep_calls()
                yield from reader.skip_optional(",")
            yield from reader.skip_optional("]")
            yield from reader.close_call("<|tools_suffix|>")


def read_llama(reader: OutputReader, request: ParseRequest) -> Reading:
    """Read `{"name": ..., "parameters": {...}}`, separated by `;`, with optional tags."""
    while start := (yield from reader.content_until_call("<|python_tag|>", "{")):
        with reader.attempt():
            bracket = start if start == "{" else (yield from reader.expect("{"))
            yield from read_bare(reader, bracket)
        yield from reader.skip_layout(";")


def read_granite(reader: OutputReader, request: ParseRequest) -> Reading:
    """Read a list of calls after a tag, which some versions omit at the start of the output."""
    with reader.attempt():
        yield from read_bare(reader, (yield from reader.expect("[")))
    yield from read_json_calls(("<|tool_call|>", "<tool_call>"), "", reader, request)


def read_xlam(reader: OutputReader, request: ParseRequest) -> Reading:
    """Read a list of calls: bare, as a code block, or after a tag."""
    ends = {"```": "```", "<tool_call>": "</tool_call>"}
    starts = ("```", "[TOOL_CALLS]", "<tool_call>", "[")
    while start := (yield from reader.content_until_call(*starts)):
        with reader.attempt():
            if start == "```":
                yield from reader.skip_optional("json")
            bracket = "[" if start == "[" else (yield from reader.expect("[", "{"))
            yield from read_bare(reader, bracket)
            if start in ends:
                yield from reader.close_call(ends[start])


APERTUS: Final = ToolFormat(
    read_apertus,
    markers=("<|tools_prefix|>", "<|tools_suffix|>"),
    call_ends=("<|tools_suffix|>",),
    template_hints=("<|tools_prefix|>",),
    writes=CallText('{"{name}": ', "}", ", ", start="<|tools_prefix|>[", end="]<|tools_suffix|>"),
)
ERNIE45: Final = json_between(
    "<tool_call>",
    end="</tool_call>",
    template_hints=("<response>",),
    writes=each_between("<tool_call>\n", "\n</tool_call>"),
)
GIGACHAT3: Final = replace(
    json_between(
        "<|function_call|>",
        *(f"{text}function call<|role_sep|>" for text in ("", "<|message_sep|>\n\n")),
    ),
    markers=("<|function_call|>", "<|role_sep|>", "<|message_sep|>", "</s>"),
    call_ends=("<|message_sep|>", "</s>"),
    template_hints=("function call", "<|role_sep|>"),
    writes=each_between("<|function_call|>"),
)
GRANITE: Final = ToolFormat(
    read_granite,
    markers=("<|tool_call|>", "<tool_call>", "</tool_call>"),
    call_ends=("</tool_call>",),
    template_hints=("<|tool_call|>", "<|start_of_role|>"),
    writes=list_between("<|tool_call|>[", "]"),
)
GRANITE_20B_FC: Final = json_between(
    "<function_call>", optional_ends=("</function_call>",), writes=each_between("<function_call> ")
)
GRANITE4: Final = json_between(
    "<tool_call>",
    end="</tool_call>",
    template_hints=("<|start_of_role|>",),
    writes=each_between("<tool_call>\n", "\n</tool_call>"),
)
HERMES: Final = json_between(
    "<tool_call>",
    end="</tool_call>",
    writes=each_between("<tool_call>\n", "\n</tool_call>"),
)
HUNYUAN_A13B: Final = json_between(
    "<tool_calls>",
    end="</tool_calls>",
    template_hints=("<|extra_0|>",),
    writes=list_between("<tool_calls>[", "]</tool_calls>"),
)
INTERNLM: Final = replace(
    json_between("<|action_start|><|plugin|>", end="<|action_end|>"),
    markers=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    template_hints=("<|plugin|>",),
    writes=each_between("<|action_start|><|plugin|>\n", "<|action_end|>", key="parameters"),
)
JAMBA: Final = json_between(
    "<tool_calls>",
    end="</tool_calls>",
    writes=list_between("<tool_calls>[\n", "\n]</tool_calls>", ",\n"),
)
LLAMA_JSON: Final = ToolFormat(
    read_llama,
    markers=("<|python_tag|>",),
    template_hints=("<|python_tag|>",),
    writes=each_between("", between="; ", key="parameters"),
)
LONGCAT: Final = json_between(
    "<longcat_tool_call>",
    end="</longcat_tool_call>",
    writes=each_between("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
)
MINIMAX: Final = json_between(
    "<tool_calls>",
    end="</tool_calls>",
    template_hints=("<beginning_of_sentence>",),
    writes=list_between("<tool_calls>\n", "\n</tool_calls>", "\n"),
)
MISTRAL: Final = ToolFormat(
    read_mistral,
    markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    call_ends=("[TOOL_CALLS]",),
    call_id=mistral_call_id,
    begins=("[TOOL_CALLS]",),
    template_hints=("[TOOL_CALLS]",),
)
PHI4_MINI: Final = replace(
    json_between("functools["),
    template_hints=("<|tool|>", "<|/tool|>"),
    writes=list_between("functools[", "]"),
)
XLAM: Final = ToolFormat(
    read_xlam,
    markers=("[TOOL_CALLS]", "<tool_call>", "</tool_call>"),
    call_ends=("</tool_call>",),
    writes=list_between("[", "]"),
)
