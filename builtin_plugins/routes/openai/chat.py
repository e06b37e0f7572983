"""`POST /v1/chat/completions`: the next message of a conversation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
from fastapi import HTTPException
from starlette.requests import Request

from builtin_plugins.output_parsers.api import (
    ArgumentsPiece,
    CallBegun,
    Piece,
    ReasoningPiece,
    TextPiece,
)
from builtin_plugins.routes.common.body import (
    client_name,
    owner_name,
    read_request,
    reserve_bytes,
)
from builtin_plugins.routes.common.conversation import Conversation
from builtin_plugins.routes.common.custom_tools import (
    NOT_HELD,
    CustomCalls,
    add_function_piece,
    as_functions,
    chosen_functions,
)
from builtin_plugins.routes.common.event_runs import EventRun, EventRuns, event_number
from builtin_plugins.routes.common.fast_stream import FastStream
from builtin_plugins.routes.common.fields import with_client_field
from builtin_plugins.routes.common.media_parts import served_modalities
from builtin_plugins.routes.common.pipeline import ChatPipeline, ChoiceParser, PreparedChat
from builtin_plugins.routes.common.request_ids import engine_id
from builtin_plugins.routes.common.requests import (
    ModelChoice,
    choose_model,
    final_output,
    now,
    respond,
)
from builtin_plugins.routes.common.restored_runs import record_run, recorded_run, restore_runs
from builtin_plugins.routes.common.run_ledger import RecordedRun, RunLedger
from builtin_plugins.routes.common.sampling import structured_output_fields
from builtin_plugins.routes.common.streams import DONE, EventStream, event, text_event_template
from builtin_plugins.routes.openai.answers import (
    AnswerHead,
    AnswerOptions,
    Usage,
    answer_id,
    check_beam_fields,
    check_stream_options,
    extension_fields,
    usage_options,
)
from builtin_plugins.routes.openai.fields import OTHER_FIELDS, ChatFields, read_others
from builtin_plugins.routes.openai.logprobs import chat_logprobs, prompt_logprobs
from builtin_plugins.routes.openai.mending import mend_messages
from core.api import CompletionOutput, InvalidRequest, RequestOutput
from core.api.serving import ServedEngine

PATH: Final = "/v1/chat/completions"
_OTHERS = OTHER_FIELDS - {"logprobs"}  # a bool here; the sampling parameter is a number


@dataclass(frozen=True, slots=True)
class _Job:
    """One checked and rendered chat request."""

    head: AnswerHead
    fields: ChatFields
    chat: PreparedChat
    role: str
    echo: str
    """Text of the last message that the answer repeats; empty for none."""
    tokens_as_ids: bool
    custom_names: frozenset[str] = frozenset()
    """Names of the tools that take a text."""
    ignored: tuple[str, ...] = ()
    recorded: RecordedRun | None = None


class ChatCompletions:
    """Endpoint `/v1/chat/completions`."""

    def __init__(
        self,
        engine: ServedEngine,
        options: AnswerOptions,
        pipeline: ChatPipeline,
        runs: EventRuns,
        ledger: RunLedger | None = None,
    ) -> None:
        self._engine = engine
        self._options = options
        self._pipeline = pipeline
        self._runs = runs
        self._ledger = ledger

    async def __call__(self, request: Request) -> Any:
        """Answer one request, streamed or whole."""
        parsed = await read_request(
            request,
            ChatFields,
            _OTHERS | self._engine.fields.read,
            strict=self._options.strict_fields,
            mend=mend_messages,
            modalities=served_modalities(self._engine),
        )
        fields = parsed.fields
        kind = "chat.completion.chunk" if fields.stream else "chat.completion"
        model = await choose_model(self._engine, fields.model)
        head = AnswerHead(answer_id(request, fields, "chatcmpl"), kind, now(), model.name)

        owner = owner_name(request)
        # Ids of clients may be in use.
        is_detached = self._options.resume_s > 0 and self._runs.running(owner, head.id) is None
        writes_to = None if is_detached else request
        recorded = recorded_run(request)
        if recorded is not None:
            head = replace(head, id=recorded.opened.answer_id, created=recorded.opened.created)
        elif is_detached and fields.stream and request.scope["path"] == PATH:
            recorded = record_run(
                self._ledger,
                request,
                lambda: {**parsed.others, **msgspec.to_builtins(fields)},
                answer_id=head.id,
                run_id=engine_id(head.id),
                created=head.created,
            )
        try:
            return await respond(
                request,
                partial(self._job, head, model, fields, parsed.others, request, recorded),
                stream=fields.stream,
                whole=self._whole,
                events=lambda job: self._events(job, FastStream(self._engine, writes_to)),
                headers=lambda job: (
                    parsed.headers_with((*job.ignored, *job.chat.ignored)) | job.chat.headers
                ),
                detached=partial(self._detached, owner) if is_detached else None,
            )
        except BaseException as error:
            if recorded is not None and self._runs.running(owner, head.id) is None:
                recorded.close()
            if not isinstance(error, InvalidRequest):
                raise
            forced = fields.tool_choice not in (None, "none", "auto")
            names = {
                "prompt": "messages",
                "logprobs": "top_logprobs",
                "sampling_params": "model",
                "extra_args": "vllm_xargs",
                **structured_output_fields(parsed.others, forced=forced),
            }
            raise with_client_field(error, names) from None

    async def restore(self) -> None:
        """Continue the streams of an API process that has died."""
        if self._ledger is not None:
            self._restored = await restore_runs(self._ledger, self._runs, PATH, self)

    async def resume(self, request: Request) -> EventStream:
        """The events of a streamed answer after `Last-Event-ID`, or `starting_after`."""
        completion_id = request.path_params["completion_id"]
        run = self._runs.get(owner_name(request), completion_id)
        if run is None:
            message = f"no stream {completion_id[:250]!r} is held."
            detail = {"message": message, "param": "completion_id", "code": "stream_not_found"}
            raise HTTPException(404, detail)
        field = "Last-Event-ID"
        last = request.headers.get(field)
        if last is None:
            field = "starting_after"
            last = request.query_params.get(field, "-1")
        start = event_number(last, field) + 1
        run.check(start)
        return EventStream(run.events(start, numbered=True))

    def _detached(
        self, owner: str, job: _Job, events: AsyncGenerator[bytes]
    ) -> AsyncGenerator[bytes]:
        """Start a streamed answer that outlives its connection; return its events."""
        run = EventRun(owner, job.head.id, resume_s=self._options.resume_s)
        if job.recorded is not None:
            run.on_end = job.recorded.close
        self._runs.start_stream(run, events)
        return run.events(numbered=True)

    async def _job(
        self,
        head: AnswerHead,
        model: ModelChoice,
        fields: ChatFields,
        others: dict[str, Any],
        request: Request,
        recorded: RecordedRun | None = None,
    ) -> _Job:
        keywords = {**read_others(others, self._engine.fields, request), **model.keywords}
        check_stream_options(fields)
        check_beam_fields(fields)
        if fields.stream and "prompt_logprobs" in others:
            raise InvalidRequest("prompt_logprobs", "cannot be streamed; set `stream` to false.")
        if fields.chat_template is not None and not self._options.trust_chat_template:
            raise InvalidRequest(
                "chat_template",
                "is not taken from requests; --trust-request-chat-template allows it.",
            )
        fields.tools, custom_names, ignored = as_functions(fields.tools)
        if ignored and self._options.strict_fields:
            raise InvalidRequest(ignored[0], f"{NOT_HELD}, and --strict-fields ignores nothing.")
        fields.tools, fields.tool_choice = chosen_functions(fields.tools, fields.tool_choice)
        conversation = self._conversation(fields, others, keywords)
        conversation.client = client_name(request)
        conversation.reserve = reserve_bytes(request)
        chat = await self._pipeline.prepare(conversation)
        is_new = fields.add_generation_prompt is not False and not fields.continue_final_message
        last_message = fields.messages[-1]
        same_role = last_message.get("role") == self._options.response_role
        echo = last_message.get("content") if fields.echo and same_role else ""
        fields.messages = []  # they may be large, and the answer may take long
        as_ids = fields.return_tokens_as_token_ids
        return _Job(
            head=head,
            fields=fields,
            chat=chat,
            role=self._options.response_role if is_new else str(last_message.get("role")),
            echo=echo if isinstance(echo, str) else "",
            tokens_as_ids=self._options.tokens_as_ids if as_ids is None else as_ids,
            custom_names=custom_names,
            ignored=ignored,
            recorded=recorded,
        )

    def _conversation(
        self, fields: ChatFields, others: dict[str, Any], keywords: Mapping[str, Any]
    ) -> Conversation:
        """Return the conversation of a request, in the form that all protocols share."""
        kwargs = dict(fields.chat_template_kwargs)
        if fields.documents:
            kwargs["documents"] = fields.documents
        return Conversation(
            messages=fields.messages,
            tools=fields.tools,
            tool_choice=fields.tool_choice,
            parallel_tool_calls=fields.parallel_tool_calls,
            sampling=others,
            overrides=_sampling_overrides(fields),
            plugin_args=fields.vllm_xargs,
            thinking_token_budget=fields.thinking_token_budget,
            template_kwargs=kwargs,
            effort=fields.reasoning_effort,
            chat_template=fields.chat_template,
            add_generation_prompt=fields.add_generation_prompt,
            continue_final_message=fields.continue_final_message,
            add_special_tokens=fields.add_special_tokens,
            beams=fields.length_penalty if fields.use_beam_search else None,
            stream=fields.stream,
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            keywords=keywords,
        )

    async def _whole(self, job: _Job) -> dict[str, Any]:
        output = await final_output(self._pipeline.outputs(job.chat, engine_id(job.head.id)))
        usage = Usage(self._options)
        usage.count(0, output)
        choices = []
        parsers = [job.chat.choice_parser() for _ in output.outputs]
        for completion, parser in zip(output.outputs, parsers, strict=True):
            message: dict[str, Any] = {"role": job.role, "content": None, "refusal": None}
            calls = CustomCalls(job.custom_names) if job.custom_names else None
            pieces = parser.parse(completion)
            message |= _delta(pieces, calls, reasoning=job.fields.include_reasoning, is_last=True)
            for call in message.get("tool_calls", ()):
                del call["index"]  # only streams have it
            if job.echo:
                message["content"] = job.echo + (message["content"] or "")
            choices.append(self._choice(job, completion, "message", message, parser))
        await job.chat.check_calls()
        usage.reasoning_tokens = await self._pipeline.reasoning_tokens(job.chat, parsers)
        more: dict[str, Any] = extension_fields([output]) | usage.metrics()
        if job.chat.sampling.prompt_logprobs is not None:
            more["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if job.fields.return_token_ids:
            more["prompt_token_ids"] = output.prompt_token_ids
        return job.head.with_choices(choices, usage=usage.as_json(), **more)

    async def _events(self, job: _Job, stream: FastStream) -> AsyncGenerator[bytes]:
        encoder = _ChunkEncoder(job, self._options, self._choice)
        recorded = job.recorded
        run_id = engine_id(job.head.id) if recorded is None else recorded.opened.run_id
        outputs = self._pipeline.outputs(job.chat, run_id, recorded)
        async with aclosing(stream.events(run_id, outputs, encoder)) as events:
            async for data in events:
                yield data
        yield encoder.finish(await self._pipeline.reasoning_tokens(job.chat, encoder.parsers))

    def _choice(
        self,
        job: _Job,
        completion: CompletionOutput,
        form: str,
        message: dict[str, Any],
        parser: ChoiceParser,
    ) -> dict[str, Any]:
        """Return one choice; `form` is the field of its message: `message` or `delta`."""
        logprobs = None
        if completion.logprobs is not None:
            logprobs = chat_logprobs(
                completion.token_ids,
                completion.logprobs,
                num_top=job.fields.top_logprobs or 0,
                as_ids=job.tokens_as_ids,
            )
        choice = {
            "index": completion.index,
            form: message,
            "logprobs": logprobs,
            "finish_reason": parser.finish_reason(completion),
            "stop_reason": completion.stop_reason,
        }
        if job.fields.return_token_ids:
            choice["token_ids"] = list(completion.token_ids)
        return choice


class _ChunkEncoder:
    """Encodes one streamed answer as chunks."""

    def __init__(
        self, job: _Job, options: AnswerOptions, choice: Callable[..., dict[str, Any]]
    ) -> None:
        self._job = job
        self._choice = choice
        self._usage = Usage(options)
        self._final, self._always = usage_options(job.fields, options)
        self._is_started = False
        self._plain = not (self._always or job.fields.return_token_ids)
        """Whether chunks of mere text differ only in the text."""
        self.parsers: Final = [
            job.chat.choice_parser(job.recorded) for _ in range(job.chat.sampling.n)
        ]
        self._custom_calls = [
            CustomCalls(job.custom_names) if job.custom_names else None for _ in self.parsers
        ]
        self._encode_text: dict[int, Callable[[str], bytes]] = {}
        """Encoder of a chunk of mere text, by choice."""

    def encode_output(self, output: RequestOutput) -> bytes:
        """Return the chunks of an output."""
        self._usage.count(0, output)
        encoded = b"" if self._is_started else self._first_chunk(output)
        for completion in output.outputs:
            if completion.token_ids or completion.text or completion.finish_reason is not None:
                encoded += self._chunk(completion)
        return encoded

    def encode_delta(self, completion: CompletionOutput) -> bytes:
        """Return the chunk of a choice's new text; empty if it has no visible effect."""
        self._usage.generated[0, completion.index] = completion.num_tokens
        return self._chunk(completion)

    @property
    def _usage_field(self) -> dict[str, Any]:
        if not self._final:
            return {}
        return {"usage": self._usage.as_json() if self._always else None}

    def _first_chunk(self, output: RequestOutput) -> bytes:
        self._is_started = True
        job = self._job
        ids = {"prompt_token_ids": output.prompt_token_ids} if job.fields.return_token_ids else {}
        choices = [_first_choice(job, index) for index in range(job.chat.sampling.n)]
        return event(job.head.with_choices(choices, **ids, **self._usage_field))

    def _chunk(self, completion: CompletionOutput) -> bytes:
        job = self._job
        index = completion.index
        parser = self.parsers[index]
        pieces = parser.parse(completion)
        is_last = completion.finish_reason is not None
        has_tokens = completion.logprobs or job.fields.return_token_ids
        if (
            self._plain
            and not (is_last or has_tokens)
            and len(pieces) == 1
            and isinstance(pieces[0], TextPiece)
        ):
            if index not in self._encode_text:
                empty = self._choice(job, completion, "delta", {"content": ""}, parser)
                self._encode_text[index] = text_event_template(
                    job.head.with_choices([empty], **self._usage_field), "content"
                )
            return self._encode_text[index](pieces[0].text)
        delta = _delta(
            pieces,
            self._custom_calls[index],
            reasoning=job.fields.include_reasoning,
            is_last=is_last,
        )
        if not (delta or is_last or has_tokens):
            return b""
        choice = self._choice(job, completion, "delta", delta, parser)
        return event(job.head.with_choices([choice], **self._usage_field))

    def finish(self, reasoning_tokens: int | None) -> bytes:
        """Return the end of the stream."""
        if not self._final:
            return DONE
        usage = self._usage
        usage.reasoning_tokens = reasoning_tokens
        chunk = self._job.head.with_choices([], usage=usage.as_json(), **usage.metrics())
        return event(chunk) + DONE


