"""`POST /v1/responses` and `POST /v1/responses/input_tokens`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.common.body import (
    ParsedBody,
    client_name,
    owner_name,
    release_body,
    reserve_bytes,
)
from builtin_plugins.routes.common.conversation import AnswerStarted, Conversation
from builtin_plugins.routes.common.event_runs import EventRuns
from builtin_plugins.routes.common.fast_stream import FastStream
from builtin_plugins.routes.common.fields import feature_fields, sampling_fields
from builtin_plugins.routes.common.media_parts import served_modalities
from builtin_plugins.routes.common.pipeline import (
    ChatPipeline,
)
from builtin_plugins.routes.common.request_ids import engine_id, with_client_id
from builtin_plugins.routes.common.requests import (
    ModelChoice,
    choose_model,
    describe_failure,
    now,
    respond,
)
from builtin_plugins.routes.common.restored_runs import record_run, recorded_run, restore_runs
from builtin_plugins.routes.common.run_ledger import RecordedRun, RunLedger
from builtin_plugins.routes.common.streams import EventStream, typed_event, while_connected
from builtin_plugins.routes.responses.answers import ResponseAnswers, ResponseJob
from builtin_plugins.routes.responses.fields import (
    INCLUDABLE,
    OTHERS,
    InputFields,
    ResponsesFields,
    Tool,
)
from builtin_plugins.routes.responses.reading import (
    MAX_REFERENCES,
    item_id,
    items_of,
    messages_of,
    references,
    response_format,
    with_client_names,
    with_placeholders,
)
from builtin_plugins.routes.responses.served_tools import Offer, ToolRounds, ToolServers
from builtin_plugins.routes.responses.session import Session, check_call_outputs
from builtin_plugins.routes.responses.store import ResponseStore
from builtin_plugins.routes.responses.stored import (
    StoredResponses,
    as_json,
    chain_items,
)
from builtin_plugins.routes.responses.table_reader import StoredResponse
from builtin_plugins.routes.responses.tools import SKIPPED_TOOL_TYPES, RequestTools
from builtin_plugins.routes.responses.writing import ResponseWriter
from core.api import TOO_LONG, InvalidRequest, SamplingParams
from core.api.serving import ServedEngine

PATH: Final = "/v1/responses"


class Responses:
    """Endpoints `/v1/responses` and `/v1/responses/input_tokens`."""

    def __init__(
        self,
        engine: ServedEngine,
        pipeline: ChatPipeline,
        store: ResponseStore,
        runs: EventRuns,
        stored: StoredResponses,
        *,
        strict: bool,
        cached_details: bool,
        image_placeholder: str | None = None,
        resume_s: float = 0.0,
        ledger: RunLedger | None = None,
        tool_servers: ToolServers | None = None,
    ) -> None:
        """`resume_s`: seconds for which streams go on without their client."""
        self._engine = engine
        self._pipeline = pipeline
        self._answers = ResponseAnswers(pipeline, store, runs, resume_s)
        self._store = store
        self._runs = runs
        self._stored = stored
        self._strict = strict
        self._cached_details = cached_details
        self._image_placeholder = image_placeholder
        self._resume_s = resume_s
        self._ledger = ledger
        self._tool_servers = tool_servers or ToolServers(())
        self._is_one_of_several = (engine.config.options.get("api_server_count") or 1) > 1

    async def create(self, request: Request, session: Session | None = None) -> Any:
        """An answer, whole, streamed or made in the background.

        `session` holds the response that it may continue, in addition to the stored ones.
        """
        parsed = await OTHERS.read(
            request,
            ResponsesFields,
            self._engine.fields,
            strict=self._strict,
            modalities=served_modalities(self._engine),
        )
        fields = parsed.fields
        if fields.background and self._is_one_of_several:
            raise _background_refused()
        model = await choose_model(self._engine, fields.model)
        recorded: RecordedRun | None = None
        try:
            tools, offer = await self._tool_servers.read(fields)
            if tools.ignored and self._strict:
                raise InvalidRequest(
                    tools.ignored[0],
                    "is served by OpenAI only, and --strict-fields ignores nothing.",
                )
            headers = parsed.headers_with(tools.ignored)
            is_detached = self._resume_s > 0 and session is None
            recorded = recorded_run(request)
            if (
                recorded is None
                and offer is None
                and (fields.background or (is_detached and fields.stream))
            ):
                recorded = self._record(request, parsed)
            job = partial(self._job, request, parsed, model, tools, session, recorded, offer)
            if fields.background:
                return await self._answers.start_in_background(request, job, fields, headers)
            writes_to = None if is_detached else request
            return await respond(
                request,
                job,
                stream=fields.stream,
                whole=self._answers.whole,
                events=lambda job: self._answers.events(job, FastStream(self._engine, writes_to)),
                headers=lambda job: (
                    parsed.headers_with((*tools.ignored, *job.chat.ignored)) | job.chat.headers
                ),
                detached=partial(self._answers.detached, request) if is_detached else None,
            )
        except BaseException as error:
            if recorded is not None and not self._is_running(recorded):
                recorded.close()
            if not isinstance(error, InvalidRequest):
                raise
            refused = with_client_names(error, forced=fields.tool_choice not in ("none", "auto"))
            if refused.code == TOO_LONG and fields.stream and not fields.background:
                return EventStream(_too_long(fields, model.name, refused), parsed.headers)
            raise refused from None

    async def restore(self) -> None:
        """Continue the answers of an API process that has died."""
        if self._ledger is not None:
            self._restored = await restore_runs(self._ledger, self._runs, PATH, self.create)

    def _record(self, request: Request, parsed: ParsedBody[ResponsesFields]) -> RecordedRun | None:
        """Record a request, so that the next API process can continue its answer."""
        answer_id = _new_response_id()
        return record_run(
            self._ledger,
            request,
            lambda: {**parsed.others, **msgspec.to_builtins(parsed.fields)},
            answer_id=answer_id,
            run_id=engine_id(with_client_id(answer_id, request.headers)),
            created=now(),
        )

    def _is_running(self, recorded: RecordedRun) -> bool:
        opened = recorded.opened
        return self._runs.running(opened.owner, opened.answer_id) is not None

    async def count(self, request: Request) -> Response:
        """The number of input tokens of a request."""
        parsed = await OTHERS.read(
            request,
            InputFields,
            self._engine.fields,
            strict=self._strict,
            modalities=served_modalities(self._engine),
        )
        fields = parsed.fields
        await choose_model(self._engine, fields.model)
        try:
            tools, _ = await self._tool_servers.read(fields)
            chain = await self._chain(request, fields, None)
            conversation, _ = await self._conversation(request, fields, parsed.others, tools, chain)
            count = await while_connected(request, self._pipeline.count(conversation))
        except InvalidRequest as error:
            raise with_client_names(error, forced=False) from None
        return as_json({"object": "response.input_tokens", "input_tokens": count}, parsed.headers)

    async def complete(
        self, request: Request, parsed: ParsedBody[ResponsesFields]
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return a whole response that is not stored, and the items of its input."""
        model = await choose_model(self._engine, parsed.fields.model)
        tools = RequestTools.of([], "none")
        try:
            job = await while_connected(
                request, self._job(request, parsed, model, tools, Session())
            )
            release_body(request)
            return await while_connected(request, self._answers.whole(job)), job.items
        except InvalidRequest as error:
            raise with_client_names(error, forced=False) from None

    # --- requests

    async def _job(
        self,
        request: Request,
        parsed: ParsedBody[ResponsesFields],
        model: ModelChoice,
        tools: RequestTools,
        session: Session | None = None,
        recorded: RecordedRun | None = None,
        offer: Offer | None = None,
    ) -> ResponseJob:
        fields = parsed.fields
        _check(fields)
        chain = await self._chain(request, fields, session)
        conversation, items = await self._conversation(request, fields, parsed.others, tools, chain)
        if session is not None and fields.previous_response_id:
            check_call_outputs(items, chain_items(chain))
        conversation.keywords = {**conversation.keywords, **model.keywords}
        conversation.overrides = {**conversation.overrides, **_overrides(fields)}
        # Deltas, to assign log-probabilities to texts, or for readers of a background stream.
        conversation.stream = fields.stream or fields.background or _has_logprobs(fields)
        before = replace(conversation)  # rendering changes it
        chat = await self._pipeline.prepare(conversation)
        fields.input = []  # it may be large, and the answer may take long
        response = _response(fields, model.name, chat.sampling)
        if recorded is not None:
            opened = recorded.opened
            response |= {"id": opened.answer_id, "created_at": opened.created}
        writer = ResponseWriter(
            response,
            tools.known,
            include=fields.include,
            num_top=fields.top_logprobs or 0,
            cached_details=self._cached_details,
            make_id=None if recorded is None else partial(_recorded_id, recorded),
        )
        response_id = response["id"]
        is_stored = fields.store
        if is_stored and not fields.background:
            is_stored = await self._store.add(
                owner_name(request), response_id, items, fields.previous_response_id
            )
            writer.response["store"] = is_stored
        failure = partial(describe_failure, request)

        def new_run_id() -> str:
            return engine_id(with_client_id(response_id, request.headers))

        return ResponseJob(
            chat=chat,
            writer=writer,
            run_id=new_run_id() if recorded is None else recorded.opened.run_id,
            is_stored=is_stored,
            session=session,
            chain=() if session is None else chain,
            items=items if fields.background or session is not None else [],
            failure=failure,
            recorded=recorded,
            rounds=None
            if offer is None
            else ToolRounds(self._pipeline, before, offer, fields.max_tool_calls, new_run_id),
        )

    async def _chain(
        self, request: Request, fields: InputFields, session: Session | None
    ) -> list[StoredResponse]:
        """Return the responses that a request continues. Raises a 404 for an unknown one."""
        previous = fields.previous_response_id
        if not previous:
            return []
        held = None if session is None else session.chain(previous)
        if held is not None:
            return held
        return await self._stored.read(request, previous, "previous_response_id")

    async def _conversation(
        self,
        request: Request,
        fields: InputFields,
        others: Mapping[str, Any],
        tools: RequestTools,
        chain: list[StoredResponse],
    ) -> tuple[Conversation, list[dict[str, Any]]]:
        """Return the conversation of a request after a chain, and the items of its input."""
        if self._image_placeholder is not None:
            fields.input = with_placeholders(fields.input, self._image_placeholder)
        referred = references(fields.input)
        if len(referred) > MAX_REFERENCES:
            raise InvalidRequest(
                "input",
                f"refers to {len(referred)} items, at most {MAX_REFERENCES} are allowed.",
            )
        referenced = await self._store.items(owner_name(request), referred, reserve_bytes(request))
        items, messages = await asyncio.to_thread(_read, fields, chain, referenced)
        conversation = _conversation(request, fields, others, tools, messages)
        conversation.keywords = feature_fields(others, self._engine.fields, request)
        return conversation, items


