"""Writes answers in the form of the Responses API: items, and the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

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
    encode_reasoning,
)
from builtin_plugins.routes.common.free_text import FreeText
from builtin_plugins.routes.common.requests import now
from builtin_plugins.routes.common.streams import numbered_text_event_template, typed_event
from builtin_plugins.routes.openai.logprobs import chat_logprobs
from builtin_plugins.routes.responses.reading import new_id
from builtin_plugins.routes.responses.tools import ClientTool

Events = Iterator[dict[str, Any]]


class ResponseWriter:
    """Builds one response from the events of an answer, and the events of its stream."""

    def __init__(
        self,
        response: dict[str, Any],
        known: Mapping[str, ClientTool],
        *,
        include: Collection[str],
        num_top: int,
        cached_details: bool,
        make_id: Callable[[str], str] | None = None,
    ) -> None:
        """`response` is the object to fill in; `known` has the client's tools, by prompt name.

        `make_id` returns the id of a new item of a type; by default a random one.
        """
        self._make_id = make_id or new_id
        self.response = response
        self._known = known
        self._encrypted = "reasoning.encrypted_content" in include
        self._num_top = num_top
        self._cached_details = cached_details
        self._num_events = 0
        self._open: dict[str, Any] | None = None
        self._parts: list[str] = []
        """Texts of the open item."""
        self._free = FreeText()
        """Input of the open call of a custom tool."""
        self._logprobs: list[Any] = []
        """Log-probabilities of tokens with incomplete text."""
        self._waiting: list[dict[str, Any]] = []
        """Calls that tool servers run, without their results."""
        self._usage: dict[str, Any] = {}
        """Usage of the rounds before the current one."""
        self._encode_delta: Callable[[int, str], bytes] | None = None
        """Encodes the event of more text, by its number, if the open item is a message."""

    def queued(self) -> Events:
        """Yield the events before the answer starts."""
        self.response["status"] = "queued"
        yield self._lifecycle("created")
        yield self._lifecycle("queued")

    def write_all(self, events: Iterable[Event]) -> Events:
        """Add events to the response, and yield the events of the stream."""
        for event in events:
            yield from self.write(event)

    def encode(self, events: Sequence[Event]) -> bytes:
        """Add events to the response, and return them as the stream's events."""
        encode_delta = None if self._logprobs or len(events) != 1 else self._encode_delta
        if encode_delta is not None and isinstance(delta := events[0], TextPiece) and delta.text:
            self._parts.append(delta.text)
            self._num_events += 1
            return encode_delta(self._num_events - 1, delta.text)
        return b"".join(map(typed_event, self.write_all(events)))

    def write(self, event: Event) -> Events:
        """Add an event to the response, and yield the events of the stream."""
        match event:
            case AnswerStarted():
                if self._num_events and self.response["status"] == "in_progress":
                    return  # a further round
                self.response["status"] = "in_progress"
                if not self._num_events:
                    yield self._lifecycle("created")
                yield self._lifecycle("in_progress")
            case TokenLogprobs(token_ids, positions):
                self._logprobs += chat_logprobs(
                    token_ids, positions, num_top=self._num_top, as_ids=False
                )["content"]
            case TextPiece(text) if text:
                yield from self._text(text)
            case ReasoningPiece(text):
                yield from self._reasoning(text)
            case CallBegun(_, name, call_id):
                yield from self._call(call_id, self._known.get(name, ClientTool("function", name)))
            case ArgumentsPiece(_, text):
                yield from self._arguments(text)
            case CallEnded(_, whole):
                yield from self._close("completed" if whole else "incomplete")
            case AnswerFinished():
                yield from self._end(event)

    def fail(self, code: str, message: str) -> Events:
        """Record a failure; yield the last events."""
        yield from self._close("incomplete")
        self._drop_waiting_calls()
        self.response |= {"status": "failed", "error": {"code": code, "message": message}}
        yield self._lifecycle("failed")

    def cancel(self) -> None:
        """Record a cancellation; the output so far remains."""
        for _ in self._close("incomplete"):
            pass
        self._drop_waiting_calls()
        self.response["status"] = "cancelled"

    # --- calls at tool servers

    def list_tools(self, label: str, tools: list[dict[str, Any]]) -> Events:
        """Yield the events of an item that lists the tools of a tool server."""
        empty: list[Any] = []
        yield from self._begin({"type": "mcp_list_tools", "server_label": label, "tools": empty})
        yield self._item_event("mcp_list_tools.in_progress")
        self._item()["tools"] = tools
        yield self._item_event("mcp_list_tools.completed")
        yield from self._close("completed")

    def waiting_calls(self) -> list[dict[str, Any]]:
        """Return the items of calls that tool servers are to run, once."""
        waiting = self._waiting
        self._waiting = []
        return waiting

    def finish_call(self, item: dict[str, Any], text: str, *, is_error: bool) -> Events:
        """Add the result of a call; yield its events."""
        item["error" if is_error else "output"] = text
        item["status"] = "failed" if is_error else "completed"
        index = next(i for i, each in enumerate(self.response["output"]) if each is item)
        kind = f"mcp_call.{item['status']}"
        yield self._event(kind, item_id=item["id"], output_index=index)
        yield self._event("output_item.done", output_index=index, item=_copied(item))

    def _drop_waiting_calls(self) -> None:
        for item in self.waiting_calls():
            item["status"] = "incomplete"

    def end_round(self, ended: AnswerFinished) -> Events:
        """Count the usage of a round after which the model continues."""
        yield from self._close("completed")
        self._usage = _added(self._usage, self._usage_of(ended))

    # --- items

    def _text(self, text: str) -> Events:
        if self._open is None or self._open["type"] != "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield from self._begin({"type": "message", "role": "assistant", "content": []}, part)
        logprobs = self._logprobs
        self._logprobs = []
        self._item()["content"][0]["logprobs"] += logprobs
        self._parts.append(text)
        yield self._item_event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _reasoning(self, text: str) -> Events:
        self._logprobs = []
        if self._open is None or self._open["type"] != "reasoning":
            part = {"type": "reasoning_text", "text": ""}
            yield from self._begin({"type": "reasoning", "summary": [], "content": []}, part)
        self._parts.append(text)
        yield self._item_event("reasoning_text.delta", content_index=0, delta=text)

    def _call(self, call_id: str, tool: ClientTool) -> Events:
        self._logprobs = []
        named = {"call_id": call_id, "name": tool.name}
        if tool.namespace:
            named["namespace"] = tool.namespace
        if tool.type == "mcp":
            called = {"server_label": tool.namespace, "name": tool.name, "arguments": ""}
            empty = {"output": None, "error": None, "approval_request_id": None}
            yield from self._begin({"type": "mcp_call", **called, **empty})
            yield self._item_event("mcp_call.in_progress")
        elif tool.type == "custom":
            self._free = FreeText()
            yield from self._begin({"type": "custom_tool_call", **named, "input": ""})
        else:
            yield from self._begin({"type": "function_call", **named, "arguments": ""})

    def _arguments(self, text: str) -> Events:
        if self._item()["type"] == "function_call":
            self._parts.append(text)
            yield self._item_event("function_call_arguments.delta", delta=text)
        elif self._item()["type"] == "mcp_call":
            self._parts.append(text)
            yield self._item_event("mcp_call_arguments.delta", delta=text)
        elif delta := self._free.add(text):
            yield self._item_event("custom_tool_call_input.delta", delta=delta)

    def _begin(self, item: dict[str, Any], part: dict[str, Any] | None = None) -> Events:
        yield from self._close("completed")
        self._open = {"id": self._make_id(item["type"]), **item, "status": "in_progress"}
        self._parts = []
        self.response["output"].append(self._open)
        yield self._event("output_item.added", output_index=self._index, item=_copied(self._open))
        if part is not None:
            self._open["content"].append(part)
            yield self._item_event("content_part.added", content_index=0, part=dict(part))
        if item["type"] == "message":
            number = self._num_events
            empty = self._item_event("output_text.delta", content_index=0, delta="", logprobs=[])
            self._num_events = number  # the template itself is not sent
            self._encode_delta = numbered_text_event_template(
                {**empty, "sequence_number": -1}, "sequence_number", "delta"
            )

    def _close(self, status: str) -> Events:
        item = self._open
        text = "".join(self._parts)
        self._encode_delta = None
        if item is None:
            return
        match item["type"]:
            case "message" | "reasoning":
                part = item["content"][0]
                part["text"] = text
                more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
                yield self._item_event(f"{part['type']}.done", content_index=0, text=text, **more)
                yield self._item_event("content_part.done", content_index=0, part=dict(part))
                if item["type"] == "reasoning" and self._encrypted:
                    item["encrypted_content"] = encode_reasoning(text)
            case "function_call":
                item["arguments"] = text
                yield self._item_event(
                    "function_call_arguments.done", name=item["name"], arguments=text
                )
            case "mcp_call":
                item["arguments"] = text
                yield self._item_event("mcp_call_arguments.done", arguments=text)
                if status == "completed":  # its tool server runs it
                    self._waiting.append(item)
                    self._open = None
                    return
            case "custom_tool_call":
                item["input"], rest = self._free.end()
                if rest:
                    yield self._item_event("custom_tool_call_input.delta", delta=rest)
                yield self._item_event("custom_tool_call_input.done", input=item["input"])
        item["status"] = status
        yield self._event("output_item.done", output_index=self._index, item=_copied(item))
        self._open = None

    def _end(self, ended: AnswerFinished) -> Events:
        status = "incomplete" if ended.reason == "length" else "completed"
        yield from self._close(status)
        self.response |= {
            "status": status,
            "completed_at": now() if status == "completed" else None,
        }
        if status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        self.response["usage"] = _added(self._usage, self._usage_of(ended))
        yield self._lifecycle(status)

    def _usage_of(self, ended: AnswerFinished) -> dict[str, Any]:
        cached = ended.cached_tokens if self._cached_details else 0
        return {
            "input_tokens": ended.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": ended.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": ended.reasoning_tokens},
            "total_tokens": ended.prompt_tokens + ended.generated_tokens,
            **ended.cost,
        }

    # --- events

    @property
    def _index(self) -> int:
        return len(self.response["output"]) - 1

    def _item(self) -> dict[str, Any]:
        if self._open is None:
            raise RuntimeError("a piece of a response belongs to no item that has begun.")
        return self._open

    def _item_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return an event of the open item."""
        return self._event(kind, item_id=self._item()["id"], output_index=self._index, **fields)

    def _lifecycle(self, kind: str) -> dict[str, Any]:
        return self._event(kind, response=_copied(self.response))

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number = self._num_events
        self._num_events += 1
        return {"type": f"response.{kind}", "sequence_number": number, **fields}


def _added(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums of two usages; of other values than numbers, the second."""
    found = dict(second)
    for name, value in first.items():
        other = found.get(name)
        if isinstance(value, Mapping):
            found[name] = _added(value, other or {})
        elif isinstance(value, (int, float)):
            found[name] = value + (other or 0)
    return found


def _copied(value: Any) -> Any:
    """Return a copy of a value that still changes."""
    if isinstance(value, dict):
        return {name: _copied(inner) for name, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value
