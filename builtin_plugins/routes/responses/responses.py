"""`POST /v1/responses` and `POST /v1/responses/input_tokens`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.body import Parsed, client_of, handed_over
from builtin_plugins.routes.conversation.asked import Conversation
from builtin_plugins.routes.conversation.events import Begun
from builtin_plugins.routes.conversation.fields import features_of, sampling_of
from builtin_plugins.routes.conversation.pipeline import Answer, AnswerEncoder, Conversations, Turn
from builtin_plugins.routes.conversation.running import (
    Chosen,
    answered,
    choose_model,
    engine_id,
    failure,
    now,
)
from builtin_plugins.routes.responses.background import Run, Runs
from builtin_plugins.routes.responses.fields import (
    INCLUDABLE,
    OTHERS,
    InputFields,
    ResponsesFields,
    Tool,
)
from builtin_plugins.routes.responses.kept import KeptResponses, as_json, said
from builtin_plugins.routes.responses.reading import (
    MOST_REFERENCES,
    as_written,
    items_of,
    messages_of,
    references,
    response_format,
    template_kwargs,
)
from builtin_plugins.routes.responses.store import Kept, ResponseStore
from builtin_plugins.routes.responses.tools import LEFT_OUT, Toolbox
from builtin_plugins.routes.responses.writing import ResponseWriter
from builtin_plugins.routes.short_way import ShortWay
from builtin_plugins.routes.streams import EventStream, typed_event, while_connected
from core.api import TOO_LONG, InvalidRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class _Job:
    """One request, checked and rendered."""

    turn: Turn
    writer: ResponseWriter
    run_id: str
    """Of the engine's request."""
    kept: bool
    failure: Callable[[BaseException], tuple[int, str]]
    """Says what a client is told of an exception."""