def _conversation(
    request: Request,
    fields: InputFields,
    others: Mapping[str, Any],
    tools: RequestTools,
    messages: list[dict[str, Any]],
) -> Conversation:
    return Conversation(
        messages=messages,
        tools=tools.functions,
        tool_choice=tools.choice,
        parallel_tool_calls=fields.parallel_tool_calls,
        sampling={**sampling_fields(others), **response_format(fields)},
        overrides={"truncate_prompt_tokens": -1} if fields.truncation == "auto" else {},
        plugin_args=fields.vllm_xargs,
        template_kwargs=fields.chat_template_kwargs,
        effort=fields.reasoning.effort if fields.reasoning else None,
        effort_field="reasoning.effort",
        priority=fields.priority,
        cache_salt=fields.cache_salt,
        client=client_name(request),
        reserve=reserve_bytes(request),
    )


def _read(
    fields: InputFields, chain: list[StoredResponse], referenced: Mapping[str, dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the items of a request, and the messages of the whole conversation."""
    items = items_of(fields.input, referenced)
    stored = chain_items(chain)
    return items, messages_of(fields.instructions, [*stored, *items], len(stored))


def _background_refused() -> InvalidRequest:
    return InvalidRequest(
        "background",
        "got true; expected false on a server with several API servers "
        "(--api-server-count), of which one would know the running answer. Stream it.",
    )


def _has_logprobs(fields: ResponsesFields) -> bool:
    return bool(fields.top_logprobs) or "message.output_text.logprobs" in fields.include


def _overrides(fields: ResponsesFields) -> dict[str, Any]:
    """Return the sampling parameters that have other names in this protocol."""
    found: dict[str, Any] = {}
    if _has_logprobs(fields):
        found["logprobs"] = fields.top_logprobs or 0
    if fields.max_output_tokens is not None:
        found["max_tokens"] = fields.max_output_tokens
    return found


def _check(fields: ResponsesFields) -> None:
    """Raise `InvalidRequest` for conflicting fields."""
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
            "background", "needs `store`: a response that is not stored could not be fetched."
        )


async def _too_long(
    fields: ResponsesFields, model: str, error: InvalidRequest
) -> AsyncGenerator[bytes]:
    """Yield the stream of a request with too long an input; Codex reacts to it by compacting."""
    response = _response(fields, model, SamplingParams())
    writer = ResponseWriter(response, {}, include=(), num_top=0, cached_details=False)
    for data in (*writer.write(AnswerStarted(0, 0)), *writer.fail(error.code, str(error))):
        yield typed_event(data)


def _response(fields: ResponsesFields, model: str, sampling: SamplingParams) -> dict[str, Any]:
    """Return the response without an output; it repeats the fields of the request."""
    return {
        "id": _new_response_id(),
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
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "safety_identifier": fields.safety_identifier,
        "service_tier": "default",
        "store": fields.store,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"}} | msgspec.to_builtins(fields.text or {}),
        "tool_choice": msgspec.to_builtins(fields.tool_choice),
        "tools": [_tool(tool) for tool in fields.tools if tool.type not in SKIPPED_TOOL_TYPES],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": fields.truncation,
        "usage": None,
        "user": fields.user,
    }


def _new_response_id() -> str:
    return f"resp_{secrets.token_hex(24)}"


def _recorded_id(recorded: RecordedRun, kind: str) -> str:
    """Return the id of the next item of a recorded answer."""
    return item_id(kind, recorded.next_id())


def _tool(tool: Tool) -> dict[str, Any]:
    fields = {name: value for name, value in msgspec.to_builtins(tool).items() if value is not None}
    return {"parameters": None, "strict": None, **fields} if tool.type == "function" else fields
