"""Writes answers in Anthropic's form: content blocks, and the events of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from builtin_plugins.output_parsers.api import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    Piece,
    ReasoningPiece,
    TextPiece,
)
from builtin_plugins.routes.common.conversation import (
    AnswerFinished,
    AnswerStarted,
    Event,
    TokenLogprobs,
    encode_reasoning,
)
from builtin_plugins.routes.common.message_endpoint import TypedWriter
from builtin_plugins.routes.common.streams import text_event_template, typed_event

VISIBLE: Final = "engine"
"""Signature of visible reasoning; clients require one, and send it back."""


class MessageWriter(TypedWriter):
    """Builds one message from the events of an answer, and the events of its stream."""

    def __init__(self, message_id: str, model: str, *, thoughts: str, cached_details: bool) -> None:
        """`thoughts`: `summarized` includes reasoning, `omitted` its signature, empty nothing."""
        super().__init__(
            {
                "id": message_id,
                "type": "message",
                "role": "assistant",
                "model": model,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
            }
        )
        self._thoughts = thoughts
        self._cached_details = cached_details

    def write(self, event: Event) -> Iterator[dict[str, Any]]:
        """Add an event to the answer, and yield the events of the stream."""
        match event:
            case AnswerStarted(prompt_tokens, cached_tokens):
                self.answer["usage"] = self._usage(prompt_tokens, cached_tokens, 0)
                yield {"type": "message_start", "message": {**self.answer, "content": []}}
                yield {"type": "ping"}
            case AnswerFinished():
                yield from self._end(event)
            case TokenLogprobs():
                pass
            case _:
                yield from self._piece(event)

    def _piece(self, piece: Piece) -> Iterator[dict[str, Any]]:
        match piece:
            case TextPiece(text) if text:
                yield from self._grow({"type": "text", "text": ""}, "text", text)
            case ReasoningPiece(text) if self._thoughts:
                field = "" if self._thoughts == "omitted" else "thinking"
                yield from self._grow(
                    {"type": "thinking", "thinking": "", "signature": ""}, field, text
                )
            case CallBegun(_, name, call_id):
                yield from self._close()
                yield from self._begin(
                    {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                )
            case ArgumentsPiece(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
                self._parts.append(text)
            case CallEnded(_, whole):
                yield from self._close(whole=whole)

    def _grow(self, block: dict[str, Any], field: str, text: str) -> Iterator[dict[str, Any]]:
        """Append text to the open block, or to a new one of another type.

        `field` is the field of the delta event; empty for no event.
        """
        if self._open is None or self._open["type"] != block["type"]:
            yield from self._close()
            yield from self._begin(block)
        self._parts.append(text)
        if field:
            yield self._delta({"type": f"{field}_delta", field: text})

    def _begin(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {
            "type": "content_block_start",
            "index": len(self.answer["content"]),
            "content_block": dict(block),
        }
        self.answer["content"].append(block)
        self._open = block
        self._parts = []
        if block["type"] == "text":
            empty = self._delta({"type": "text_delta", "text": ""})
            self._encode_delta = text_event_template(empty, "text", typed_event)

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "content_block_delta",
            "index": len(self.answer["content"]) - 1,
            "delta": delta,
        }

    def _close(self, *, whole: bool = True) -> Iterator[dict[str, Any]]:
        """Close the open block; a call that is not `whole` has no input."""
        block = self._open
        self._open = None
        self._encode_delta = None
        if block is None:
            return
        text = "".join(self._parts)
        match block["type"]:
            case "text":
                block["text"] = text
            case "thinking":
                hidden = self._thoughts == "omitted"
                block["thinking"] = "" if hidden else text
                block["signature"] = encode_reasoning(text) if hidden else VISIBLE
                yield self._delta({"type": "signature_delta", "signature": block["signature"]})
            case "tool_use":
                block["input"] = msgspec.json.decode(text) if whole else {}
        yield {"type": "content_block_stop", "index": len(self.answer["content"]) - 1}

    def _end(self, ended: AnswerFinished) -> Iterator[dict[str, Any]]:
        yield from self._close()
        reasons = {
            "stop": "end_turn" if ended.stop is None else "stop_sequence",
            "length": "model_context_window_exceeded" if ended.context_full else "max_tokens",
            "tool_calls": "tool_use",
        }
        stop = {"stop_reason": reasons.get(ended.reason, "end_turn"), "stop_sequence": ended.stop}
        usage = self._usage(ended.prompt_tokens, ended.cached_tokens, ended.generated_tokens)
        usage["output_tokens_details"] = {"thinking_tokens": ended.reasoning_tokens}
        usage |= ended.cost
        self.answer.update({**stop, "usage": usage})
        yield {"type": "message_delta", "delta": stop, "usage": usage}
        yield {"type": "message_stop"}

    def _usage(
        self, prompt_tokens: int, cached_tokens: int, generated_tokens: int
    ) -> dict[str, Any]:
        """Return the `usage` object; Anthropic counts cached prompt tokens separately."""
        cached = cached_tokens if self._cached_details else 0
        return {
            "input_tokens": prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": generated_tokens,
        }
