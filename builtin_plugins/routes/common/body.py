"""Parses a request body into a typed object, or raises an `InvalidRequest` that names the field.

Unknown fields are ignored and listed in a response header. A misspelt field is an error, because
ignoring it would silently change what the request does.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import math
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from builtin_plugins.chat_renderers.api import json_without_lone_surrogates
from builtin_plugins.routes.common.json_limits import (
    LARGE_BYTES,
    check_json_size,
    decoded_bytes,
    limits_for,
)
from builtin_plugins.routes.common.mending import LeftOut, Mend
from core.api import InvalidRequest
from core.api.concurrency import FairSemaphore

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

MAX_CONTEXTS = 8
"""Largest number of token ids in one request, in multiples of the context length."""
IGNORED_HEADER = "X-Ignored-Fields"
_NEAR = 0.82
"""Similarity to a known name above which an unknown field counts as misspelt."""
_MAX_NAMED = 20
"""Ignored fields listed in the header and in the log line."""
_MAX_UNKNOWN = 100
"""Largest number of unknown fields in one request; the spelling check of each takes time."""
_MAX_LENGTH = 64
"""Longest unknown name checked for a misspelling; every known name is shorter."""
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_TYPES = re.compile(r"`([^`]*)`")
_WORDS = {"int": "an integer", "float": "a number", "str": "a text", "bool": "true or false"}
_WORDS |= {"array": "a list", "object": "an object"}


@dataclass(frozen=True, slots=True)
class ParsedBody(Generic[T]):
    """One parsed request body."""

    fields: T
    """The endpoint's own fields."""
    others: dict[str, Any]
    """Values of the other known fields, by name, without nulls."""
    ignored: tuple[str, ...]
    """Names of the unknown fields, and paths of what was left out of the history."""

    @property
    def headers(self) -> dict[str, str]:
        """Response header that lists the ignored fields."""
        return self.headers_with(())

    def headers_with(self, ignored: Sequence[str]) -> dict[str, str]:
        """Return the header with further ignored fields."""
        named = [*self.ignored, *ignored][:_MAX_NAMED]
        if not named:
            return {}
        names = [re.sub(r"[^A-Za-z0-9_.-]", "?", name[:64]) or '""' for name in named]
        return {IGNORED_HEADER: ", ".join(names)}


async def read_request(
    request: Request,
    struct: type[T],
    others: Collection[str] = (),
    *,
    strict: bool = False,
    num_tokens: int = 0,
    mend: Mend | None = None,
    modalities: Collection[str] = (),
) -> ParsedBody[T]:
    """Return the JSON body, converted to `struct`. Raises `InvalidRequest`.

    `others` are known fields that the struct lacks. `num_tokens` is the largest number of token ids
    the body may hold. `mend` mends the history in the body; media of `modalities` stay in it.
    """

    def parse(value: Any) -> ParsedBody[T]:
        left_out = LeftOut(modalities)
        return parse_body(value, struct, others, strict=strict, mend=mend, left_out=left_out)

    return await _read_values(request, parse, num_tokens)


async def read_json(request: Request, *, num_tokens: int = 0) -> Any:
    """Return the JSON value of the body. Raises `InvalidRequest`.

    `num_tokens` is the largest number of token ids the body may hold.
    """
    return await _read_values(request, lambda value: value, num_tokens)


async def _read_values(request: Request, parse: Callable[[Any], R], num_tokens: int) -> R:
    """Return the parsed values of the body, the memory of which counts as in flight."""
    body = await read_body(request)

    def read() -> tuple[R, int]:
        value = decode_json(body)
        size = decoded_bytes(value) - len(body)
        return parse(value), size

    state = request.scope.get("state", {})
    reserve: Callable[[int], None] = state.get("reserve_values") or (lambda num_bytes: None)
    if len(body) <= LARGE_BYTES:
        parsed, size = read()
        reserve(size)
        return parsed
    # Large bodies are parsed one at a time, round-robin by client: parsing holds the interpreter.
    parsing: FairSemaphore = state.get("body_parsing") or FairSemaphore(1)
    async with parsing.slot(client_name(request)):
        await check_json_size(body, limits_for(num_tokens))
        parsed, size = await asyncio.to_thread(read)
        reserve(size)
    return parsed


def client_name(request: Request) -> str:
    """Return the server's name for the client, or an empty string for an unknown client."""
    return str(request.scope.get("state", {}).get("client_name", ""))


def owner_name(request: Request) -> str:
    """Return the server's name for the owner of what a request leaves on the server."""
    return str(request.scope.get("state", {}).get("owner", ""))


