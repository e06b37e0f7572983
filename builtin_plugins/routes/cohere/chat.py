"""`POST /v2/chat`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request

from builtin_plugins.routes.body import Parsed, client_of
from builtin_plugins.routes.cohere.fields import OTHERS, ChatFields
from builtin_plugins.routes.cohere.reading import (
    as_written,
    choice_of,
    decided,
    messages_of,
    response_format,
    template_kwargs,
    tools_of,
)
from builtin_plugins.routes.cohere.writing import ChatWriter
from builtin_plugins.routes.conversation.asked import Conversation
from builtin_plugins.routes.conversation.fields import features_of, sampling_of
from builtin_plugins.routes.conversation.pipeline import AnswerEncoder, Conversations, Turn
from builtin_plugins.routes.conversation.running import Chosen, answered, choose_model, engine_id
from builtin_plugins.routes.short_way import ShortWay
from core.api import InvalidRequest


@dataclass(frozen=True, slots=True)
class _Job:
    """One request, checked and rendered."""

    turn: Turn
    writer: ChatWriter
    run_id: str
    """Of the engine's request."""


class Chat:
    """The endpoint."""

    def __init__(self, engine: Any, conversations: Conversations, *, strict: bool, cached_details: bool) -> None:
        self._engine = engine
        self._conversations = conversations
        self._strict = strict
        self._cached_details = cached_details

    async def create(self, request: Request) -> Any:
        """The next message of a conversation, in Cohere's form."""
        parsed = await OTHERS.read(request, ChatFields, self._engine.fields, strict=self._strict)
        model = await choose_model(self._engine, parsed.fields.model)
        try:
            return await answered(
                request,
                partial(self._job, parsed, model, client_of(request)),
                stream=parsed.fields.stream,
                whole=self._whole,
                events=lambda job: self._events(job, ShortWay(self._engine, request)),
                headers=parsed.headers,
            )
        except InvalidRequest as error:
            raise as_written(error, forced=parsed.fields.tool_choice == "REQUIRED") from None

    async def _job(self, parsed: Parsed[ChatFields], model: Chosen, client: str) -> _Job:
        fields = parsed.fields
        asked = await asyncio.to_thread(self._asked, fields, parsed.others, client)
        asked.given = {**asked.given, **model.keywords}
        thoughts = fields.thinking is None or fields.thinking.type == "enabled"
        fields.messages = []  # they may be large, and the answer may take long
        writer = ChatWriter(f"chat-{secrets.token_hex(12)}", thoughts=thoughts, cached_details=self._cached_details)
        return _Job(await self._conversations.turn(asked), writer, engine_id(writer.answer["id"]))

    def _asked(self, fields: ChatFields, others: Mapping[str, Any], client: str) -> Conversation:
        """Return what a request asks, in the words that all protocols share."""
        budget = None if fields.thinking is None else fields.thinking.token_budget
        return Conversation(
            messages=messages_of(fields),
            tools=tools_of(fields),
            tool_choice=choice_of(fields),
            sampling={**sampling_of(others), **response_format(fields)},
            decided=decided(fields),
            plugin_args=fields.vllm_xargs,
            thinking_token_budget=budget,
            template_kwargs=template_kwargs(fields),
            stream=fields.stream or fields.logprobs,  # piece by piece where it is told which tokens a text is made of
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            client=client,
            given=features_of(others, self._engine.fields),
        )

    async def _whole(self, job: _Job) -> dict[str, Any]:
        answer = self._conversations.answer(job.turn)
        async with aclosing(self._conversations.outputs(job.turn, job.run_id)) as outputs:
            async for output in outputs:
                job.writer.note(answer.of(output))
        job.writer.note([await answer.ended()])
        return job.writer.answer

    async def _events(self, job: _Job, way: ShortWay) -> AsyncGenerator[bytes]:
        answer, outputs = self._conversations.answer(job.turn), self._conversations.outputs(job.turn, job.run_id)
        encoder = AnswerEncoder(answer, job.writer.told)
        async with aclosing(way.events(job.run_id, outputs, encoder)) as told:
            async for data in told:
                yield data
        yield job.writer.told([await answer.ended()])
