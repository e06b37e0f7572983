"""Steps that every generating endpoint shares: choose the model, check outputs, respond."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.common.body import release_body
from builtin_plugins.routes.common.streams import (
    EventStream,
    keep_alive_s,
    wait_for_first,
    while_connected,
)
from builtin_plugins.routes.variants import Variant, VariantSource, variant_sources
from core.api import RequestFailed, RequestOutput
from core.api.serving import ServedEngine

J = TypeVar("J")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model that a request names."""

    name: str
    """Name in the answer."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `AsyncLLM.generate` that select a variant of the model."""


async def choose_model(engine: ServedEngine, name: str | None) -> ModelChoice:
    """Return the model of a request. Raises a 404 for a name that is not served.

    A served name with a `*` is a pattern, for clients with fixed model names. Features may serve
    variants of the model under further names.
    """
    served = list(engine.served_names)
    if name is None or name == "":
        return ModelChoice(display_names(engine)[0])
    if name in served:
        return ModelChoice(name)
    for source in _variant_sources(engine):
        found = await source.find(name)
        if found is not None:
            return ModelChoice(name, found.keywords)
    if any("*" in pattern and fnmatchcase(name, pattern) for pattern in served):
        return ModelChoice(name)
    served += [variant.name for variant in listed_variants(engine)]
    message = f"the model {name[:200]!r} does not exist here; served: {', '.join(served)}."
    raise HTTPException(404, {"message": message, "param": "model", "code": "model_not_found"})


def listed_variants(engine: ServedEngine) -> list[Variant]:
    """Return the variants of the model that `/v1/models` lists."""
    return [variant for source in _variant_sources(engine) for variant in source.variants()]


def _variant_sources(engine: ServedEngine) -> Sequence[VariantSource]:
    return variant_sources(engine.registry)


def display_names(engine: ServedEngine) -> list[str]:
    """Return the served names of the model, without patterns if there are other names."""
    served = [str(name) for name in engine.served_names]
    return [name for name in served if "*" not in name] or served


def now() -> int:
    """Return the Unix time in whole seconds."""
    return int(time.time())


async def raise_on_error(outputs: AsyncIterator[RequestOutput]) -> AsyncGenerator[RequestOutput]:
    """Yield the outputs. Raises `RequestFailed`, or the refusal, of an output with an error.

    Text of such an output is yielded before: a slow reader gets several deltas as one.
    """
    try:
        async for output in outputs:
            if output.error is not None:
                if any(completion.text for completion in output.outputs):
                    yield _without_end(output)
                raise output.refusal or RequestFailed(output.error)
            yield output
    finally:
        close = getattr(outputs, "aclose", None)
        if close is not None:
            await close()


def _without_end(output: RequestOutput) -> RequestOutput:
    """Return the output as it was before its request failed."""
    completions = [replace(completion, finish_reason=None) for completion in output.outputs]
    return replace(output, outputs=completions, finished=False, error=None, refusal=None)


async def final_output(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    """Return the last output of a request. Raises as `raise_on_error`."""
    final: RequestOutput | None = None
    async for output in raise_on_error(outputs):
        final = output
    if final is None:
        raise RequestFailed("the engine ended the request without an output.")
    return final


def describe_failure(request: Request, error: BaseException) -> tuple[int, str]:
    """Return the status and the message with which the server reports an exception."""
    describe = request.scope.get("state", {}).get("describe")
    if describe is None:
        return 500, "the request failed; see the server log."
    answer = describe(request.scope, error)
    return answer.status, answer.message


async def respond(
    request: Request,
    job: Callable[[], Awaitable[J]],
    *,
    stream: bool,
    whole: Callable[[J], Awaitable[Any]],
    events: Callable[[J], AsyncGenerator[bytes]],
    headers: Callable[[J], Mapping[str, str]],
    detached: Callable[[J, AsyncGenerator[bytes]], AsyncGenerator[bytes]] | None = None,
) -> Any:
    """Return the response of a request: one object, or a stream that has its first event.

    `job` prepares the request, after which its body is released; `headers` are those of the
    prepared request. A client that disconnects cancels the work, unless `detached` starts it and
    returns the events that the client reads.
    """

    async def prepared() -> J:
        made = await job()
        release_body(request)
        return made

    async def body() -> Response:
        made = await prepared()
        encoded = msgspec.json.encode(await whole(made))
        return Response(encoded, media_type="application/json", headers=dict(headers(made)))

    async def started() -> EventStream:
        made = await prepared()
        stream = events(made)
        if detached is not None:
            stream = detached(made, stream)
        begun = await wait_for_first(stream, keep_alive_s(request.scope))
        return EventStream(begun, headers(made))

    return await while_connected(request, started() if stream else body())
