"""`/v1/chat/completions/derender` and `/v1/completions/derender`, with `--enable-scale-out`.

They make answers of OpenAI's API from token ids that another engine generated. The endpoints
themselves parse and encode; an engine that repeats the tokens stands in for the one that generated.

A stream is derendered event by event, without a session: the client sends each event with the
state of the one before. The state holds the tokens so far, which are parsed again each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from builtin_plugins.routes.common.body import MAX_CONTEXTS, read_request, release_body
from builtin_plugins.routes.common.event_runs import EventRuns
from builtin_plugins.routes.common.output_formats import OutputFormats
from builtin_plugins.routes.common.pipeline import ChatPipeline
from builtin_plugins.routes.common.requests import choose_model, now
from builtin_plugins.routes.common.schema import body_schema
from builtin_plugins.routes.common.streams import while_connected
from builtin_plugins.routes.common.sub_requests import sub_request
from builtin_plugins.routes.openai.answers import AnswerOptions
from builtin_plugins.routes.openai.chat import ChatCompletions
from builtin_plugins.routes.openai.completions import Completions
from builtin_plugins.routes.tokens.render import CHAT, COMPLETIONS, SWITCH
from builtin_plugins.routes.tokens.replay import (
    Generated,
    GeneratedChoice,
    ReplayEngine,
    TokenId,
    check_tokens,
)
from core.api import EngineConfig, InvalidRequest
from core.api.serving import ServedEngine

_DROPPED: Final = ("stop", "stream_options", "use_beam_search", "best_of", "echo", "request_id")
"""Fields of the first request that have had their effect, or have none here."""


class StreamState(msgspec.Struct, kw_only=True):
    """What a client sends back with the next event of a stream."""

    output_token_ids: list[TokenId] = []
    output_chunk_lens: list[int] = []
    """Number of tokens of each earlier event."""

    def chunks(self) -> list[list[GeneratedChoice]]:
        """Return the earlier events. Raises `InvalidRequest`."""
        lengths = self.output_chunk_lens
        total = len(self.output_token_ids)
        if min(lengths, default=1) < 1 or sum(lengths) != total:
            raise InvalidRequest(
                "stream_state.output_chunk_lens",
                f"got {sum(lengths)} tokens in all; expected positive lengths of {total} tokens.",
            )
        found = []
        start = 0
        for length in lengths:
            tokens = self.output_token_ids[start : start + length]
            found.append([GeneratedChoice(token_ids=tokens)])
            start += length
        return found

    def with_chunk(self, tokens: Sequence[int]) -> StreamState:
        """Return the state after an event."""
        return StreamState(
            output_token_ids=[*self.output_token_ids, *tokens],
            output_chunk_lens=[*self.output_chunk_lens, *([len(tokens)] if tokens else [])],
        )


class DerenderFields(msgspec.Struct, kw_only=True):
    """Fields of both bodies."""

    model: str | None = None
    stream: bool = False
    generate_chunk: Generated | None = None
    """With `stream`: one event of `/inference/v1/generate`."""
    stream_state: StreamState | None = None


class DerenderChatFields(DerenderFields, kw_only=True):
    """Body of `/v1/chat/completions/derender`."""

    generate_response: Generated | None = None
    prompt_tokens: TokenId | None = None
    prompt_token_ids: list[TokenId] | None = None
    """Prompt, or its end: the first token's text depends on it."""
    chat_request: dict[str, Any] | None = None
    """The rendered request; without it the tokens are text without reasoning and calls."""


class DerenderCompletionFields(DerenderFields, kw_only=True):
    """Body of `/v1/completions/derender`."""

    generate_responses: list[Generated] | None = None
    """One answer for each prompt."""
    prompt_tokens: list[TokenId] | TokenId | None = None
    prompt_token_ids: list[list[TokenId] | None] | None = None
    completion_request: dict[str, Any] | None = None


