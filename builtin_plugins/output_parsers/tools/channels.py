"""Families that write messages on channels, thoughts, answers and calls alike.

Formats: OpenAI's harmony response format (openai/gpt-oss-20b), the chat templates of
thinkingmachines/Inkling and meta's Muse Glimmer, CohereLabs/c4ai-command-a-03-2025 and Command A+,
and the XTML encoding published with moonshotai/Kimi-K3. Thoughts are reasoning here, too, so that
each of these parsers can stand alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from builtin_plugins.output_parsers.tools.json_calls import ARGUMENTS, one_or_list
from builtin_plugins.output_parsers.tools.tagged import read_arguments, read_name
from builtin_plugins.output_parsers.tools.tagged_families import invokes
from core.api import (
    Broken,
    CallKeys,
    Channels,
    Kind,
    ParseRequest,
    Reading,
    Scan,
    ToolFormat,
    read_channels,
    typed_value,
)

_TO: Final = re.compile(r"to=([^\s<]+)")
_NO_TOOLS: Final = ("assistant", "browser", "container", "python")
"""Recipients of harmony that are the model itself or its own, which no client offers."""
_ATTRIBUTE: Final = re.compile(r'(\w+)="([^"]*)"')
_ATTRIBUTES: Final = re.compile(r'(?:\s*\w++="[^"]*+")*+\s*')
ATEM: Final = invokes("<atem:function_calls>", "</atem:function_calls>", "atem:", literal=True)
MUSE_KINDS: Final[Mapping[str, Kind]] = {
    "self": "thoughts",
    "user": "answer",
    "commentary": "answer",
    "developer": "hidden",
}
"""By recipient; all others are tools."""


def harmony_kind(header: str) -> Kind:
    """Tell a message by its recipient, or else its channel."""
    found = _TO.search(header)
    if found:
        return "hidden" if found[1] in _NO_TOOLS else "call"
    return "thoughts" if re.search(r"<\|channel\|>\s*analysis", header) else "answer"


def muse_kind(header: str) -> Kind:
    """Tell a message by its recipient: the model itself, the user, or a tool."""
    found = _TO.search(header)
    return MUSE_KINDS.get(found[1] if found else "self", "call")


def inkling_kind(header: str) -> Kind:
    """Tell a message by the tag in front of its text."""
    return (
        "thoughts" if "thinking" in header else "call" if "invoke_tool_json" in header else "answer"
    )


def kimi_kind(header: str) -> Kind:
    """Tell a message by the name behind its tag.

    Raises `Broken` for what is no message, but part of one.
    """
    found = re.match(r"<\|open\|>(think|tools|response|message)\b", header)
    if found is None:
        raise Broken
    return "thoughts" if found[1] == "think" else "call" if found[1] == "tools" else "answer"


def cohere_kind(header: str) -> Kind:
    """Tell a message by its tag, which is all of its header."""
    return "thoughts" if "THINKING" in header else "call" if "ACTION" in header else "answer"


INKLING_HEADS: Final = (
    "<|content_thinking|>",
    "<|content_text|>",
    "<|content_invoke_tool_json|>",
    "<|content_invoke_tool_text|>",
    "<|content_tool_error|>",
)
HARMONY: Final = Channels(
    starts=("<|start|>", "<|channel|>", "commentary<|channel|>", "assistant<|channel|>"),
    heads=("<|message|>",),
    ends=("<|end|>", "<|return|>", "<|call|>"),
    kind=harmony_kind,
    goes_on=("to=",),
    apart="\n",
)
INKLING: Final = Channels(
    starts=("<|message_model|>",),
    heads=INKLING_HEADS,
    ends=("<|end_message|>", "<|content_model_end_sampling|>"),
    kind=inkling_kind,
    goes_on=INKLING_HEADS,
    named=INKLING_HEADS[2:3],
)
KIMI_K3: Final = Channels(
    starts=("<|open|>",),
    heads=("<|sep|>",),
    ends=tuple(f"<|close|>{name}<|sep|>" for name in ("think", "response", "message", "tools")),
    kind=kimi_kind,
)
COHERE: Final = Channels(
    starts=tuple(f"<|START_{name}|>" for name in ("THINKING", "RESPONSE", "TEXT", "ACTION")),
    heads=tuple(f"<|START_{name}|>" for name in ("THINKING", "RESPONSE", "TEXT", "ACTION")),
    ends=tuple(f"<|END_{name}|>" for name in ("THINKING", "RESPONSE", "TEXT", "ACTION")),
    kind=cohere_kind,
    goes_on=tuple(f"<|START_{name}|>" for name in ("THINKING", "RESPONSE", "TEXT", "ACTION")),
)
MUSE: Final = Channels(
    starts=("<|start|>",),
    heads=("<|message|>",),
    ends=("<|eom|>", "<|eot|>"),
    kind=muse_kind,
    goes_on=("to=", "<|message|>"),
    stops=("<|eot|>",),
)


COHERE_KEYS: Final = CallKeys(names=("tool_name",), ids=("tool_call_id",))


def end_of(channels: Channels, scan: Scan) -> Reading:
    """Skip the end of a message, in whose place the next one's start may stand; return what it was."""
    return (yield from scan.close_call(*channels.ends, before=channels.starts))