def _sampling_overrides(fields: ChatFields) -> dict[str, Any]:
    """Return the sampling parameters that have other names in chat requests."""
    if fields.top_logprobs is not None and not fields.logprobs:
        raise InvalidRequest("top_logprobs", "needs `logprobs` set to true.")
    overrides: dict[str, Any] = {
        "logprobs": (fields.top_logprobs or 0) if fields.logprobs else None
    }
    if fields.max_completion_tokens is not None:
        if fields.max_completion_tokens < 1:
            raise InvalidRequest(
                "max_completion_tokens", f"must be at least 1, not {fields.max_completion_tokens}."
            )
        overrides["max_tokens"] = fields.max_completion_tokens
    return overrides


def _delta(
    pieces: Sequence[Piece], custom_calls: CustomCalls | None, *, reasoning: bool, is_last: bool
) -> dict[str, Any]:
    """Return the fields of a message, or of a chunk's delta, for some pieces."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    add_piece = add_function_piece if custom_calls is None else custom_calls.add_piece
    for piece in pieces:
        match piece:
            case TextPiece(text):
                message["content"] = message.get("content", "") + text
            case ReasoningPiece(text):
                if reasoning:
                    message["reasoning"] = message.get("reasoning", "") + text
            case CallBegun() | ArgumentsPiece():
                add_piece(calls, piece)
    if "reasoning" in message:
        message["reasoning_content"] = message["reasoning"]
    if custom_calls is not None and is_last:
        custom_calls.end_texts(calls)
    if calls:
        message["tool_calls"] = list(calls.values())
    return message


def _first_choice(job: _Job, index: int) -> dict[str, Any]:
    """Return the first chunk's choice: the role, and the echoed text."""
    delta = {"role": job.role, "content": job.echo}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