class DerenderRoutes:
    """The routes of one engine; none without `--enable-scale-out`."""

    switch: Final = SWITCH

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._on = bool(config.options.get(self.switch)) and engine.tokenizer is not None
        # Nothing is resumed: each event is a request of its own.
        self._options = replace(AnswerOptions.from_options(config.options), resume_s=0)
        self._formats = OutputFormats.shared(engine, config.options)

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        if not self._on:
            return []
        return [
            Route(f"{CHAT}/derender", self._derender_chat, methods=["POST"]),
            Route(f"{COMPLETIONS}/derender", self._derender_completion, methods=["POST"]),
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        structs: dict[str, type[msgspec.Struct]] = {
            CHAT: DerenderChatFields,
            COMPLETIONS: DerenderCompletionFields,
        }
        strict = self._options.strict_fields
        return {
            f"{path}/derender": body_schema(struct, strict=strict)
            for path, struct in structs.items()
            if self._on
        }

    async def _derender_chat(self, request: Request) -> Response:
        """A chat completion, or one event of it, from generated token ids."""
        fields = await self._read(request, DerenderChatFields)
        name = "generate_chunk" if fields.stream else "generate_response"
        given = fields.generate_chunk if fields.stream else fields.generate_response
        (generated,) = self._checked([given], name)
        context = fields.prompt_token_ids or generated.prompt_token_ids
        check_tokens("prompt_token_ids", context or (), self._engine)
        body: dict[str, Any] = fields.chat_request or {
            "messages": [{"role": "user", "content": ""}]
        }
        outputs = self._outputs(fields, generated)
        engine = ReplayEngine(self._engine, [outputs], lambda index: context)
        formats = self._formats
        if fields.chat_request is None:
            engine = _PlainEngine(self._engine, [outputs], lambda index: context or ())
            formats = OutputFormats()
        served = cast(ServedEngine, engine)
        endpoint = ChatCompletions(
            served, self._options, ChatPipeline(served, formats), EventRuns()
        )
        answer = await self._answer(
            request, endpoint, engine, fields, body, [generated], "chat_request"
        )
        if fields.prompt_tokens is not None or fields.chat_request is None:
            _count_prompt(answer, fields.prompt_tokens or 0)
        if not fields.stream and generated.prompt_logprobs is not None:
            answer["prompt_logprobs"] = generated.prompt_logprobs
        return _response(fields, answer, generated)

    async def _derender_completion(self, request: Request) -> Response:
        """A completion, or one event of it, from generated token ids."""
        fields = await self._read(request, DerenderCompletionFields)
        name = "generate_chunk" if fields.stream else "generate_responses"
        given = [fields.generate_chunk] if fields.stream else fields.generate_responses or [None]
        found = self._checked(given, name)
        contexts = fields.prompt_token_ids or [None] * len(found)
        counts = fields.prompt_tokens
        for field, value in (("prompt_token_ids", contexts), ("prompt_tokens", counts)):
            if isinstance(value, list) and len(value) != len(found):
                raise InvalidRequest(
                    field, f"got {len(value)} entries; expected one for each of {len(found)}."
                )
        contexts = [one or each.prompt_token_ids for one, each in zip(contexts, found, strict=True)]
        for context in contexts:
            check_tokens("prompt_token_ids", context or (), self._engine)
        outputs = [self._outputs(fields, each) for each in found]
        if len({len(each.choices) for each in found}) > 1:
            raise InvalidRequest(name, "have different numbers of choices; expected one number.")
        engine = ReplayEngine(self._engine, outputs, lambda index: contexts[index] or ())
        body = {**(fields.completion_request or {}), "prompt": [[0]] * len(found)}
        endpoint = Completions(cast(ServedEngine, engine), self._options)
        answer = await self._answer(
            request, endpoint, engine, fields, body, found, "completion_request"
        )
        _count_prompt(answer, sum(counts) if isinstance(counts, list) else counts or 0)
        return _response(fields, answer, found[0])

    async def _read(self, request: Request, struct: Any) -> Any:
        """Return the fields of a body. Raises a 404 for a model that is not served."""
        parsed = await read_request(
            request,
            struct,
            strict=self._options.strict_fields,
            num_tokens=MAX_CONTEXTS * self._engine.max_model_len,
        )
        release_body(request)
        await choose_model(self._engine, parsed.fields.model)
        return parsed.fields

    def _checked(self, given: Sequence[Generated | None], name: str) -> list[Generated]:
        found = [each for each in given if each is not None]
        if len(found) < len(given) or not found:
            raise InvalidRequest(name, "is missing; send the answer of /inference/v1/generate.")
        for each in found:
            each.check(name, self._engine)
        return found

    def _outputs(self, fields: DerenderFields, generated: Generated) -> list[list[GeneratedChoice]]:
        """Return the outputs to repeat: all at once, or the earlier events and this one."""
        choices = generated.choices
        if not fields.stream:
            if not choices:
                raise InvalidRequest("choices", "are empty; expected one at least.")
            for choice in choices:
                choice.finish_reason = choice.finish_reason or "stop"
            return [choices]
        if len(choices) > 1:
            raise InvalidRequest(
                "generate_chunk.choices", f"got {len(choices)}; expected one, with its own state."
            )
        state = fields.stream_state or StreamState()
        tokens = [*state.output_token_ids, *(choices[0].token_ids or () if choices else ())]
        check_tokens("stream_state.output_token_ids", tokens, self._engine)
        return [*state.chunks(), choices or [GeneratedChoice()]]

    async def _answer(
        self,
        request: Request,
        endpoint: ChatCompletions | Completions,
        engine: ReplayEngine,
        fields: DerenderFields,
        body: dict[str, Any],
        found: Sequence[Generated],
        name: str,
    ) -> dict[str, Any]:
        """Return the answer of an endpoint, or its event for the newest output."""
        body = {key: value for key, value in body.items() if key not in _DROPPED}
        num_choices = 1 if fields.stream else len(found[0].choices)
        body |= {"stream": fields.stream, "n": num_choices, "model": fields.model or None}
        try:
            response = await while_connected(request, endpoint(sub_request(request, body)))
            if not fields.stream:
                answer: dict[str, Any] = msgspec.json.decode(response.body)
            else:
                num_outputs = len((fields.stream_state or StreamState()).output_chunk_lens) + 1
                answer = await _newest_event(response, engine, num_outputs)
        except InvalidRequest as error:
            message = str(error).removeprefix(f"{error.field}: ")
            raise InvalidRequest(f"{name}.{error.field}", message) from error
        indexes = [choice.index for each in found for choice in each.choices]
        if len(found) == 1:
            for choice, index in zip(answer["choices"], indexes, strict=False):
                choice["index"] = index
        head: dict[str, Any] = {"id": found[0].request_id} if found[0].request_id else {}
        if fields.stream and not answer.get("model"):
            model = await choose_model(self._engine, fields.model)
            kind = "chat.completion.chunk" if name == "chat_request" else "text_completion"
            head |= {"object": kind, "created": now(), "model": model.name}
        return {**answer, **head}


class _PlainEngine(ReplayEngine):
    """Renders nothing: the prompt is not known."""

    async def render_chat(self, messages: Any, **options: Any) -> tuple[str, list[int]]:
        """Return an empty prompt."""
        return "", []


async def _newest_event(response: Any, engine: ReplayEngine, num_outputs: int) -> dict[str, Any]:
    """Return the event of the newest output of a stream; without one, an empty answer."""
    answer: dict[str, Any] = {"choices": []}
    async for data in response.events():
        if engine.num_sent < num_outputs:
            continue  # the event of an earlier output
        for line in data.decode().split("\n\n"):
            text = line.removeprefix("data: ").strip()
            event = msgspec.json.decode(text) if text.startswith("{") else {}
            if not event.get("choices"):  # the end of the stream
                continue
            if answer["choices"]:  # the role came first
                delta = answer["choices"][0]["delta"] | event["choices"][0]["delta"]
                event["choices"][0]["delta"] = delta
            answer = event
    return answer


def _count_prompt(answer: dict[str, Any], num_tokens: int) -> None:
    usage = answer.get("usage")
    if usage is not None:
        usage["prompt_tokens"] = num_tokens
        usage["total_tokens"] = num_tokens + usage["completion_tokens"]


def _response(fields: DerenderFields, answer: dict[str, Any], newest: Generated) -> Response:
    value: Any = answer
    if fields.stream:
        state = fields.stream_state or StreamState()
        tokens = (newest.choices[0].token_ids or []) if newest.choices else []
        if not newest.choices:
            answer["choices"] = []
        if newest.usage is not None:
            answer["usage"] = newest.usage
        value = {"chunk": answer, "stream_state": state.with_chunk(tokens)}
    return Response(msgspec.json.encode(value), media_type="application/json")
