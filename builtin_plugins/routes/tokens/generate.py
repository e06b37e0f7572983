"""`POST /inference/v1/generate`: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from builtin_plugins.routes.common.body import (
    MAX_CONTEXTS,
    client_name,
    owner_name,
    read_request,
    release_body,
)
from builtin_plugins.routes.common.fields import (
    SAMPLING_FIELDS,
    Priority,
    ShortString,
    with_client_field,
)
from builtin_plugins.routes.common.request_ids import engine_id
from builtin_plugins.routes.common.requests import (
    choose_model,
    final_output,
    now,
    raise_on_error,
)
from builtin_plugins.routes.common.sampling import sampling_params
from builtin_plugins.routes.common.schema import body_schema, bounded_schemas
from builtin_plugins.routes.common.streams import (
    DONE,
    EventStream,
    event,
    keep_alive_s,
    wait_for_first,
    while_connected,
)
from builtin_plugins.routes.openai.answers import AnswerOptions, Usage, answer_id, extension_fields
from builtin_plugins.routes.openai.fields import StreamOptions
from builtin_plugins.routes.openai.logprobs import chat_logprobs, prompt_logprobs
from core.api import CompletionOutput, EngineConfig, InvalidRequest, SamplingParams, did_you_mean
from core.api.features import KnownNames, Unsupported
from core.api.serving import ServedEngine

PATH: Final = "/inference/v1/generate"
_KNOWN: Final = frozenset(
    (*SAMPLING_FIELDS, "structured_outputs", "output_kind", "detokenize", "extra_args")
)
_UNSERVED: Final[Mapping[str, Unsupported]] = {
    "features": Unsupported("is not served: this engine reads text"),
    "kv_transfer_params": Unsupported(
        "is for engines that send each other blocks: start them with a connector that does, such "
        "as tcp"
    ),
}


class GenerateFields(msgspec.Struct, kw_only=True):
    """Body of `/inference/v1/generate`."""

    token_ids: list[int]
    sampling_params: dict[str, Any] = {}
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    request_id: ShortString | None = None
    cache_salt: ShortString = ""
    priority: Priority = 0


class TokenRoutes:
    """Route `/inference/v1/generate`, with `--tokens-only`."""

    switch: Final = "tokens_only"

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._on = any(map(config.options.get, (self.switch, "enable_scale_out")))
        self._strict = bool(config.options.get("strict_fields"))
        self._options = AnswerOptions.from_options(config.options)

    def routes(self) -> Sequence[Route]:
        """Return the route; none without `--tokens-only`."""
        return [Route(PATH, self._generate, methods=["POST"])] if self._on else []

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of the body."""
        others = {
            name: {"description": f"{known.reason}.", "enum": [None]}
            for name, known in _UNSERVED.items()
        }
        schema = body_schema(GenerateFields, others, strict=self._strict)
        schema["properties"]["sampling_params"] = {
            "type": "object",
            "properties": bounded_schemas(SamplingParams, SAMPLING_FIELDS),
        }
        return {PATH: schema}

    async def _generate(self, request: Request) -> Any:
        """Generate from token ids."""
        parsed = await read_request(
            request,
            GenerateFields,
            (*_UNSERVED, *self._engine.fields.read),
            strict=self._strict,
            num_tokens=MAX_CONTEXTS * self._engine.max_model_len,
        )
        fields: Any = parsed.fields
        model = await choose_model(self._engine, fields.model)
        keywords = {
            **KnownNames(self._engine.fields.read, _UNSERVED).select_known(parsed.others),
            **model.keywords,
        }
        sampling = self._sampling(parsed.fields)
        client_id = answer_id(request, fields, "generate-tokens")
        run = self._engine.generate(
            {"prompt_token_ids": fields.token_ids},
            sampling,
            engine_id(client_id, owner_name(request)),
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            client=client_name(request),
            **keywords,
        )
        release_body(request)
        head = {"request_id": client_id, "id": client_id, "created": now(), "model": model.name}
        try:
            if not fields.stream:
                answer = await while_connected(request, self._whole(head, sampling, run))
                return Response(
                    msgspec.json.encode(answer),
                    media_type="application/json",
                    headers=parsed.headers,
                )
            events = await while_connected(
                request,
                wait_for_first(
                    self._events(head, parsed.fields, sampling, run), keep_alive_s(request.scope)
                ),
            )
        except InvalidRequest as error:
            raise with_client_field(
                error, {"prompt": "token_ids", "sampling_params": "model"}
            ) from None
        return EventStream(events, parsed.headers)

    def _sampling(self, fields: GenerateFields) -> SamplingParams:
        given = {name: value for name, value in fields.sampling_params.items() if value is not None}
        for name in given:
            if name not in _KNOWN:
                raise InvalidRequest(
                    f"sampling_params.{name[:100]}", f"is not known{did_you_mean(name, _KNOWN)}."
                )
        overrides: dict[str, Any] = {"detokenize": False}
        if given.get("extra_args"):
            overrides["extra_args"] = given["extra_args"]
        defaults = {**self._engine.sampling_defaults, "max_tokens": None}
        try:
            return sampling_params(given, defaults, stream=fields.stream, **overrides)
        except InvalidRequest as error:
            message = str(error).removeprefix(f"{error.field}: ")
            raise InvalidRequest(f"sampling_params.{error.field}", message) from error

    async def _whole(
        self, head: Mapping[str, Any], sampling: SamplingParams, run: Any
    ) -> dict[str, Any]:
        output = await final_output(run)
        usage = Usage(self._options)
        usage.count(0, output)
        choices = [_choice(each, sampling) for each in output.outputs]
        answer = {
            **head,
            "choices": choices,
            "usage": usage.as_json(),
            **extension_fields([output]),
        }
        if sampling.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        return answer

    async def _events(
        self, head: Mapping[str, Any], fields: GenerateFields, sampling: SamplingParams, run: Any
    ) -> AsyncGenerator[bytes]:
        usage = Usage(self._options)
        async for output in raise_on_error(run):
            usage.count(0, output)
            choices = [
                _choice(each, sampling)
                for each in output.outputs
                if each.token_ids or each.finish_reason
            ]
            if choices:
                yield event({**head, "choices": choices})
        if fields.stream_options is not None and fields.stream_options.include_usage:
            yield event({**head, "choices": [], "usage": usage.as_json()})
        yield DONE


def _choice(completion: CompletionOutput, sampling: SamplingParams) -> dict[str, Any]:
    logprobs = None
    if completion.logprobs is not None:
        logprobs = chat_logprobs(
            completion.token_ids, completion.logprobs, num_top=sampling.logprobs or 0, as_ids=True
        )
    return {
        "index": completion.index,
        "token_ids": list(completion.token_ids),
        "logprobs": logprobs,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
