"""What every route that asks the engine has in common: names of models, ids, outputs that are
sound, two ways to answer.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.body import handed_over
from builtin_plugins.routes.streams import EventStream, Opened, started, while_connected
from core.api import RequestFailed, RequestOutput
from core.contracts.variants import Variant, VariantSource, variants_of

J = TypeVar("J")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The model that a request names."""

    name: str
    """To answer under."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Of `AsyncLLM.generate`, by which a variant of the model is asked for."""


async def choose_model(engine: Any, wanted: str | None) -> Chosen:
    """Return the model to ask. Raises a 404 for one that is not served.

    A served name with a `*` stands for all that fit: some clients insist on names of their own.
    Variants, which features serve beside the model, have names as well.
    """
    served = list(engine.served_names)
    if wanted is None or wanted == "":
        return Chosen(shown_names(engine)[0])
    if wanted in served:
        return Chosen(wanted)
    for source in _variant_sources(engine):
        found = await source.find(wanted)
        if found is not None:
            return Chosen(wanted, found.keywords)
    if any("*" in name and fnmatchcase(wanted, name) for name in served):
        return Chosen(wanted)
    served += [variant.name for variant in listed_variants(engine)]
    message = f"the model {wanted[:200]!r} does not exist here; served: {', '.join(served)}."
    raise HTTPException(404, {"message": message, "param": "model", "code": "model_not_found"})


def listed_variants(engine: Any) -> list[Variant]:
    """Return the variants that are listed beside the model."""
    return [variant for source in _variant_sources(engine) for variant in source.variants()]


def _variant_sources(engine: Any) -> Sequence[VariantSource]:
    return () if engine.registry is None else variants_of(engine.registry)


def shown_names(engine: Any) -> list[str]:
    """Return the names of the model, those that are patterns left out where there are others."""
    served = [str(name) for name in engine.served_names]
    return [name for name in served if "*" not in name] or served


def engine_id(shown: str) -> str:
    """Return an id for the engine: two requests of one client may bear the same name."""
    return f"{shown}-{secrets.token_hex(4)}"


def now() -> int:
    """Return the time of day in whole seconds."""
    return int(time.time())


async def sound(outputs: AsyncIterator[RequestOutput]) -> AsyncGenerator[RequestOutput]:
    """Pass outputs on.

    Raises `RequestFailed` where the request failed inside the engine, or what its client can mend.
    """
    try:
        async for output in outputs:
            if output.error is not None:
                raise output.refusal or RequestFailed(output.error)
            yield output
    finally:
        close = getattr(outputs, "aclose", None)
        if close is not None:
            await close()


async def last(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    """Return the finished output of a request that shows only that; raises as `sound`."""
    final: RequestOutput | None = None
    async for output in sound(outputs):
        final = output
    if final is None:
        raise RequestFailed("the engine ended the request without an output.")
    return final


def failure(request: Request, error: BaseException) -> tuple[int, str]:
    """Return the status and the words in which the server tells of an exception."""
    describe = request.scope.get("state", {}).get("describe")
    if describe is None:
        return 500, "the request failed; the server's log says more."
    answer = describe(error)
    return answer.status, answer.message


async def answered(
    request: Request,
    job: Callable[[], Awaitable[J]],
    *,
    stream: bool,
    whole: Callable[[J], Awaitable[Any]],
    events: Callable[[J], AsyncGenerator[bytes]],
    headers: Mapping[str, str],
) -> Any:
    """Return the response that answers a request: one object, or a stream whose first event is
    there.

    `job` makes the request ready, after which its body is no longer kept; it is given up when the
    client leaves.
    """

    async def ready() -> J:
        made = await job()
        handed_over(request)
        return made

    async def body() -> bytes:
        return msgspec.json.encode(await whole(await ready()))

    async def begun() -> Opened[bytes]:
        return await started(events(await ready()))

    if stream:
        return EventStream(await while_connected(request, begun()), headers)
    encoded = await while_connected(request, body())
    return Response(encoded, media_type="application/json", headers=dict(headers))
