"""Answers of `POST /v1/responses`: whole, streamed, or made in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.requests import Request

from builtin_plugins.routes.common.body import owner_name, release_body
from builtin_plugins.routes.common.conversation import AnswerFinished, AnswerStarted
from builtin_plugins.routes.common.event_runs import EventRun, EventRuns
from builtin_plugins.routes.common.fast_stream import FastStream
from builtin_plugins.routes.common.pipeline import (
    AnswerEncoder,
    ChatPipeline,
    PreparedChat,
)
from builtin_plugins.routes.common.run_ledger import RecordedRun
from builtin_plugins.routes.common.streams import EventStream, typed_event, while_connected
from builtin_plugins.routes.responses.fields import ResponsesFields
from builtin_plugins.routes.responses.served_tools import ToolRounds
from builtin_plugins.routes.responses.session import Session
from builtin_plugins.routes.responses.store import ResponseStore
from builtin_plugins.routes.responses.stored import as_json, store_input
from builtin_plugins.routes.responses.table_reader import StoredResponse
from builtin_plugins.routes.responses.writing import ResponseWriter


@dataclass(frozen=True, slots=True)
class ResponseJob:
    """One checked and rendered request."""

    chat: PreparedChat
    writer: ResponseWriter
    run_id: str
    """Id of the engine request."""
    is_stored: bool
    session: Session | None
    chain: Sequence[StoredResponse]
    """The responses that it continues, if there is a session."""
    items: list[dict[str, Any]]
    """Items of its own input, if there is a session, or until a background response starts."""
    failure: Callable[[BaseException], tuple[int, str]]
    """Returns the status and message of an exception."""
    recorded: RecordedRun | None = None
    rounds: ToolRounds | None = None
    """Calls at tool servers, after which the model continues."""


class ResponseAnswers:
    """Generates, streams and stores the answers of prepared requests."""

    def __init__(
        self, pipeline: ChatPipeline, store: ResponseStore, runs: EventRuns, resume_s: float
    ) -> None:
        """`resume_s`: seconds for which streams go on without their client."""
        self._pipeline = pipeline
        self._store = store
        self._runs = runs
        self._resume_s = resume_s

    async def whole(self, job: ResponseJob) -> dict[str, Any]:
        """Return the whole response."""
        try:
            async with aclosing(self._typed_events(job)) as events:
                async for _ in events:
                    pass
        except BaseException:
            await self._discard(job)
            raise
        await job.chat.check_calls()
        return job.writer.response

    def detached(
        self, request: Request, job: ResponseJob, events: AsyncGenerator[bytes]
    ) -> AsyncGenerator[bytes]:
        """Start a streamed answer that outlives its connection; return its events."""
        response = job.writer.response
        run = EventRun(owner_name(request), response["id"], response, self._resume_s)
        if job.recorded is not None:
            run.on_end = job.recorded.close
        self._runs.start_stream(run, events)
        return run.events()

    async def events(self, job: ResponseJob, stream: FastStream) -> AsyncGenerator[bytes]:
        """Yield the response's events as server-sent events."""
        is_started = False
        try:
            make = self._fast_events(job, stream) if job.rounds is None else self._each_event(job)
            async with aclosing(make) as events:
                async for data in events:
                    is_started = True
                    yield data
        except Exception as error:  # reported by the protocol's own last event
            if not is_started:
                await self._discard(job)
                raise
            yield _encoded(await self._fail(job, error))
        except BaseException:  # the client has left
            await self._discard(job)
            raise

    async def _fast_events(self, job: ResponseJob, stream: FastStream) -> AsyncGenerator[bytes]:
        answer = self._pipeline.answer(job.chat, job.recorded)
        outputs = self._pipeline.outputs(job.chat, job.run_id, job.recorded)
        encoder = AnswerEncoder(answer, job.writer.encode)
        async with aclosing(stream.events(job.run_id, outputs, encoder)) as events:
            async for data in events:
                yield data
        yield _encoded(await self._finish(job, await answer.finish()))

    async def _each_event(self, job: ResponseJob) -> AsyncGenerator[bytes]:
        async with aclosing(self._typed_events(job)) as events:
            async for data in events:
                yield typed_event(data)

    async def _typed_events(self, job: ResponseJob) -> AsyncGenerator[dict[str, Any]]:
        rounds = job.rounds
        chat: PreparedChat | None = job.chat
        run_id = job.run_id
        if rounds is not None:
            for data in (*job.writer.write(AnswerStarted(0, 0)), *rounds.begin(job.writer)):
                yield data
        while chat is not None:
            answer = self._pipeline.answer(chat, job.recorded)
            outputs = self._pipeline.outputs(chat, run_id, job.recorded)
            async with aclosing(outputs):
                async for output in outputs:
                    for data in job.writer.write_all(answer.events_for(output)):
                        yield data
            ended = await answer.finish()
            if rounds is None:
                break
            async with aclosing(rounds.run_calls(job.writer)) as results:
                async for data in results:
                    yield data
            if not rounds.goes_on(job.writer, ended):
                break
            chat = await rounds.next_chat(job.writer, ended)
            if chat is None:  # no token is left
                ended = msgspec.structs.replace(ended, reason="length")
                break
            run_id = rounds.new_run_id()
            for data in job.writer.end_round(ended):
                yield data
        for data in await self._finish(job, ended):
            yield data

    async def _finish(self, job: ResponseJob, ended: AnswerFinished) -> list[dict[str, Any]]:
        events = list(job.writer.write(ended))
        await self._save(job)  # before a client sees the end, and continues the response
        return events

    async def _fail(self, job: ResponseJob, error: Exception) -> list[dict[str, Any]]:
        status, message = job.failure(error)
        code = "invalid_prompt"
        if status >= 500:
            code = "server_error"
        elif status == 429:
            code = "rate_limit_exceeded"
        events = list(job.writer.fail(code, message))
        await self._save(job)
        return events

    async def start_in_background(
        self,
        request: Request,
        make: Callable[[], Any],
        fields: ResponsesFields,
        headers: Mapping[str, str],
    ) -> Any:
        """Start a response in the background; return its first state, or its stream."""
        job: ResponseJob = await while_connected(request, make())
        owner = owner_name(request)
        response = job.writer.response
        await store_input(self._store, owner, response, job.items, fields.previous_response_id)
        run = EventRun(owner, response["id"], response)
        if job.recorded is not None:
            run.on_end = job.recorded.close
        job = replace(job, items=[])
        release_body(request)
        for data in job.writer.queued():
            run.append(typed_event(data))
        body = as_json(response, headers)
        try:
            self._runs.start(run, self._run(job, run))
        except BaseException:
            await self._store.discard(response["id"])
            raise
        # A task cancelled before its start would not record the cancellation.
        await asyncio.sleep(0)
        return EventStream(run.events(), headers) if fields.stream else body

    async def _run(self, job: ResponseJob, run: EventRun) -> None:
        try:
            await self._write_run(job, run)
        finally:
            if not job.writer.response["store"]:
                await self._store.discard(run.id)

    async def _write_run(self, job: ResponseJob, run: EventRun) -> None:
        try:
            async with aclosing(self._typed_events(job)) as events:
                async for data in events:
                    self._runs.append(run, typed_event(data))
        except asyncio.CancelledError:
            job.writer.cancel()
            await self._save(job)
        except Exception as error:  # noqa: BLE001 - reported by the last event
            for data in await self._fail(job, error):
                self._runs.append(run, typed_event(data))

    # --- storage

    async def _discard(self, job: ResponseJob) -> None:
        """Delete the stored input of a response that will not be complete."""
        if job.is_stored:
            await self._store.discard(job.writer.response["id"])

    async def _save(self, job: ResponseJob) -> None:
        response = job.writer.response
        if job.is_stored:
            response["store"] = await self._store.complete(response)
        if job.session is not None and response["status"] != "failed":
            job.session.keep([*job.chain, StoredResponse(response, job.items)])


def _encoded(events: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(map(typed_event, events))
