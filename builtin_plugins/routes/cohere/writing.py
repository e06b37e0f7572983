"""Writes answers in Cohere's form: a message of parts and calls, and the events of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from builtin_plugins.output_parsers.api import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    ReasoningPiece,
    TextPiece,
)
from builtin_plugins.routes.common.conversation import (
    AnswerFinished,
    AnswerStarted,
    Event,
    TokenLogprobs,
)
from builtin_plugins.routes.common.message_endpoint import TypedWriter
from builtin_plugins.routes.common.streams import text_event_template, typed_event

REASONS: Final = {"length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}


class ChatWriter(TypedWriter):
    """Builds one answer from its events, and the events of its stream."""

    def __init__(self, answer_id: str, *, thoughts: bool, cached_details: bool) -> None:
        """`thoughts`: whether the answer includes reasoning."""
        super().__init__({"id": answer_id, "finish_reason": None, "message": {"role": "assistant"}})
        self._thoughts = thoughts
        self._cached_details = cached_details
        self._scored: list[dict[str, Any]] = []
        """Log-probabilities of tokens with incomplete text."""

    def write(self, event: Event) -> Iterator[dict[str, Any]]:
        """Add an event to the answer, and yield the events of the stream."""
        match event:
            case AnswerStarted():
                message = {
                    "role": "assistant",
                    "content": [],
                    "tool_plan": "",
                    "tool_calls": [],
                    "citations": [],
                }
                yield {
                    "type": "message-start",
                    "id": self.answer["id"],
                    "delta": {"message": message},
                }
            case TokenLogprobs(token_ids, positions):
                chosen = [
                    position[token] for token, position in zip(token_ids, positions, strict=True)
                ]
                text = "".join(each.decoded_token or "" for each in chosen)
                numbers = [each.logprob for each in chosen]
                self._scored.append(
                    {"text": text, "token_ids": list(token_ids), "logprobs": numbers}
                )
            case TextPiece(text) if text:
                yield from self._grow("text", text)
            case ReasoningPiece(text) if text and self._thoughts:
                yield from self._grow("thinking", text)
            case CallBegun(_, name, call_id):
                yield from self._close()
                function = {"name": name, "arguments": ""}
                self._open = {"id": call_id, "type": "function", "function": function}
                self._parts = []
                self.answer["message"].setdefault("tool_calls", []).append(self._open)
                call = {**self._open, "function": dict(function)}
                yield {
                    "type": "tool-call-start",
                    "index": self._index,
                    "delta": {"message": {"tool_calls": call}},
                }
            case ArgumentsPiece(_, text):
                self._parts.append(text)
                delta = {"message": {"tool_calls": {"function": {"arguments": text}}}}
                yield {"type": "tool-call-delta", "index": self._index, "delta": delta}
            case CallEnded():
                yield from self._close()
            case AnswerFinished():
                yield from self._end(event)

    @property
    def _index(self) -> int:
        return len(self.answer["message"]["tool_calls"]) - 1

    def _grow(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        """Append text to the open part, or to a new one of another kind."""
        if self._open is None or self._open["type"] != kind:
            yield from self._close()
            parts = self.answer["message"].setdefault("content", [])
            self._open = {"type": kind, kind: ""}
            self._parts = []
            parts.append(self._open)
            at = len(parts) - 1
            yield {
                "type": "content-start",
                "index": at,
                "delta": {"message": {"content": dict(self._open)}},
            }
            if kind == "text" and not self._scored:
                empty = {
                    "type": "content-delta",
                    "index": at,
                    "delta": {"message": {"content": {"text": ""}}},
                }
                self._encode_delta = text_event_template(empty, "text", typed_event)
        self._parts.append(text)
        at = len(self.answer["message"]["content"]) - 1
        delta = {
            "type": "content-delta",
            "index": at,
            "delta": {"message": {"content": {kind: text}}},
        }
        yield delta | self._take_logprobs()

    def _take_logprobs(self) -> dict[str, Any]:
        """Return the field for the log-probabilities of an event's text; empty if not requested."""
        scored = self._scored
        self._scored = []
        if not scored:
            return {}
        self.answer.setdefault("logprobs", []).extend(scored)
        joined = {"text": "".join(each["text"] for each in scored)}
        lists = {
            name: [value for each in scored for value in each[name]]
            for name in ("token_ids", "logprobs")
        }
        return {"logprobs": joined | lists}

    def _close(self) -> Iterator[dict[str, Any]]:
        """Close the open part or call."""
        found = self._open
        self._open = None
        self._encode_delta = None
        if found is None:
            return
        text = "".join(self._parts)
        if found["type"] == "function":
            found["function"]["arguments"] = text
            yield {"type": "tool-call-end", "index": self._index}
        else:
            found[found["type"]] = text
            yield {"type": "content-end", "index": len(self.answer["message"]["content"]) - 1}

    def _end(self, ended: AnswerFinished) -> Iterator[dict[str, Any]]:
        yield from self._close()
        self._take_logprobs()  # for tokens without text
        reason = REASONS.get(ended.reason, "COMPLETE" if ended.stop is None else "STOP_SEQUENCE")
        counts = {"input_tokens": ended.prompt_tokens, "output_tokens": ended.generated_tokens}
        usage: dict[str, Any] = {"billed_units": counts, "tokens": counts}
        if self._cached_details:
            usage["cached_tokens"] = ended.cached_tokens
        self.answer.update({"finish_reason": reason, "usage": usage})
        yield {
            "type": "message-end",
            "id": self.answer["id"],
            "delta": {"finish_reason": reason, "usage": usage},
        }
