"""Calls as Python would write them, `name(argument=value)`, and the Gemmas'
`call:name{argument:value}`.

Formats: the chat templates of Team-ACE/ToolACE-8B, meta-llama/Llama-3.2-1B-Instruct and
Llama-4-Scout-17B-16E-Instruct, allenai/Olmo-3-7B-Instruct, LiquidAI/LFM2-1.2B,
google/functiongemma-270m-it and google/gemma-4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Final

from builtin_plugins.output_parsers.tools.json_calls import bare
from builtin_plugins.output_parsers.tools.literals import gemma_arguments, python_arguments
from core.api import Broken, ParseRequest, Reading, Scan, ToolFormat, typed_arguments

BARE: Final = "call:"


def calls(scan: Scan, end: str, known: Collection[str] | None = None) -> Reading:
    """Note one or more calls, of `known` tools if given, with or without commas between them, up to
    what ends them.
    """
    while True:
        name = yield from scan.word()
        if known is not None and name not in known:
            raise Broken
        scan.call(name, python_arguments((yield from scan.bracketed())))
        yield from scan.maybe(",")
        found = yield from scan.maybe(end, end[0])
        if found == end[0]:  # perhaps cut off by the end of the output
            scan.unread(found)
            yield from scan.close_call(end)
        if found or scan.ended:
            return


def read_lists(tag: str, close: str, scan: Scan, request: ParseRequest) -> Reading:
    """Read `[f(a=1), g(b=2)]` where a line begins with it or behind a tag; elsewhere where the
    output ends with it.

    There only the request's tools are called.
    """
    tools = [tool.get("function", tool).get("name") for tool in request.tools]
    while start := (yield from scan.text("[", tag)):
        within = start == "[" and not scan.line_begins
        with scan.attempt():
            if start == tag:
                yield from scan.expect("[")
            yield from calls(scan, "]", tools if within else None)
            if within:
                yield from scan.maybe("")  # skips white space, and waits for what follows
                if not scan.ended:
                    raise Broken
        yield from scan.layout(close)


def read_tagged(tag: str, close: str, scan: Scan, request: ParseRequest) -> Reading:
    """Read calls between tags: each on a line of its own, or a list of them, or of JSON objects."""
    while (yield from scan.text(tag)):
        with scan.attempt():
            if not (yield from scan.maybe("[")):
                yield from calls(scan, close)
                continue
            if (yield from scan.maybe("{")):
                yield from bare(scan, "[{")
            else:
                yield from calls(scan, "]")
            yield from scan.close_call(close)


def read_gemma(
    tag: str, close: str, quote: str, scan: Scan, request: ParseRequest, *, literal: bool = False
) -> Reading:
    """Read `call:name{argument:value}` between tags, or where a line begins with it; sometimes
    `<call>` is in front.

    `literal`: numbers and the like may stand between quotes, too.
    """
    while start := (yield from scan.text(tag, BARE, "<call>")):
        with scan.attempt():
            if start == tag:
                yield from scan.maybe(":")
                yield from scan.expect(BARE)
            elif start == BARE and not scan.line_begins:
                raise Broken
            if start != tag:
                scan.recovered(f"{tag} is missing in front of a call")
            name = yield from scan.word()
            arguments = yield from quoted_brackets(scan, quote)
            yield from scan.close_call(close)
            values = gemma_arguments(arguments, quote)
            if literal:
                texts = {key: value for key, value in values.items() if isinstance(value, str)}
                values |= typed_arguments(texts, request.parameters(name))
            scan.call(name, values)


def quoted_brackets(scan: Scan, quote: str) -> Reading:
    """Return the text from a bracket to the one that closes it, those between quotes left out."""
    parts = [(yield from scan.expect("{"))]
    depth = 1
    while depth:
        text, mark = yield from scan.take("{", "}", quote)
        parts += [text, mark]
        if mark == quote:
            text, mark = yield from scan.take(quote)
            parts += [text, mark]
        else:
            depth += 1 if mark == "{" else -1
    return "".join(parts)


def form(read: Callable[..., Reading], *texts: str) -> ToolFormat:
    """Return the format of a reading with its tags."""
    return ToolFormat(partial(read, *texts), markers=texts, call_ends=texts[1:2], signs=texts[:1])


FUNCTIONGEMMA: Final = form(
    partial(read_gemma, literal=True), "<start_function_call>", "<end_function_call>", "<escape>"
)
GEMMA4: Final = replace(
    form(read_gemma, "<|tool_call>", "<tool_call|>", '<|"|>'),
    markers=("<|tool_call>", "<tool_call|>", '<|"|>', "<turn|>"),
    call_ends=("<tool_call|>", "<turn|>"),
)
LFM2: Final = replace(
    form(read_tagged, "<|tool_call_start|>", "<|tool_call_end|>"), signs=("<|tool_list_start|>",)
)
OLMO3: Final = form(read_tagged, "<function_calls>", "</function_calls>")
PYTHONIC: Final = form(read_lists, "<|python_start|>", "<|python_end|>")
