"""The endpoint of protocols that answer with one message.

It knows none of them: a form reads their bodies and writes their answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import Request

from builtin_plugins.routes.body import Parsed, client_of
from builtin_plugins.routes.conversation.asked import Conversation
from builtin_plugins.routes.conversation.fields import (
    MessageFields,
    OtherFields,
    features_of,
    sampling_of,
)
from builtin_plugins.routes.conversation.pipeline import AnswerEncoder, Conversations, Turn
from builtin_plugins.routes.conversation.running import Chosen, answered, choose_model, engine_id
from builtin_plugins.routes.conversation.writing import TypedWriter
from builtin_plugins.routes.short_way import ShortWay
from core.api import InvalidRequest

F = TypeVar("F", bound=MessageFields)


class Form(Protocol[F]):
    """What is a protocol's own."""

    @property
    def body(self) -> type[F]:
        """What requests may say, ..."""
        ...

    @property
    def others(self) -> OtherFields:
        """... and what they may say besides."""
        ...

    def streams(self, fields: F) -> bool:
        """Say whether the answer is told piece by piece."""
        ...

    def conversation(self, fields: F) -> Conversation:
        """Return what a request asks, but for what all protocols have in common.

        Called in a thread; raises `InvalidRequest`.
        """
        ...

    def writer(self, fields: F, model: str) -> TypedWriter:
        """Return what writes the answer, under the model's name."""
        ...

    def refusal(self, error: InvalidRequest, fields: F) -> InvalidRequest:
        """Return a refusal that names the field as clients of the protocol write it."""
        ...


@dataclass(frozen=True, slots=True)
class _Job:
    """One request, checked and rendered."""

    turn: Turn
    writer: TypedWriter
    run_id: str
    """Of the engine's request."""


class MessageEndpoint(Generic[F]):
    """Answers with the next message of a conversation, whole or streamed."""

    def __init__(
        self, engine: Any, conversations: Conversations, form: Form[F], *, strict: bool
    ) -> None:
        self._engine = engine
        self._conversations = conversations
        self._form = form
        self._strict = strict

    async def answer(self, request: Request) -> Any:
        """Answer one request."""
        parsed = await self._form.others.read(
            request, self._form.body, self._engine.fields, strict=self._strict
        )
        model = await choose_model(self._engine, parsed.fields.model)
        try:
            return await answered(
                request,
                partial(self._job, parsed, model, client_of(request)),
                stream=self._form.streams(parsed.fields),
                whole=self._whole,
                events=lambda job: self._events(job, ShortWay(self._engine, request)),
                headers=parsed.headers,
            )
        except InvalidRequest as error:
            raise self._form.refusal(error, parsed.fields) from None

    async def _job(self, parsed: Parsed[F], model: Chosen, client: str) -> _Job:
        fields = parsed.fields
        others = parsed.others
        asked = await asyncio.to_thread(self._form.conversation, fields)
        asked.sampling = {**sampling_of(others), **asked.sampling}
        asked.given = {**features_of(others, self._engine.fields), **model.keywords}
        asked.plugin_args = fields.vllm_xargs
        asked.priority = fields.priority
        asked.cache_salt = fields.cache_salt
        asked.client = client
        fields.messages = []  # they may be large, and the answer may take long
        writer = self._form.writer(fields, model.name)
        return _Job(await self._conversations.turn(asked), writer, engine_id(writer.answer["id"]))

    async def _whole(self, job: _Job) -> dict[str, Any]:
        answer = self._conversations.answer(job.turn)
        async with aclosing(self._conversations.outputs(job.turn, job.run_id)) as outputs:
            async for output in outputs:
                job.writer.note(answer.of(output))
        job.writer.note([await answer.ended()])
        return job.writer.answer

    async def _events(self, job: _Job, way: ShortWay) -> AsyncGenerator[bytes]:
        answer = self._conversations.answer(job.turn)
        outputs = self._conversations.outputs(job.turn, job.run_id)
        encoder = AnswerEncoder(answer, job.writer.told)
        async with aclosing(way.events(job.run_id, outputs, encoder)) as told:
            async for data in told:
                yield data
        yield job.writer.told([await answer.ended()])