def end_if_any(channels: Channels, scan: Scan) -> Reading:
    """Skip the end of a message, perhaps cut off, whose call is complete whatever follows; return
    what it was.
    """
    found = yield from scan.maybe(*channels.ends, "<|")
    if found == "<|":
        scan.unread(found)
        found = yield from end_of(channels, scan)
    return found


def harmony_call(request: ParseRequest, scan: Scan, header: str) -> Reading:
    """Read the arguments of a call to whom the header says; there may be none."""
    found = _TO.search(header)
    name = found[1].removeprefix("functions.") if found else ""
    arguments: Any = {}
    if not (yield from scan.maybe(*HARMONY.ends)):
        arguments = yield from scan.arguments(scan.begin(name))
        yield from end_if_any(HARMONY, scan)
    scan.call(name, arguments)


def inkling_call(request: ParseRequest, scan: Scan, header: str) -> Reading:
    """Read `{"name": ..., "args": {...}}`."""
    call = yield from scan.object(keys=CallKeys(arguments=("args",)))
    yield from end_of(INKLING, scan)
    scan.call(call.get("name"), call.get("args") or {})


def cohere_call(request: ParseRequest, scan: Scan, header: str) -> Reading:
    """Read a list of `{"tool_call_id": ..., "tool_name": ..., "parameters": {...}}`."""
    yield from one_or_list(scan, (yield from scan.expect("[", "{")), cohere_note, COHERE_KEYS)
    yield from end_of(COHERE, scan)


def cohere_note(scan: Scan, call: Mapping[str, Any]) -> None:
    """Note a call with the id that the model gives it."""
    given = call.get("tool_call_id")
    arguments = next((call[key] for key in call if key in ARGUMENTS), None)
    scan.call(
        call.get("tool_name", call.get("name")),
        arguments or {},
        None if given is None else str(given),
    )


def muse_call(request: ParseRequest, scan: Scan, header: str) -> Reading:
    """Read one or more `<atem:invoke>`."""
    yield from scan.maybe(ATEM.section[0])
    while (yield from scan.maybe(*ATEM.call)):
        name = undoubled((yield from read_name(ATEM, scan)), request)
        scan.call(name, (yield from read_arguments(ATEM, scan, scan.begin(name))))
    if (yield from scan.maybe(ATEM.section[1])):
        return (yield from end_if_any(MUSE, scan))
    return (yield from end_of(MUSE, scan))


