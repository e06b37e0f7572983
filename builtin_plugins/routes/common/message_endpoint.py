"""Endpoint of protocols that answer with one message.

A `ChatProtocol` reads the request bodies of one protocol; its `TypedWriter` writes the answers.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from starlette.requests import Request

from builtin_plugins.output_parsers.api import TextPiece
from builtin_plugins.routes.common.body import ParsedBody, client_name, reserve_bytes
from builtin_plugins.routes.common.conversation import Conversation, Event
from builtin_plugins.routes.common.fast_stream import FastStream
from builtin_plugins.routes.common.fields import (
    MessageFields,
    OtherFields,
    feature_fields,
    sampling_fields,
)
from builtin_plugins.routes.common.media_parts import served_modalities
from builtin_plugins.routes.common.pipeline import AnswerEncoder, ChatPipeline, PreparedChat
from builtin_plugins.routes.common.request_ids import engine_id, with_client_id
from builtin_plugins.routes.common.requests import ModelChoice, choose_model, respond
from builtin_plugins.routes.common.streams import typed_event
from core.api import InvalidRequest
from core.api.serving import ServedEngine

F = TypeVar("F", bound=MessageFields)


class TypedWriter(ABC):
    """Builds one answer from its events, and the typed server-sent events of its stream."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer: Final = answer
        """The answer so far; it has an `id`."""
        self._open: dict[str, Any] | None = None
        """The part of the answer that still grows."""
        self._parts: list[str] = []
        """Texts of the open part."""
        self._encode_delta: Callable[[str], bytes] | None = None
        """Encodes the event of more text, if the open part is text."""

    def encode(self, events: Sequence[Event]) -> bytes:
        """Add events to the answer, and return them as the stream's events."""
        if (
            len(events) == 1
            and self._encode_delta is not None
            and isinstance(delta := events[0], TextPiece)
            and delta.text
        ):
            self._parts.append(delta.text)
            return self._encode_delta(delta.text)
        return b"".join([typed_event(data) for event in events for data in self.write(event)])

    def record(self, events: Sequence[Event]) -> None:
        """Add events to an answer that is not streamed."""
        for event in events:
            for _ in self.write(event):
                pass

    @abstractmethod
    def write(self, event: Event) -> Iterator[dict[str, Any]]:
        """Add an event to the answer, and yield the events of the stream."""


class ChatProtocol(Protocol[F]):
    """The parts of an endpoint that depend on its protocol."""

    @property
    def body(self) -> type[F]:
        """Struct of the request body."""
        ...

    @property
    def others(self) -> OtherFields:
        """Known fields that the struct lacks."""
        ...

    def streams(self, fields: F) -> bool:
        """Return whether the answer is streamed."""
        ...

    def conversation(self, fields: F) -> Conversation:
        """Return the conversation of a request, without the fields common to all protocols.

        Runs in a thread. Raises `InvalidRequest`.
        """
        ...

    def writer(self, fields: F, model: str) -> TypedWriter:
        """Return the writer of the answer, under the model's name."""
        ...

    def refusal(self, error: InvalidRequest, fields: F) -> InvalidRequest:
        """Return an error that names the field as clients of the protocol write it."""
        ...


@dataclass(frozen=True, slots=True)
class _Job:
    """One checked and rendered request."""

    chat: PreparedChat
    writer: TypedWriter
    run_id: str
    """Id of the engine request."""


class MessageEndpoint(Generic[F]):
    """Answers with the next message of a conversation, whole or streamed."""

    def __init__(
        self,
        engine: ServedEngine,
        pipeline: ChatPipeline,
        protocol: ChatProtocol[F],
        *,
        strict: bool,
    ) -> None:
        self._engine = engine
        self._pipeline = pipeline
        self._protocol = protocol
        self._strict = strict

    async def answer(self, request: Request) -> Any:
        """Answer one request."""
        protocol = self._protocol
        parsed = await protocol.others.read(
            request,
            protocol.body,
            self._engine.fields,
            strict=self._strict,
            modalities=served_modalities(self._engine),
        )
        model = await choose_model(self._engine, parsed.fields.model)
        try:
            return await respond(
                request,
                partial(self._job, parsed, model, request),
                stream=protocol.streams(parsed.fields),
                whole=self._whole,
                events=lambda job: self._events(job, FastStream(self._engine, request)),
                headers=lambda job: parsed.headers_with(job.chat.ignored) | job.chat.headers,
            )
        except InvalidRequest as error:
            raise protocol.refusal(error, parsed.fields) from None

    async def _job(self, parsed: ParsedBody[F], model: ModelChoice, request: Request) -> _Job:
        fields = parsed.fields
        others = parsed.others
        conversation = await asyncio.to_thread(self._protocol.conversation, fields)
        conversation.sampling = {**sampling_fields(others), **conversation.sampling}
        keywords = feature_fields(others, self._engine.fields, request)
        conversation.keywords = {**keywords, **model.keywords}
        conversation.plugin_args = fields.vllm_xargs
        conversation.priority = fields.priority
        conversation.cache_salt = fields.cache_salt
        conversation.client = client_name(request)
        conversation.reserve = reserve_bytes(request)
        fields.messages = []  # they may be large, and the answer may take long
        writer = self._protocol.writer(fields, model.name)
        chat = await self._pipeline.prepare(conversation)
        return _Job(chat, writer, engine_id(with_client_id(writer.answer["id"], request.headers)))

    async def _whole(self, job: _Job) -> dict[str, Any]:
        answer = self._pipeline.answer(job.chat)
        async with aclosing(self._pipeline.outputs(job.chat, job.run_id)) as outputs:
            async for output in outputs:
                job.writer.record(answer.events_for(output))
        job.writer.record([await answer.finish()])
        await job.chat.check_calls()
        return job.writer.answer

    async def _events(self, job: _Job, stream: FastStream) -> AsyncGenerator[bytes]:
        answer = self._pipeline.answer(job.chat)
        outputs = self._pipeline.outputs(job.chat, job.run_id)
        encoder = AnswerEncoder(answer, job.writer.encode)
        async with aclosing(stream.events(job.run_id, outputs, encoder)) as events:
            async for data in events:
                yield data
        yield job.writer.encode([await answer.finish()])
