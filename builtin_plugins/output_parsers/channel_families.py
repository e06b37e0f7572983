"""The families that write messages on channels: reasoning, content and calls by header.

Formats: OpenAI's harmony response format (openai/gpt-oss-20b), the chat templates of
thinkingmachines/Inkling and meta's Muse Glimmer, CohereLabs/c4ai-command-a-03-2025 and Command A+,
and the XTML encoding published with moonshotai/Kimi-K3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from builtin_plugins.output_parsers.api import Broken, Channels, MessageKind
from builtin_plugins.output_parsers.contract import ParseRequest

RECIPIENT: Final = re.compile(r"to=([^\s<]+)")
_INTERNAL: Final = ("assistant", "browser", "container", "python")
"""Recipients of harmony that are the model's own, never a tool of the request."""
_MUSE_KINDS: Final[Mapping[str, MessageKind]] = {
    "self": "reasoning",
    "user": "content",
    "commentary": "content",
    "developer": "hidden",
}
"""Message kind by recipient; every other recipient is a tool."""


def harmony_kind(header: str) -> MessageKind:
    """Classify a message by its recipient, or else by its channel."""
    found = RECIPIENT.search(header)
    if found:
        return "hidden" if found[1] in _INTERNAL else "call"
    return "reasoning" if re.search(r"<\|channel\|>\s*analysis", header) else "content"


def muse_kind(header: str) -> MessageKind:
    """Classify a message by its recipient: the model itself, the user, or a tool."""
    found = RECIPIENT.search(header)
    return _MUSE_KINDS.get(found[1] if found else "self", "call")


def inkling_kind(header: str) -> MessageKind:
    """Classify a message by the tag before its text."""
    if "thinking" in header:
        return "reasoning"
    return "call" if "invoke_tool_json" in header else "content"


def kimi_kind(header: str) -> MessageKind:
    """Classify a message by its tag's name. Raises `Broken` for a part of a message."""
    found = re.match(r"<\|open\|>(think|tools|response|message)\b", header)
    if found is None:
        raise Broken
    if found[1] == "think":
        return "reasoning"
    return "call" if found[1] == "tools" else "content"


def cohere_kind(header: str) -> MessageKind:
    """Classify a message by its tag, which is the whole header."""
    if "THINKING" in header:
        return "reasoning"
    return "call" if "ACTION" in header else "content"


_INKLING_TAGS: Final = (
    "<|content_thinking|>",
    "<|content_text|>",
    "<|content_invoke_tool_json|>",
    "<|content_invoke_tool_text|>",
    "<|content_tool_error|>",
)
_COHERE_TAGS: Final = ("THINKING", "RESPONSE", "TEXT", "ACTION")

HARMONY: Final = Channels(
    header_starts=("<|start|>", "<|channel|>", "commentary<|channel|>", "assistant<|channel|>"),
    header_ends=("<|message|>",),
    message_ends=("<|end|>", "<|return|>", "<|call|>"),
    classify=harmony_kind,
    continuations=("to=",),
    separator="\n",
)
INKLING: Final = Channels(
    header_starts=("<|message_model|>",),
    header_ends=_INKLING_TAGS,
    message_ends=("<|end_message|>", "<|content_model_end_sampling|>"),
    classify=inkling_kind,
    continuations=_INKLING_TAGS,
    named_ends=("<|content_invoke_tool_json|>",),
)
INKLING_REASONING: Final = replace(
    INKLING,
    header_ends=_INKLING_TAGS[:3],
    continuations=_INKLING_TAGS[:3],
    named_ends=(),
)
"""As the reasoning parser reads it: tool results and named headers are left to the tool parser."""
KIMI_K3: Final = Channels(
    header_starts=("<|open|>",),
    header_ends=("<|sep|>",),
    message_ends=tuple(
        f"<|close|>{name}<|sep|>" for name in ("think", "response", "message", "tools")
    ),
    classify=kimi_kind,
)
KIMI_K3_REASONING: Final = replace(
    KIMI_K3, message_ends=(*KIMI_K3.message_ends[:-1], "<|close|>think")
)
"""As the reasoning parser reads it: the end of calls is left to the tool parser."""
COHERE: Final = Channels(
    header_starts=tuple(f"<|START_{name}|>" for name in _COHERE_TAGS),
    header_ends=tuple(f"<|START_{name}|>" for name in _COHERE_TAGS),
    message_ends=tuple(f"<|END_{name}|>" for name in _COHERE_TAGS),
    classify=cohere_kind,
    continuations=tuple(f"<|START_{name}|>" for name in _COHERE_TAGS),
)
MUSE: Final = Channels(
    header_starts=("<|start|>",),
    header_ends=("<|message|>",),
    message_ends=("<|eom|>", "<|eot|>"),
    classify=muse_kind,
    continuations=("to=", "<|message|>"),
    output_ends=("<|eot|>",),
)


def tag_markers(channels: Channels) -> list[str]:
    """Return the markers that are one special token each."""
    return [text for text in channels.markers if text.startswith("<") and text.count("<|") == 1]


def template_hints(channels: Channels) -> tuple[str, ...]:
    """Return the texts that identify the family's chat template."""
    return channels.header_ends + channels.message_ends[:1]


def no_inline_headers(request: ParseRequest) -> tuple[str, ...]:
    """Return no headers: messages start with a start marker."""
    return ()


def muse_inline_headers(request: ParseRequest) -> tuple[str, ...]:
    """Return the complete headers that the model may write within an unfinished message."""
    tools = [str(tool.get("function", tool).get("name")) for tool in request.tools]
    recipients = (*_MUSE_KINDS, *tools, *(f"{tool}.{tool}" for tool in tools))
    return ("<|message|>", *(f"to={recipient}<|message|>" for recipient in recipients))
