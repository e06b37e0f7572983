"""`POST /v1/chat/completions`: the next message of a conversation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request

from builtin_plugins.routes.body import client_of, read_request
from builtin_plugins.routes.conversation.asked import Conversation
from builtin_plugins.routes.conversation.fields import as_typed
from builtin_plugins.routes.conversation.pipeline import Choice, Conversations, Turn
from builtin_plugins.routes.conversation.running import (
    Chosen,
    answered,
    choose_model,
    engine_id,
    last,
    now,
)
from builtin_plugins.routes.conversation.structured import typed_fields
from builtin_plugins.routes.openai.answers import (
    AnswerHead,
    AnswerOptions,
    Usage,
    answer_id,
    check_beams,
    check_stream_options,
    handed_on,
    shows_usage,
)
from builtin_plugins.routes.openai.fields import OTHER_FIELDS, ChatFields, read_others
from builtin_plugins.routes.openai.logprobs import chat_logprobs, prompt_logprobs
from builtin_plugins.routes.short_way import ShortWay
from builtin_plugins.routes.streams import DONE, event, event_with_text
from core.api import (
    ArgumentsPiece,
    CallBegun,
    CompletionOutput,
    InvalidRequest,
    Piece,
    ReasoningPiece,
    RequestOutput,
    TextPiece,
)

_OTHERS = OTHER_FIELDS - {"logprobs"}  # a switch here, a number among the sampling parameters


@dataclass(frozen=True, slots=True)
class _Job:
    """One chat request, checked and rendered."""

    head: AnswerHead
    fields: ChatFields
    turn: Turn
    role: str
    echo: str
    """Text of the last message, where the answer repeats it."""
    tokens_as_ids: bool


class ChatCompletions:
    """The endpoint."""

    def __init__(self, engine: Any, options: AnswerOptions, conversations: Conversations) -> None:
        self._engine = engine
        self._options = options
        self._conversations = conversations

    async def __call__(self, request: Request) -> Any:
        """Answer one request, streamed or whole."""
        parsed = await read_request(
            request,
            ChatFields,
            _OTHERS | self._engine.fields.read,
            strict=self._options.strict_fields,
        )
        fields = parsed.fields
        kind = "chat.completion.chunk" if fields.stream else "chat.completion"
        model = await choose_model(self._engine, fields.model)
        head = AnswerHead(answer_id(request, fields, "chatcmpl"), kind, now(), model.name)

        try:
            return await answered(
                request,
                partial(self._job, head, model, fields, parsed.others, client_of(request)),
                stream=fields.stream,
                whole=self._whole,
                events=lambda job: self._events(job, ShortWay(self._engine, request)),
                headers=parsed.headers,
            )
        except InvalidRequest as error:
            forced = fields.tool_choice not in (None, "none", "auto")
            typed = {
                "prompt": "messages",
                "sampling_params": "model",
                "extra_args": "vllm_xargs",
                **typed_fields(parsed.others, forced=forced),
            }
            raise as_typed(error, typed) from None

    async def _job(
        self,
        head: AnswerHead,
        model: Chosen,
        fields: ChatFields,
        others: dict[str, Any],
        client: str,
    ) -> _Job:
        given = {**read_others(others, self._engine.fields), **model.keywords}
        check_stream_options(fields)
        check_beams(fields)
        if fields.stream and "prompt_logprobs" in others:
            raise InvalidRequest("prompt_logprobs", "cannot be streamed; set `stream` to false.")
        if fields.chat_template is not None and not self._options.trust_chat_template:
            raise InvalidRequest(
                "chat_template",
                "is not taken from requests; --trust-request-chat-template allows it.",
            )
        turn = await self._conversations.turn(self._asked(fields, others, client, given))
        generates = fields.add_generation_prompt is not False and not fields.continue_final_message
        last_message = fields.messages[-1]
        same_role = last_message.get("role") == self._options.response_role
        echo = last_message.get("content") if fields.echo and same_role else ""
        fields.messages = []  # they may be large, and the answer may take long
        as_ids = fields.return_tokens_as_token_ids
        return _Job(
            head=head,
            fields=fields,
            turn=turn,
            role=self._options.response_role if generates else str(last_message.get("role")),
            echo=echo if isinstance(echo, str) else "",
            tokens_as_ids=self._options.tokens_as_ids if as_ids is None else as_ids,
        )

    def _asked(
        self, fields: ChatFields, others: dict[str, Any], client: str, given: Mapping[str, Any]
    ) -> Conversation:
        """Return what a request asks, in the words that all protocols share."""
        kwargs = dict(fields.chat_template_kwargs)
        if fields.reasoning_effort is not None:
            kwargs.setdefault("reasoning_effort", fields.reasoning_effort)
        if fields.documents:
            kwargs["documents"] = fields.documents
        return Conversation(
            messages=fields.messages,
            tools=fields.tools,
            tool_choice=fields.tool_choice,
            parallel_tool_calls=fields.parallel_tool_calls,
            sampling=others,
            decided=_decided(fields),
            plugin_args=fields.vllm_xargs,
            thinking_token_budget=fields.thinking_token_budget,
            template_kwargs=kwargs,
            chat_template=fields.chat_template,
            add_generation_prompt=fields.add_generation_prompt,
            continue_final_message=fields.continue_final_message,
            add_special_tokens=fields.add_special_tokens,
            beams=fields.length_penalty if fields.use_beam_search else None,
            stream=fields.stream,
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            client=client,
            given=given,
        )

    async def _whole(self, job: _Job) -> dict[str, Any]:
        output = await last(self._conversations.outputs(job.turn, engine_id(job.head.id)))
        usage = Usage(self._options.cached_details)
        usage.count(0, output)
        choices = []
        for completion in output.outputs:
            read = job.turn.begin()
            message: dict[str, Any] = {"role": job.role, "content": None, "refusal": None}
            message |= _delta(read.take(completion), reasoning=job.fields.include_reasoning)
            for call in message.get("tool_calls", ()):
                del call["index"]  # for streams alone
            if job.echo:
                message["content"] = job.echo + (message["content"] or "")
            choices.append(self._choice(job, completion, "message", message, read))
        more: dict[str, Any] = handed_on([output])
        if job.turn.sampling.prompt_logprobs is not None:
            more["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if job.fields.return_token_ids:
            more["prompt_token_ids"] = output.prompt_token_ids
        return job.head.with_choices(choices, usage=usage.as_json(), **more)

    async def _events(self, job: _Job, way: ShortWay) -> AsyncGenerator[bytes]:
        events = _Events(job, self._options, self._choice)
        run_id = engine_id(job.head.id)
        async with aclosing(
            way.events(run_id, self._conversations.outputs(job.turn, run_id), events)
        ) as told:
            async for data in told:
                yield data
        yield events.last()

    def _choice(
        self,
        job: _Job,
        completion: CompletionOutput,
        form: str,
        message: dict[str, Any],
        read: Choice,
    ) -> dict[str, Any]:
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
            "finish_reason": read.finish_reason(completion),
            "stop_reason": completion.stop_reason,
        }
        if job.fields.return_token_ids:
            choice["token_ids"] = list(completion.token_ids)
        return choice


class _Events:
    """Makes the events of one streamed answer."""

    def __init__(
        self, job: _Job, options: AnswerOptions, choice: Callable[..., dict[str, Any]]
    ) -> None:
        self._job = job
        self._choice = choice
        self._usage = Usage(options.cached_details)
        self._final, self._always = shows_usage(job.fields, options)
        self._begun = False
        self._plain = not (self._always or job.fields.return_token_ids)
        self._reading = [job.turn.begin() for _ in range(job.turn.sampling.n)]
        self._saying: dict[int, Callable[[str], bytes]] = {}
        """By choice, what makes an event of nothing but some text."""

    def of(self, output: RequestOutput) -> bytes:
        """Return the events of an output."""
        self._usage.count(0, output)
        told = b"" if self._begun else self._opening(output)
        for completion in output.outputs:
            if completion.token_ids or completion.text or completion.finish_reason is not None:
                told += self._event(completion)
        return told

    def more(self, completion: CompletionOutput) -> bytes:
        """Return the event of what is new of a choice, if it is to be told."""
        self._usage.generated[0, completion.index] = completion.num_tokens
        return self._event(completion)

    @property
    def _more(self) -> dict[str, Any]:
        return {"usage": self._usage.as_json() if self._always else None} if self._final else {}

    def _opening(self, output: RequestOutput) -> bytes:
        self._begun = True
        job = self._job
        ids = {"prompt_token_ids": output.prompt_token_ids} if job.fields.return_token_ids else {}
        choices = [_opening(job, index) for index in range(job.turn.sampling.n)]
        return event(job.head.with_choices(choices, **ids, **self._more))

    def _event(self, completion: CompletionOutput) -> bytes:
        job = self._job
        index = completion.index
        read = self._reading[completion.index]
        pieces = read.take(completion)
        is_last = completion.finish_reason is not None
        told = completion.logprobs or job.fields.return_token_ids
        if (
            self._plain
            and not (is_last or told)
            and len(pieces) == 1
            and isinstance(pieces[0], TextPiece)
        ):
            if index not in self._saying:
                same = self._choice(job, completion, "delta", {"content": ""}, read)
                self._saying[index] = event_with_text(
                    job.head.with_choices([same], **self._more), "content"
                )
            return self._saying[index](pieces[0].text)
        delta = _delta(pieces, reasoning=job.fields.include_reasoning)
        if not (delta or is_last or told):
            return b""
        return event(
            job.head.with_choices(
                [self._choice(job, completion, "delta", delta, read)], **self._more
            )
        )

    def last(self) -> bytes:
        """Return what ends the stream."""
        told = (
            event(self._job.head.with_choices([], usage=self._usage.as_json()))
            if self._final
            else b""
        )
        return told + DONE


def _decided(fields: ChatFields) -> dict[str, Any]:
    """Return the sampling parameters that chat requests have under other names."""
    if fields.top_logprobs is not None and not fields.logprobs:
        raise InvalidRequest("top_logprobs", "needs `logprobs` set to true.")
    decided: dict[str, Any] = {"logprobs": (fields.top_logprobs or 0) if fields.logprobs else None}
    if fields.max_completion_tokens is not None:
        if fields.max_completion_tokens < 1:
            raise InvalidRequest(
                "max_completion_tokens", f"must be at least 1, not {fields.max_completion_tokens}."
            )
        decided["max_tokens"] = fields.max_completion_tokens
    return decided


def _delta(pieces: Sequence[Piece], *, reasoning: bool) -> dict[str, Any]:
    """Return the fields of a message, or of a chunk's delta, that some pieces make."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        match piece:
            case TextPiece(text):
                message["content"] = message.get("content", "") + text
            case ReasoningPiece(text) if reasoning:
                message["reasoning"] = message.get("reasoning", "") + text
            case CallBegun(index, name, call_id):
                begun = {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                }
                calls[index] = {"index": index, **begun}
            case ArgumentsPiece(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    if "reasoning" in message:
        message["reasoning_content"] = message["reasoning"]
    return message | ({"tool_calls": list(calls.values())} if calls else {})


def _opening(job: _Job, index: int) -> dict[str, Any]:
    """Return the first chunk of a choice: who speaks, and the text it goes on from."""
    delta = {"role": job.role, "content": job.echo}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