def reserve_bytes(request: Request) -> Callable[[int], None]:
    """Return the function that counts bytes a request makes the server read, like its body."""
    reserve: Callable[[int], None] | None = request.scope.get("state", {}).get("reserve_bytes")
    return reserve or (lambda num_bytes: None)


def release_body(request: Request) -> None:
    """Release the body's share of the server's in-flight byte limit."""
    release = request.scope.get("state", {}).get("release_body")
    if release is not None:
        release()


async def read_body(request: Request) -> bytes:
    """Return the body without caching it on the request.

    Raises `HTTPException` (415) for a content type other than JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        raise HTTPException(
            415, f"the body must be JSON: send Content-Type: application/json, not {kind}."
        )
    return b"".join([part async for part in request.stream()])


def decode_json(body: bytes) -> Any:
    """Return the JSON value of a body, with U+FFFD for lone surrogates.

    Raises `InvalidRequest` for invalid JSON, and names NaN and infinite numbers.
    """
    body = body.removeprefix(BOM_UTF8)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(json_without_lone_surrogates(body))
        if len(body) <= LARGE_BYTES:
            _refuse_non_finite(body)
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidRequest("body", f"is not valid JSON: {reason}.") from error


def parse_body(
    value: Any,
    struct: type[T],
    others: Collection[str] = (),
    *,
    strict: bool = False,
    mend: Mend | None = None,
    left_out: LeftOut | None = None,
) -> ParsedBody[T]:
    """Split a JSON object into the struct's fields, other known fields and unknown fields."""
    if not isinstance(value, dict):
        raise InvalidRequest("body", f"must be a JSON object, not {_json_type(value)}.")
    left_out = left_out or LeftOut()
    if mend is not None:
        mend(value, left_out)
        if strict and left_out.paths:
            raise InvalidRequest(
                left_out.paths[0], "cannot be read, and --strict-fields leaves nothing out."
            )
    given = {name: item for name, item in value.items() if item is not None}
    own = struct.__struct_fields__
    unknown = tuple(name for name in value if name not in own and name not in others)
    _check_unknown(unknown, (*own, *others), strict)
    try:
        fields = msgspec.convert(
            {name: item for name, item in given.items() if name in own}, struct
        )
    except msgspec.ValidationError as error:
        raise _invalid_request(error) from error
    known = {name: item for name, item in given.items() if name in others}
    return ParsedBody(fields, known, (*unknown, *left_out.paths))


def _check_unknown(unknown: tuple[str, ...], known: Collection[str], strict: bool) -> None:
    if len(unknown) > _MAX_UNKNOWN:
        raise InvalidRequest(
            "body", f"has {len(unknown)} unknown fields; up to {_MAX_UNKNOWN} are ignored."
        )
    for name in unknown:
        near: list[str] = []
        if len(name) <= _MAX_LENGTH:
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_NEAR)
        if near:
            raise InvalidRequest(
                name[:100], f"is not a field of this request; did you mean {near[0]!r}?"
            )
        if strict:
            raise InvalidRequest(
                name[:100],
                "is not a field of this request, and --strict-fields refuses unknown ones.",
            )
    if unknown:
        log.warning(
            "ignored unknown request fields: %s",
            ", ".join(repr(name[:64]) for name in unknown[:_MAX_NAMED]),
        )


def _invalid_request(error: msgspec.ValidationError) -> InvalidRequest:
    """Return msgspec's error as an `InvalidRequest` that names the field."""
    text = str(error)
    missing = _MISSING.search(text)
    path = _PATH.search(text)
    field = path.group(1) if path else ""
    if missing:
        return InvalidRequest(f"{field}.{missing.group(1)}".lstrip("."), "is missing.")
    message = _TYPES.sub(lambda found: _in_words(found.group(1)), _PATH.sub("", text))
    message = message.replace("Expected ", "must be ").replace(", got ", ", not ")
    return InvalidRequest(field or "body", message[:1].lower() + message[1:] + ".")


def _in_words(types: str) -> str:
    """Return msgspec's `int | null` in words, without null: a null counts as no value."""
    return " or ".join(
        _WORDS.get(name, name) for name in types.split(" | ") if name != "null" or types == "null"
    )


def _refuse_non_finite(body: bytes) -> None:
    """Raise `InvalidRequest` if only NaN, Infinity or a too large number makes the body invalid."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, Mapping):
            pending += [(f"{path}.{name}".lstrip("."), inner) for name, inner in item.items()]
        elif isinstance(item, list):
            pending += [(f"{path}[{i}]", inner) for i, inner in enumerate(item)]
        elif isinstance(item, float) and not math.isfinite(item):
            raise InvalidRequest(path or "body", f"must be a finite number, not {item}.")


def _json_type(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
