"""Reasoning on a channel of its own. Calls stay content, for the tool parser."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from builtin_plugins.output_parsers.api import (
    Channels,
    MessageKind,
    OutputReader,
    Reading,
    read_channels,
)
from builtin_plugins.output_parsers.channel_families import (
    HARMONY,
    INKLING_REASONING,
    KIMI_K3_REASONING,
    MUSE,
    muse_inline_headers,
    no_inline_headers,
    tag_markers,
    template_hints,
)
from builtin_plugins.output_parsers.contract import ParseRequest, ReasoningFormat


def channel_format(
    channels: Channels,
    end: str,
    before_end: str,
    inside: Callable[[ParseRequest], MessageKind | None],
    *more: str,
    calls: tuple[str, ...] = (),
    inline: Callable[[ParseRequest], tuple[str, ...]] = no_inline_headers,
) -> ReasoningFormat:
    """Return the format of some channels.

    `end` starts the content; `before_end` closes reasoning before it. `inside` returns the kind of
    the message that the prompt has started. `more`: additional special tokens. `calls`: texts that
    start a call instead of the content.
    """

    def read(reader: OutputReader, request: ParseRequest) -> Reading:
        yield from read_channels(channels, reader, None, inside(request), inline(request))

    return ReasoningFormat(
        read,
        markers=(*tag_markers(channels), *more),
        ends=(end,),
        closes=before_end + end,
        calls=calls,
        template_hints=template_hints(channels),
    )


def prompt_kind(reasoning: str, request: ParseRequest) -> MessageKind | None:
    """Return "reasoning" if the prompt ends with its start, else None."""
    if reasoning and request.prompt_end.rstrip().endswith(reasoning):
        return "reasoning"
    return None


def kimi_prompt_kind(request: ParseRequest) -> MessageKind:
    """Return what the prompt has started: reasoning unless prompt or request say otherwise."""
    given = [
        request.template_kwargs[name]
        for name in ("enable_thinking", "thinking")
        if name in request.template_kwargs
    ]
    in_content = request.prompt_end.rstrip().endswith("<|open|>response<|sep|>")
    return "content" if in_content or (given and not given[0]) else "reasoning"


KIMI_K3_FORMAT: Final = channel_format(
    KIMI_K3_REASONING,
    "<|open|>response<|sep|>",
    "<|close|>think<|sep|>",
    kimi_prompt_kind,
    "<|close|>",
    calls=("<|open|>tools<|sep|>",),
)
HARMONY_FORMAT: Final = channel_format(
    HARMONY,
    "<|channel|>final<|message|>",
    "<|end|><|start|>assistant",
    partial(prompt_kind, ""),
    calls=("<|channel|>commentary to=functions.", "<|start|>assistant to=functions."),
)
INKLING_FORMAT: Final = channel_format(
    INKLING_REASONING,
    "<|content_text|>",
    "<|end_message|><|message_model|>",
    partial(prompt_kind, "<|content_thinking|>"),
    calls=("<|content_invoke_tool_json|>",),
)
MUSE_FORMAT: Final = channel_format(
    MUSE,
    "to=user<|message|>",
    "<|eom|><|start|>assistant ",
    partial(prompt_kind, "to=self<|message|>"),
    calls=("to={name}<|message|>", "to={name}.{name}<|message|>"),
    inline=muse_inline_headers,
)
