"""Answers in the form of the Responses API: items, and the events of streams that build them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from builtin_plugins.routes.conversation.events import Begun, Ended, Event, Scored
from builtin_plugins.routes.conversation.messages import packed
from builtin_plugins.routes.conversation.running import now
from builtin_plugins.routes.openai.logprobs import chat_logprobs
from builtin_plugins.routes.responses.reading import new_id
from builtin_plugins.routes.responses.tools import FreeText, Known
from builtin_plugins.routes.streams import numbered_event_with_text, typed_event
from core.api import ArgumentsPiece, CallBegun, CallEnded, ReasoningPiece, TextPiece

Told = Iterator[dict[str, Any]]


class ResponseWriter:
    """Builds one response from the events of an answer; yields what a stream tells of it."""

    def __init__(
        self,
        response: dict[str, Any],
        known: Mapping[str, Known],
        *,
        include: Collection[str],
        num_top: int,
        cached_details: bool,
    ) -> None:
        """`response` is the object to be filled; `known` has the client's tools by the model's
        names.
        """
        self.response = response
        self._known = known
        self._encrypted = "reasoning.encrypted_content" in include
        self._num_top = num_top
        self._cached_details = cached_details
        self._num_told = 0
        self._open: dict[str, Any] | None = None
        self._parts: list[str] = []
        """Of the item that is open."""
        self._free = FreeText()
        """Of the call of free text that is open."""
        self._logprobs: list[Any] = []
        """Of tokens whose text is still to come."""
        self._saying: Callable[[int, str], bytes] | None = None
        """What makes the event of some more text, by its number, where the open item is a message.
        """

    def queued(self) -> Told:
        """Yield what a stream tells before the answer has begun."""
        self.response["status"] = "queued"
        yield self._lifecycle("created")
        yield self._lifecycle("queued")

    def told(self, events: Iterable[Event]) -> Told:
        """Note what is new; yield the events that tell it."""
        for event in events:
            yield from self.take(event)

    def encoded(self, events: Sequence[Event]) -> bytes:
        """Note what is new; return the events that tell it as a stream has them."""
        saying = None if self._logprobs or len(events) != 1 else self._saying
        if saying is not None and isinstance(more := events[0], TextPiece) and more.text:
            self._parts.append(more.text)
            self._num_told += 1
            return saying(self._num_told - 1, more.text)
        return b"".join(map(typed_event, self.told(events)))

    def take(self, event: Event) -> Told:
        """Note what is new; yield the events that tell it."""
        match event:
            case Begun():
                self.response["status"] = "in_progress"
                if not self._num_told:
                    yield self._lifecycle("created")
                yield self._lifecycle("in_progress")
            case Scored(token_ids, positions):
                self._logprobs += chat_logprobs(
                    token_ids, positions, num_top=self._num_top, as_ids=False
                )["content"]
            case TextPiece(text) if text:
                yield from self._text(text)
            case ReasoningPiece(text):
                yield from self._reasoning(text)
            case CallBegun(_, name, call_id):
                yield from self._call(call_id, self._known.get(name, Known("function", name)))
            case ArgumentsPiece(_, text):
                yield from self._arguments(text)
            case CallEnded(_, whole):
                yield from self._close("completed" if whole else "incomplete")
            case Ended():
                yield from self._end(event)

    def fail(self, code: str, message: str) -> Told:
        """The answer breaks off: note why; yield the last events."""
        yield from self._close("incomplete")
        self.response |= {"status": "failed", "error": {"code": code, "message": message}}
        yield self._lifecycle("failed")

    def cancel(self) -> None:
        """The answer is no longer wanted: keep what there is."""
        for _ in self._close("incomplete"):
            pass
        self.response["status"] = "cancelled"

    # --- items

    def _text(self, text: str) -> Told:
        if self._open is None or self._open["type"] != "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield from self._begin({"type": "message", "role": "assistant", "content": []}, part)
        logprobs = self._logprobs
        self._logprobs = []
        self._item()["content"][0]["logprobs"] += logprobs
        self._parts.append(text)
        yield self._told("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _reasoning(self, text: str) -> Told:
        self._logprobs = []
        if self._open is None or self._open["type"] != "reasoning":
            part = {"type": "reasoning_text", "text": ""}
            yield from self._begin({"type": "reasoning", "summary": [], "content": []}, part)
        self._parts.append(text)
        yield self._told("reasoning_text.delta", content_index=0, delta=text)

    def _call(self, call_id: str, tool: Known) -> Told:
        self._logprobs = []
        named = {"call_id": call_id, "name": tool.name}
        if tool.namespace:
            named["namespace"] = tool.namespace
        if tool.type == "custom":
            self._free = FreeText()
            yield from self._begin({"type": "custom_tool_call", **named, "input": ""})
        else:
            yield from self._begin({"type": "function_call", **named, "arguments": ""})

    def _arguments(self, text: str) -> Told:
        if self._item()["type"] == "function_call":
            self._parts.append(text)
            yield self._told("function_call_arguments.delta", delta=text)
        elif said := self._free.take(text):
            yield self._told("custom_tool_call_input.delta", delta=said)

    def _begin(self, item: dict[str, Any], part: dict[str, Any] | None = None) -> Told:
        yield from self._close("completed")
        self._open = {"id": new_id(item["type"]), **item, "status": "in_progress"}
        self._parts = []
        self.response["output"].append(self._open)
        yield self._event("output_item.added", output_index=self._index, item=_copied(self._open))
        if part is not None:
            self._open["content"].append(part)
            yield self._told("content_part.added", content_index=0, part=dict(part))
        if item["type"] == "message":
            number = self._num_told
            said = self._told("output_text.delta", content_index=0, delta="", logprobs=[])
            self._num_told = number  # it is not told itself
            self._saying = numbered_event_with_text(
                {**said, "sequence_number": -1}, "sequence_number", "delta"
            )

    def _close(self, status: str) -> Told:
        item = self._open
        text = "".join(self._parts)
        self._saying = None
        if item is None:
            return
        match item["type"]:
            case "message" | "reasoning":
                part = item["content"][0]
                part["text"] = text
                more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
                yield self._told(f"{part['type']}.done", content_index=0, text=text, **more)
                yield self._told("content_part.done", content_index=0, part=dict(part))
                if item["type"] == "reasoning" and self._encrypted:
                    item["encrypted_content"] = packed(text)
            case "function_call":
                item["arguments"] = text
                yield self._told("function_call_arguments.done", name=item["name"], arguments=text)
            case "custom_tool_call":
                item["input"], rest = self._free.end()
                if rest:
                    yield self._told("custom_tool_call_input.delta", delta=rest)
                yield self._told("custom_tool_call_input.done", input=item["input"])
        item["status"] = status
        yield self._event("output_item.done", output_index=self._index, item=_copied(item))
        self._open = None

    def _end(self, ended: Ended) -> Told:
        status = "incomplete" if ended.reason == "length" else "completed"
        yield from self._close(status)
        self.response |= {
            "status": status,
            "completed_at": now() if status == "completed" else None,
        }
        if status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        cached = ended.cached_tokens if self._cached_details else 0
        self.response["usage"] = {
            "input_tokens": ended.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": ended.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": ended.reasoning_tokens},
            "total_tokens": ended.prompt_tokens + ended.generated_tokens,
        }
        yield self._lifecycle(status)

    # --- events

    @property
    def _index(self) -> int:
        return len(self.response["output"]) - 1

    def _item(self) -> dict[str, Any]:
        if self._open is None:
            raise RuntimeError("a piece of a response belongs to no item that has begun.")
        return self._open

    def _told(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return an event about the item that is open."""
        return self._event(kind, item_id=self._item()["id"], output_index=self._index, **fields)

    def _lifecycle(self, kind: str) -> dict[str, Any]:
        return self._event(kind, response=_copied(self.response))

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number = self._num_told
        self._num_told = self._num_told + 1
        return {"type": f"response.{kind}", "sequence_number": number, **fields}


def _copied(value: Any) -> Any:
    """Return what an event tells as it is now; the object itself grows on."""
    if isinstance(value, dict):
        return {name: _copied(inner) for name, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value
