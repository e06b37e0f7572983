"""A chat request and the events of its answer, independent of the protocol. Plain data."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec

from builtin_plugins.output_parsers.api import Piece
from core.api import Logprob


@dataclass(slots=True, kw_only=True)
class Conversation:
    """A request for the next message, in the form that chat templates read."""

    messages: list[dict[str, Any]]
    """Messages with `role`, `content`, `tool_calls`, `tool_call_id` and `reasoning_content`.

    A content is a text, or a list of parts with media: OpenAI's, or a `MediaSource`.
    """
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tools as `{"type": "function", "function": {"name", "description", "parameters"}}`."""
    tool_choice: Any = None
    """`none`, `auto`, `required` or `{"type": "function", "function": {"name"}}`; None: `auto`."""
    enforced_tools: list[dict[str, Any]] | None = None
    """Tools of a forced call, with schemas that can be held; None: those of `tools`."""
    parallel_tool_calls: bool = True
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters by name, including `response_format` and `structured_outputs`."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters under the protocol's own names; they take precedence."""
    plugin_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for plugins, passed on as `SamplingParams.extra_args`."""
    thinking_token_budget: int | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    thinking: bool | None = None
    """Whether the model may think; None: as the template does by default."""
    effort: str | None = None
    """Reasoning effort; `none` switches reasoning off."""
    effort_field: str = "reasoning_effort"
    """The protocol's name of the effort."""
    chat_template: str | None = None
    add_generation_prompt: bool | None = None
    """Default: true, unless the final message is continued."""
    continue_final_message: bool = False
    add_special_tokens: bool = False
    beams: float | None = None
    """Length penalty of a beam search; None samples."""
    stream: bool = False
    priority: int = 0
    cache_salt: str = ""
    client: str = ""
    reserve: Callable[[int], None] = lambda num_bytes: None
    """Counts bytes of media that are fetched for it; raises if there are too many."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `generate` that features read."""


class AnswerStarted(msgspec.Struct, frozen=True):
    """The prompt has been processed."""

    prompt_tokens: int
    cached_tokens: int


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of tokens, sent before the pieces of text made of these tokens."""

    token_ids: Sequence[int]
    positions: Sequence[dict[int, Logprob]]


class AnswerFinished(msgspec.Struct, frozen=True):
    """The answer is complete."""

    reason: str
    """`stop`, `length` or `tool_calls`."""
    stop: str | None
    """The stop string that ended the answer."""
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    reasoning_tokens: int
    context_full: bool
    """True if the context length ended the answer before the client's own limit."""
    cost: Mapping[str, Any] = {}
    """Additional fields of its usage: what the request cost."""


Event = AnswerStarted | TokenLogprobs | Piece | AnswerFinished


def thinking_kwargs(enabled: bool) -> dict[str, Any]:
    """Return the chat template arguments that switch thinking, under each family's name."""
    return {"enable_thinking": enabled, "thinking": enabled}


def merge_consecutive_roles(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages, consecutive ones of a role merged: templates expect alternating roles."""
    found: list[dict[str, Any]] = []
    for role, neighbours in groupby(messages, key=lambda message: message["role"]):
        group = list(neighbours)
        found += group if role == "tool" else [_merged(group)]
    return found


def _merged(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(messages) == 1:
        return messages[0]
    texts: dict[str, Any] = {
        "content": join_contents([m["content"] for m in messages if m.get("content")])
    }
    thoughts = "\n".join(m["reasoning_content"] for m in messages if m.get("reasoning_content"))
    if thoughts:
        texts["reasoning_content"] = thoughts
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return {"role": messages[0]["role"], **texts, **({"tool_calls": calls} if calls else {})}


def join_contents(contents: Sequence[str | list[Any]]) -> str | list[Any]:
    """Return contents as one: texts joined by line breaks, or with media a list of parts."""
    if all(isinstance(content, str) for content in contents):
        return "\n".join(content for content in contents if isinstance(content, str))
    return [
        part
        for content in contents
        for part in ([text_part(content)] if isinstance(content, str) else content)
    ]


def content_of(parts: Sequence[Any]) -> str | list[Any]:
    """Return texts and media as a content: a text, or with media a list of parts."""
    if all(isinstance(part, str) for part in parts):
        return "\n".join(parts)
    return [text_part(part) if isinstance(part, str) else part for part in parts]


def text_part(text: str) -> dict[str, str]:
    """Return a text as a part of a content."""
    return {"type": "text", "text": text}


def encode_reasoning(reasoning: str) -> str:
    """Return reasoning text in an opaque form that clients send back unread."""
    return base64.b64encode(reasoning.encode(errors="replace")).decode()


def decode_reasoning(text: str | None) -> str:
    """Return the reasoning encoded by `encode_reasoning`; empty for any other text."""
    try:
        return base64.b64decode(text or "", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