class Responses:
    """The two endpoints."""

    def __init__(
        self,
        engine: Any,
        conversations: Conversations,
        store: ResponseStore,
        runs: Runs,
        kept: KeptResponses,
        *,
        strict: bool,
        cached_details: bool,
    ) -> None:
        self._engine = engine
        self._conversations = conversations
        self._store = store
        self._runs = runs
        self._kept = kept
        self._strict = strict
        self._cached_details = cached_details

    async def create(self, request: Request) -> Any:
        """An answer, whole, streamed or made in the background."""
        parsed = await OTHERS.read(
            request, ResponsesFields, self._engine.fields, strict=self._strict
        )
        fields = parsed.fields
        model = await choose_model(self._engine, fields.model)
        try:
            tools = Toolbox.of(fields.tools, fields.tool_choice)
            if tools.ignored and self._strict:
                raise InvalidRequest(
                    tools.ignored[0],
                    "is run by OpenAI's servers, and --strict-fields leaves none out.",
                )
            headers = replace(parsed, ignored=(*parsed.ignored, *tools.ignored)).headers
            job = partial(self._job, request, parsed, model, tools)
            if fields.background:
                return await self._started(request, job, fields, headers)
            return await answered(
                request,
                job,
                stream=fields.stream,
                whole=self._whole,
                events=lambda job: self._events(job, ShortWay(self._engine, request)),
                headers=headers,
            )
        except InvalidRequest as error:
            refused = as_written(error, forced=fields.tool_choice not in ("none", "auto"))
            if refused.code == TOO_LONG and fields.stream and not fields.background:
                return EventStream(_too_long(fields, model.name, refused), parsed.headers)
            raise refused from None

    async def count(self, request: Request) -> Response:
        """How many tokens the input of a request would have."""
        parsed = await OTHERS.read(request, InputFields, self._engine.fields, strict=self._strict)
        fields = parsed.fields
        await choose_model(self._engine, fields.model)
        try:
            tools = Toolbox.of(fields.tools, fields.tool_choice)
            asked, _ = await self._asked(fields, parsed.others, tools, client_of(request))
            count = await while_connected(request, self._conversations.count(asked))
        except InvalidRequest as error:
            raise as_written(error, forced=False) from None
        return as_json({"object": "response.input_tokens", "input_tokens": count}, parsed.headers)

    # --- requests

    async def _job(
        self, request: Request, parsed: Parsed[ResponsesFields], model: Chosen, tools: Toolbox
    ) -> _Job:
        fields = parsed.fields
        _check(fields)
        asked, items = await self._asked(fields, parsed.others, tools, client_of(request))
        scored = bool(fields.top_logprobs) or "message.output_text.logprobs" in fields.include
        asked.given = {**asked.given, **model.keywords}
        decided = dict(asked.decided)
        if scored:
            decided["logprobs"] = fields.top_logprobs or 0
        if fields.max_output_tokens is not None:
            decided["max_tokens"] = fields.max_output_tokens
        asked.decided = decided
        # Piece by piece where it is told which tokens a text is made of, or where somebody may come
        # to read along.
        asked.stream = fields.stream or fields.background or scored
        turn = await self._conversations.turn(asked)
        fields.input = []  # it may be large, and the answer may take long
        writer = ResponseWriter(
            _response(fields, model.name, turn.sampling),
            tools.known,
            include=fields.include,
            num_top=fields.top_logprobs or 0,
            cached_details=self._cached_details,
        )
        if fields.store:
            await self._store.begin(writer.response["id"], items)
        return _Job(
            turn, writer, engine_id(writer.response["id"]), fields.store, partial(failure, request)
        )

    async def _asked(
        self, fields: InputFields, others: Mapping[str, Any], tools: Toolbox, client: str
    ) -> tuple[Conversation, list[dict[str, Any]]]:
        """Return what a request asks, in the words that all protocols share, and the items of its
        input.
        """
        previous = fields.previous_response_id
        chain = await self._kept.chain(previous, "previous_response_id") if previous else []
        referred = references(fields.input)
        if len(referred) > MOST_REFERENCES:
            raise InvalidRequest(
                "input",
                f"refers to {len(referred)} items, at most {MOST_REFERENCES} are looked for.",
            )
        items, messages = await asyncio.to_thread(
            _read, fields, chain, await self._store.items(referred)
        )
        asked = Conversation(
            messages=messages,
            tools=tools.functions,
            tool_choice=tools.choice,
            parallel_tool_calls=fields.parallel_tool_calls,
            sampling={**sampling_of(others), **response_format(fields)},
            decided={"truncate_prompt_tokens": -1} if fields.truncation == "auto" else {},
            plugin_args=fields.vllm_xargs,
            template_kwargs=template_kwargs(fields),
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            client=client,
            given=features_of(others, self._engine.fields),
        )
        return asked, items

    # --- answers

    async def _whole(self, job: _Job) -> dict[str, Any]:
        async with aclosing(self._told(job)) as told:
            async for _ in told:
                pass
        return job.writer.response

    async def _events(self, job: _Job, way: ShortWay) -> AsyncGenerator[bytes]:
        answer = self._conversations.answer(job.turn)
        outputs = self._conversations.outputs(job.turn, job.run_id)
        encoder = AnswerEncoder(answer, job.writer.encoded)
        begun = False
        try:
            async with aclosing(way.events(job.run_id, outputs, encoder)) as told:
                async for data in told:
                    begun = True
                    yield data
            yield _encoded(await self._end(job, answer))
        except (
            Exception
        ) as error:  # the server says what is told of it; the stream ends as its clients know it
            if not begun:
                raise
            yield _encoded(await self._failed(job, error))

    async def _told(self, job: _Job) -> AsyncGenerator[dict[str, Any]]:
        answer = self._conversations.answer(job.turn)
        async with aclosing(self._conversations.outputs(job.turn, job.run_id)) as outputs:
            async for output in outputs:
                for data in job.writer.told(answer.of(output)):
                    yield data
        for data in await self._end(job, answer):
            yield data

    async def _end(self, job: _Job, answer: Answer) -> list[dict[str, Any]]:
        told = list(job.writer.take(await answer.ended()))
        await self._keep(job)  # before anybody hears that it has ended, and goes on from it
        return told

    async def _failed(self, job: _Job, error: Exception) -> list[dict[str, Any]]:
        status, message = job.failure(error)
        code = (
            "server_error"
            if status >= 500
            else "rate_limit_exceeded"
            if status == 429
            else "invalid_prompt"
        )
        told = list(job.writer.fail(code, message))
        await self._keep(job)
        return told

    async def _started(
        self,
        request: Request,
        make: Callable[[], Any],
        fields: ResponsesFields,
        headers: Mapping[str, str],
    ) -> Any:
        """Start a response in the background; return its beginning, or a stream to read along."""
        job: _Job = await while_connected(request, make())
        handed_over(request)
        run = Run(job.writer.response)
        for data in job.writer.queued():
            run.tell(typed_event(data))
        body = as_json(run.response, headers)
        self._runs.start(run, self._run(job, run))
        await asyncio.sleep(0)  # it has begun: a task that is cancelled before would not note that
        return EventStream(run.events(), headers) if fields.stream else body

    async def _run(self, job: _Job, run: Run) -> None:
        try:
            async with aclosing(self._told(job)) as told:
                async for data in told:
                    run.tell(typed_event(data))
        except asyncio.CancelledError:
            job.writer.cancel()
            await self._keep(job)
        except Exception as error:  # noqa: BLE001 - the server says what is told of it; nobody waits for the exception
            for data in await self._failed(job, error):
                run.tell(typed_event(data))

    # --- what is kept

    async def _keep(self, job: _Job) -> None:
        if job.kept:
            await self._store.end(job.writer.response)


