"""Answers in Anthropic's form: content blocks, and the events of streams that build them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from builtin_plugins.routes.conversation.events import Begun, Ended, Event, Scored
from builtin_plugins.routes.conversation.messages import packed
from builtin_plugins.routes.conversation.writing import TypedWriter
from builtin_plugins.routes.streams import event_with_text, typed_event
from core.api import ArgumentsPiece, CallBegun, CallEnded, Piece, ReasoningPiece, TextPiece

SHOWN: Final = "engine"
"""Signature of thoughts that are shown; clients want one, and send them back with it."""


class MessageWriter(TypedWriter):
    """Builds one message from the events of an answer; yields what a stream tells of it."""

    def __init__(self, message_id: str, model: str, *, thoughts: str, cached_details: bool) -> None:
        """`thoughts`: `summarized` shows them, `omitted` only signs them, `` leaves them out."""
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

    def take(self, event: Event) -> Iterator[dict[str, Any]]:
        """Note what is new; yield the events that tell it."""
        match event:
            case Begun(prompt_tokens, cached_tokens):
                self.answer["usage"] = self._usage(prompt_tokens, cached_tokens, 0)
                yield {"type": "message_start", "message": {**self.answer, "content": []}}
                yield {"type": "ping"}
            case Ended():
                yield from self._end(event)
            case Scored():
                pass
            case _:
                yield from self._piece(event)

    def _piece(self, piece: Piece) -> Iterator[dict[str, Any]]:
        match piece:
            case TextPiece(text) if text:
                yield from self._grow({"type": "text", "text": ""}, "text", text)
            case ReasoningPiece(text) if self._thoughts:
                told = "" if self._thoughts == "omitted" else "thinking"
                yield from self._grow(
                    {"type": "thinking", "thinking": "", "signature": ""}, told, text
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

    def _grow(self, block: dict[str, Any], told: str, text: str) -> Iterator[dict[str, Any]]:
        """Add text to the open block, or to a new one where that is of another type; `told` is the
        field that grows.
        """
        if self._open is None or self._open["type"] != block["type"]:
            yield from self._close()
            yield from self._begin(block)
        self._parts.append(text)
        if told:
            yield self._delta({"type": f"{told}_delta", told: text})

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
            said = self._delta({"type": "text_delta", "text": ""})
            self._saying = event_with_text(said, "text", typed_event)

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "content_block_delta",
            "index": len(self.answer["content"]) - 1,
            "delta": delta,
        }

    def _close(self, *, whole: bool = True) -> Iterator[dict[str, Any]]:
        """End the open block; a call that is not `whole` has no input that could be told."""
        block = self._open
        self._open = None
        self._saying = None
        if block is None:
            return
        text = "".join(self._parts)
        match block["type"]:
            case "text":
                block["text"] = text
            case "thinking":
                hidden = self._thoughts == "omitted"
                block["thinking"] = "" if hidden else text
                block["signature"] = packed(text) if hidden else SHOWN
                yield self._delta({"type": "signature_delta", "signature": block["signature"]})
            case "tool_use":
                block["input"] = msgspec.json.decode(text) if whole else {}
        yield {"type": "content_block_stop", "index": len(self.answer["content"]) - 1}

    def _end(self, ended: Ended) -> Iterator[dict[str, Any]]:
        yield from self._close()
        reasons = {
            "stop": "end_turn" if ended.stop is None else "stop_sequence",
            "length": "model_context_window_exceeded" if ended.context_full else "max_tokens",
            "tool_calls": "tool_use",
        }
        stop = {"stop_reason": reasons.get(ended.reason, "end_turn"), "stop_sequence": ended.stop}
        usage = self._usage(ended.prompt_tokens, ended.cached_tokens, ended.generated_tokens)
        usage["output_tokens_details"] = {"thinking_tokens": ended.reasoning_tokens}
        self.answer.update({**stop, "usage": usage})
        yield {"type": "message_delta", "delta": stop, "usage": usage}
        yield {"type": "message_stop"}

    def _usage(
        self, prompt_tokens: int, cached_tokens: int, generated_tokens: int
    ) -> dict[str, Any]:
        """Return the `usage` object; Anthropic counts what was cached apart from the rest of the
        prompt.
        """
        cached = cached_tokens if self._cached_details else 0
        return {
            "input_tokens": prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": generated_tokens,
        }
