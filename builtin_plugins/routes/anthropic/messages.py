"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.anthropic.fields import OTHERS, CountFields, MessagesFields
from builtin_plugins.routes.anthropic.reading import (
    as_written,
    choice_of,
    goes_on,
    messages_of,
    response_format,
    template_kwargs,
    tools_of,
)
from builtin_plugins.routes.anthropic.writing import MessageWriter
from builtin_plugins.routes.body import Parsed, client_of
from builtin_plugins.routes.conversation.asked import Conversation
from builtin_plugins.routes.conversation.fields import features_of, sampling_of
from builtin_plugins.routes.conversation.pipeline import AnswerEncoder, Conversations, Turn
from builtin_plugins.routes.conversation.running import Chosen, answered, choose_model, engine_id
from builtin_plugins.routes.short_way import ShortWay
from builtin_plugins.routes.streams import while_connected
from core.api import InvalidRequest


@dataclass(frozen=True, slots=True)
class _Job:
    """One request, checked and rendered."""

    turn: Turn
    writer: MessageWriter
    run_id: str
    """Of the engine's request."""


class Messages:
    """The two endpoints."""

    def __init__(self, engine: Any, conversations: Conversations, *, strict: bool, cached_details: bool) -> None:
        self._engine = engine
        self._conversations = conversations
        self._strict = strict
        self._cached_details = cached_details

    async def create(self, request: Request) -> Any:
        """The next message of a conversation, in Anthropic's form."""
        parsed = await OTHERS.read(request, MessagesFields, self._engine.fields, strict=self._strict)
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
            raise as_written(error, forced=_is_forced(parsed.fields)) from None

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens the prompt of a request would have."""
        parsed = await OTHERS.read(request, CountFields, self._engine.fields, strict=self._strict)
        await choose_model(self._engine, parsed.fields.model)
        try:
            asked = await asyncio.to_thread(self._asked, parsed.fields, parsed.others, client_of(request))
            count = await while_connected(request, self._conversations.count(asked))
        except InvalidRequest as error:
            raise as_written(error, forced=False) from None
        body = msgspec.json.encode({"input_tokens": count})
        return Response(body, media_type="application/json", headers=parsed.headers)

    async def _job(self, parsed: Parsed[MessagesFields], model: Chosen, client: str) -> _Job:
        fields = parsed.fields
        asked = await asyncio.to_thread(self._asked, fields, parsed.others, client)
        asked.given = {**asked.given, **model.keywords}
        asked.decided = {"max_tokens": fields.max_tokens, "stop": fields.stop_sequences}
        asked.stream = fields.stream
        fields.messages = []  # they may be large, and the answer may take long
        thinking = fields.thinking
        thoughts = "" if thinking is None or thinking.type == "disabled" else thinking.display or "summarized"
        writer = MessageWriter(
            f"msg_{secrets.token_hex(12)}", model.name, thoughts=thoughts, cached_details=self._cached_details
        )
        return _Job(await self._conversations.turn(asked), writer, engine_id(writer.message["id"]))

    def _asked(self, fields: CountFields, others: Mapping[str, Any], client: str) -> Conversation:
        """Return what a request asks, in the words that all protocols share."""
        messages = messages_of(fields)
        choice, parallel = choice_of(fields)
        # A budget is more of a wish: Claude Code sends one to every model.
        budget = fields.thinking.budget_tokens if fields.thinking and self._conversations.limits_thinking else None
        return Conversation(
            messages=messages,
            tools=tools_of(fields.tools),
            tool_choice=choice,
            parallel_tool_calls=parallel,
            sampling={**sampling_of(others), **response_format(fields)},
            plugin_args=fields.vllm_xargs,
            thinking_token_budget=budget,
            template_kwargs=template_kwargs(fields),
            continue_final_message=goes_on(messages),
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
        return job.writer.message

    async def _events(self, job: _Job, way: ShortWay) -> AsyncGenerator[bytes]:
        answer, outputs = self._conversations.answer(job.turn), self._conversations.outputs(job.turn, job.run_id)
        encoder = AnswerEncoder(answer, job.writer.told)
        async with aclosing(way.events(job.run_id, outputs, encoder)) as told:
            async for data in told:
                yield data
        yield job.writer.told([await answer.ended()])


def _is_forced(fields: CountFields) -> bool:
    return fields.tool_choice is not None and fields.tool_choice.type in ("any", "tool")