def undoubled(name: str, request: ParseRequest) -> str:
    """Return the tool that `name.name` means: Muse's template lists tools as namespaces of their
    own name.
    """
    space, _, inner = name.partition(".")
    known = [str(tool.get("function", tool).get("name")) for tool in request.tools]
    return space if space == inner and space in known and name not in known else name


def muse_inline(request: ParseRequest) -> tuple[str, ...]:
    """Return the headers that the model may write into a message that it does not end."""
    tools = [str(tool.get("function", tool).get("name")) for tool in request.tools]
    recipients = (*MUSE_KINDS, *tools, *(f"{tool}.{tool}" for tool in tools))
    return ("<|message|>", *(f"to={recipient}<|message|>" for recipient in recipients))


def kimi_call(request: ParseRequest, scan: Scan, header: str) -> Reading:
    """Read calls up to the end of their section, arguments with their types."""
    section, call, argument, call_end, section_end = (
        "<|open|>tools<|sep|>",
        "<|open|>call",
        "<|open|>argument",
        "<|close|>call<|sep|>",
        "<|close|>tools<|sep|>",
    )
    while (yield from scan.maybe(section)):
        scan.recovered("a begin written twice")
    if (yield from scan.maybe(section_end)):
        scan.recovered("a begin and an end with nothing between them")
        scan.drop()
        return
    while (yield from scan.maybe(call)):
        tool = (yield from attributes(scan)).get("tool")
        told = scan.begin(tool or "")
        arguments: dict[str, Any] = {}
        while found := (yield from scan.maybe(argument, "{")):
            if found == "{":
                more = yield from scan.arguments(told, "{")
                arguments = arguments | more | arguments
                break
            given = yield from attributes(scan)
            key = given.get("key", "")
            declared = given.get("type") == "string"
            feed = told.text(key, declared=True) if declared else None
            text, end = yield from scan.take(
                "<|close|>argument<|sep|>", argument, call_end, feed=feed
            )
            if end in (argument, call_end):
                scan.unread(end)
            value = text if declared else typed_value(text, None)
            told.argument(key, value)
            arguments.setdefault(key, value)
        ended = yield from scan.close_call(call_end, before=(call, section_end))
        if not (arguments or ended):  # the output ends where arguments may have been to come
            raise Broken
        scan.call(tool, arguments)
        scan.keep()
    yield from scan.close_call(section_end, before=KIMI_K3.ends)


def attributes(scan: Scan) -> Reading:
    """Return what a tag says of itself."""
    written, _ = yield from scan.take("<|sep|>")
    if not _ATTRIBUTES.fullmatch(written):
        raise Broken
    return {
        name: value.replace("&quot;", '"').replace("&amp;", "&")
        for name, value in _ATTRIBUTE.findall(written)
    }


def form(
    channels: Channels,
    call: Callable[[ParseRequest, Scan, str], Reading],
    *more: str,
    inline: Callable[[ParseRequest], tuple[str, ...]] = lambda request: (),
) -> ToolFormat:
    """Return the format of some channels; their special tokens may be parts of what stands there as
    one text.
    """

    def read(scan: Scan, request: ParseRequest) -> Reading:
        yield from read_channels(channels, scan, partial(call, request), inline=inline(request))

    tags = [text for text in channels.markers if text.startswith("<") and text.count("<|") == 1]
    signs = channels.heads + channels.ends[:1]
    return ToolFormat(read, markers=(*tags, *more), call_ends=channels.ends, signs=signs)


KIMI_K3_FORMAT: Final = form(KIMI_K3, kimi_call, "<|close|>")
COHERE_FORMAT: Final = replace(
    form(COHERE, cohere_call), signs=("<|START_ACTION|>", "tool_call_id")
)
HARMONY_FORMAT: Final = form(HARMONY, harmony_call, "<|constrain|>")
INKLING_FORMAT: Final = form(INKLING, inkling_call)
MUSE_FORMAT: Final = form(MUSE, muse_call, inline=muse_inline)