def _encoded(told: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(map(typed_event, told))


def _read(
    fields: InputFields, chain: list[Kept], kept: Mapping[str, dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the items of a request, and the messages that they make behind those of earlier ones."""
    items = items_of(fields.input, kept)
    return items, messages_of(fields.instructions, [*said(chain), *items])


def _check(fields: ResponsesFields) -> None:
    """Raise `InvalidRequest` for fields that do not go together."""
    for name in fields.include:
        if name not in INCLUDABLE:
            raise InvalidRequest(
                "include", f"{name[:80]!r} is not known; there are {', '.join(INCLUDABLE)}."
            )
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequest(
            "stream_options", "belongs to streams; set `stream` to true or leave it out."
        )
    if fields.background and not fields.store:
        raise InvalidRequest(
            "background", "needs `store`: a response that is not kept could not be fetched."
        )


async def _too_long(
    fields: ResponsesFields, model: str, error: InvalidRequest
) -> AsyncGenerator[bytes]:
    """Yield the stream of a request whose input is too long: in this form Codex knows it, and
    shortens what it sends.
    """
    response = _response(fields, model, SamplingParams())
    writer = ResponseWriter(response, {}, include=(), num_top=0, cached_details=False)
    for data in (*writer.take(Begun(0, 0)), *writer.fail(error.code, str(error))):
        yield typed_event(data)


def _response(fields: ResponsesFields, model: str, sampling: SamplingParams) -> dict[str, Any]:
    """Return the response before it has an output; what was asked is told again."""
    return {
        "id": f"resp_{secrets.token_hex(24)}",
        "object": "response",
        "created_at": now(),
        "status": "in_progress",
        "background": fields.background,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": fields.metadata,
        "model": model,
        "output": [],
        "parallel_tool_calls": fields.parallel_tool_calls,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None}
        | msgspec.to_builtins(fields.reasoning or {}),
        "safety_identifier": fields.safety_identifier,
        "service_tier": "default",
        "store": fields.store,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"}} | msgspec.to_builtins(fields.text or {}),
        "tool_choice": msgspec.to_builtins(fields.tool_choice),
        "tools": [_tool(tool) for tool in fields.tools if tool.type not in LEFT_OUT],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": fields.truncation,
        "usage": None,
        "user": fields.user,
    }


def _tool(tool: Tool) -> dict[str, Any]:
    told = {name: value for name, value in msgspec.to_builtins(tool).items() if value is not None}
    return {"parameters": None, "strict": None, **told} if tool.type == "function" else told
