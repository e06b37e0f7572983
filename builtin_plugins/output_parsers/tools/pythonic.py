"""Calls in Python syntax, `name(argument=value)`, and the Gemmas' `call:name{argument:value}`.

Formats: the chat templates of Team-ACE/ToolACE-8B, meta-llama/Llama-3.2-1B-Instruct and
Llama-4-Scout-17B-16E-Instruct, allenai/Olmo-3-7B-Instruct, LiquidAI/LFM2-1.2B,
google/functiongemma-270m-it and google/gemma-4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Final

from builtin_plugins.output_parsers.api import Broken, OutputReader, Reading, typed_arguments
from builtin_plugins.output_parsers.contract import ParseRequest, ToolFormat
from builtin_plugins.output_parsers.tools.json_calls import read_bare
from builtin_plugins.output_parsers.tools.literals import gemma_arguments, python_arguments

BARE: Final = "call:"


def read_calls(reader: OutputReader, end: str, known: Collection[str] | None = None) -> Reading:
    """Add one or more calls up to `end`, with optional commas; only of `known` tools if given."""
    while True:
        name = yield from reader.read_name()
        if known is not None and name not in known:
            raise Broken
        reader.add_call(name, python_arguments((yield from reader.read_brackets())))
        yield from reader.skip_optional(",")
        found = yield from reader.skip_optional(end, end[0])
        if found == end[0]:  # the end of the output may cut it off
            reader.unread(found)
            yield from reader.close_call(end)
        if found or reader.ended:
            return


def read_lists(tag: str, close: str, reader: OutputReader, request: ParseRequest) -> Reading:
    """Read `[f(a=1), g(b=2)]` at the start of a line, after a tag, or at the end of the output.

    Within a line only the request's tools are called.
    """
    tools = [tool.get("function", tool).get("name") for tool in request.tools]
    while start := (yield from reader.content_until_call("[", tag)):
        within = start == "[" and not reader.at_line_start
        with reader.attempt():
            if start == tag:
                yield from reader.expect("[")
            yield from read_calls(reader, "]", tools if within else None)
            if within:
                yield from reader.skip_optional("")  # skips white space and waits for more text
                if not reader.ended:
                    raise Broken
        yield from reader.skip_layout(close)


def read_tagged(tag: str, close: str, reader: OutputReader, request: ParseRequest) -> Reading:
    """Read calls between tags: one per line, a list of them, or a list of JSON objects."""
    while (yield from reader.content_until_call(tag)):
        with reader.attempt():
            if not (yield from reader.skip_optional("[")):
                yield from read_calls(reader, close)
                continue
            if (yield from reader.skip_optional("{")):
                yield from read_bare(reader, "[{")
            else:
                yield from read_calls(reader, "]")
            yield from reader.close_call(close)


def read_gemma(
    tag: str,
    close: str,
    quote: str,
    reader: OutputReader,
    request: ParseRequest,
    *,
    literal: bool = False,
) -> Reading:
    """Read `call:name{argument:value}` between tags, at a line start, or after `<call>`.

    `literal`: numbers and literals may be quoted.
    """
    while start := (yield from reader.content_until_call(tag, BARE, "<call>")):
        with reader.attempt():
            if start == tag:
                yield from reader.skip_optional(":")
                yield from reader.expect(BARE)
            elif start == BARE and not reader.at_line_start:
                raise Broken
            if start != tag:
                reader.note_recovery(f"{tag} is missing before a call")
            name = yield from reader.read_name()
            arguments = yield from quoted_brackets(reader, quote)
            yield from reader.close_call(close)
            values = gemma_arguments(arguments, quote)
            if literal:
                texts = {key: value for key, value in values.items() if isinstance(value, str)}
                values |= typed_arguments(texts, request.parameters(name))
            reader.add_call(name, values)


def quoted_brackets(reader: OutputReader, quote: str) -> Reading:
    """Return the text from a bracket to its closing one; brackets within quotes do not count."""
    parts = [(yield from reader.expect("{"))]
    depth = 1
    while depth:
        text, mark = yield from reader.read_until("{", "}", quote)
        parts += [text, mark]
        if mark == quote:
            text, mark = yield from reader.read_until(quote)
            parts += [text, mark]
        else:
            depth += 1 if mark == "{" else -1
    return "".join(parts)


def call_format(read: Callable[..., Reading], *texts: str) -> ToolFormat:
    """Return the format of a read function and its tags."""
    return ToolFormat(
        partial(read, *texts),
        markers=texts,
        call_ends=texts[1:2],
        begins=texts[:1],
        template_hints=texts[:1],
    )


FUNCTIONGEMMA: Final = call_format(
    partial(read_gemma, literal=True), "<start_function_call>", "<end_function_call>", "<escape>"
)
GEMMA4: Final = replace(
    call_format(read_gemma, "<|tool_call>", "<tool_call|>", '<|"|>'),
    markers=("<|tool_call>", "<tool_call|>", '<|"|>', "<turn|>"),
    call_ends=("<tool_call|>", "<turn|>"),
)
LFM2: Final = replace(
    call_format(read_tagged, "<|tool_call_start|>", "<|tool_call_end|>"),
    template_hints=("<|tool_list_start|>",),
)
OLMO3: Final = call_format(read_tagged, "<function_calls>", "</function_calls>")
PYTHONIC: Final = replace(
    call_format(read_lists, "<|python_start|>", "<|python_end|>"),
    begins=("[{name}(", "<|python_start|>"),
)
