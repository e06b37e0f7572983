"""`/v1/chat/completions/render` and `/v1/completions/render`, with `--enable-scale-out`.

They return what would be generated from, as bodies of `/inference/v1/generate`: one engine may
render, and others generate. The endpoints themselves check and render; an engine that records
stands in for the one that generates.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from builtin_plugins.routes.common.body import MAX_CONTEXTS, read_json, release_body
from builtin_plugins.routes.common.event_runs import EventRuns
from builtin_plugins.routes.common.fields import SAMPLING_FIELDS
from builtin_plugins.routes.common.output_formats import OutputFormats
from builtin_plugins.routes.common.pipeline import ChatPipeline
from builtin_plugins.routes.common.streams import while_connected
from builtin_plugins.routes.common.sub_requests import sub_request
from builtin_plugins.routes.openai.answers import AnswerOptions
from builtin_plugins.routes.openai.chat import ChatCompletions
from builtin_plugins.routes.openai.completions import Completions
from builtin_plugins.routes.openai.routes import body_schemas
from core.api import EngineConfig, InvalidRequest, RequestOutput, SamplingParams
from core.api.serving import ServedEngine

SWITCH: Final = "enable_scale_out"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
Endpoint = Callable[[Request], Any]


class _Rendered(Exception):
    """The point at which an endpoint would generate."""


class _RecordingEngine:
    """Records the engine requests of one HTTP request, and runs none of them."""

    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine
        self.requests: list[dict[str, Any]] = []
        """Bodies of `/inference/v1/generate`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self,
        prompt: Mapping[str, Any],
        sampling: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
        **keywords: Any,
    ) -> AsyncGenerator[RequestOutput]:
        """Record a request; reading its outputs raises. Raises `InvalidRequest` for media."""
        if "multi_modal_data" in prompt:
            raise InvalidRequest(
                "messages", "got an image; expected text, since images are not rendered. Remove it."
            )
        if "prompt_embeds" in prompt:
            raise InvalidRequest(
                "prompt_embeds", "got embeddings; expected text, since they are no tokens. Send it."
            )
        self.requests.append(
            {
                "request_id": request_id,
                "token_ids": prompt["prompt_token_ids"],
                "sampling_params": _sampling_fields(sampling),
                "cache_salt": cache_salt,
                "priority": priority,
            }
        )
        return _raise_rendered()


async def _raise_rendered() -> AsyncGenerator[RequestOutput]:
    nothing: tuple[RequestOutput, ...] = ()
    for output in nothing:
        yield output
    raise _Rendered


class RenderRoutes:
    """The routes of one engine; none without `--enable-scale-out`."""

    switch: Final = SWITCH

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._on = bool(config.options.get(self.switch))
        self._options = AnswerOptions.from_options(config.options)
        self._formats = OutputFormats.shared(engine, config.options)

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        if not self._on:
            return []
        return [
            Route(f"{CHAT}/render", self._render_chat, methods=["POST"]),
            Route(f"{COMPLETIONS}/render", self._render_completion, methods=["POST"]),
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        strict = self._options.strict_fields
        schemas = body_schemas(self._engine.fields, self._engine.vocab_size, strict=strict)
        return {f"{path}/render": schemas[path] for path in (CHAT, COMPLETIONS)} if self._on else {}

    async def _render_chat(self, request: Request) -> Response:
        """The prompt and parameters of a chat completion."""
        recording = _RecordingEngine(self._engine)
        engine = cast(ServedEngine, recording)
        endpoint = ChatCompletions(
            engine, self._options, ChatPipeline(engine, self._formats), EventRuns()
        )
        (rendered,) = await self._render(request, endpoint, recording)
        return _as_json(rendered)

    async def _render_completion(self, request: Request) -> Response:
        """The prompts and parameters of a completion."""
        engine = _RecordingEngine(self._engine)
        endpoint = Completions(cast(ServedEngine, engine), self._options)
        return _as_json(await self._render(request, endpoint, engine))

    async def _render(
        self, request: Request, endpoint: Endpoint, engine: _RecordingEngine
    ) -> list[dict[str, Any]]:
        fields = await read_json(request, num_tokens=MAX_CONTEXTS * self._engine.max_model_len)
        if not isinstance(fields, dict):
            raise InvalidRequest("body", "must be an object.")
        if fields.get("use_beam_search"):
            raise InvalidRequest("use_beam_search", "is not rendered: it asks the engine again.")
        with suppress(_Rendered):
            await while_connected(request, endpoint(sub_request(request, fields)))
        release_body(request)
        more = {name: fields[name] for name in ("model", "stream_options") if fields.get(name)}
        more["stream"] = bool(fields.get("stream"))
        return [{**rendered, **more} for rendered in engine.requests]


def _sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    """Return the parameters as `/inference/v1/generate` reads them."""
    values = {name: getattr(sampling, name) for name in SAMPLING_FIELDS}
    values["structured_outputs"] = sampling.structured_outputs
    values["extra_args"] = sampling.extra_args
    return {
        name: msgspec.to_builtins(value)
        for name, value in values.items()
        if value is not None and value not in ([], {})
    }


def _as_json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
