"""A request body becomes a typed object, or an `InvalidRequest` that names the field.

Unknown fields are kept apart: the endpoint works without them and says so, but a misspelt field is
refused, because silently doing something else than asked is worse than an error.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from builtin_plugins.routes.scan import LARGE_BYTES, limits_for, refuse_crowded
from core.api import InvalidRequest
from core.text.places import Places

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

CONTEXTS = 8
"""Times the context length that the token ids of one request may fill."""
IGNORED_HEADER = "X-Ignored-Fields"
_NEAR = 0.82
"""Similarity from which an unknown field counts as a misspelt one."""
_MAX_NAMED = 20
_MAX_UNKNOWN = 100
"""Unknown fields in one request: looking for what each may have meant takes a while."""
_MAX_LENGTH = 64
"""Of a name that may be a misspelt one: all that are known are shorter."""
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_TYPES = re.compile(r"`([^`]*)`")
_WORDS = {"int": "an integer", "float": "a number", "str": "a text", "bool": "true or false"}
_WORDS |= {"array": "a list", "object": "an object"}


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """One request body."""

    fields: T
    """The endpoint's own fields."""
    others: dict[str, Any]
    """Values of the other known fields, by name; nulls are left out."""
    ignored: tuple[str, ...]

    @property
    def headers(self) -> dict[str, str]:
        """Name what was ignored, for the response."""
        if not self.ignored:
            return {}
        shown = [
            re.sub(r"[^A-Za-z0-9_.-]", "?", name[:64]) or '""' for name in self.ignored[:_MAX_NAMED]
        ]
        return {IGNORED_HEADER: ", ".join(shown)}


async def read_request(
    request: Request,
    struct: type[T],
    others: Collection[str] = (),
    *,
    strict: bool = False,
    num_tokens: int = 0,
) -> Parsed[T]:
    """Read a JSON body into `struct`; `others` are fields known besides the struct's own,
    `num_tokens` how many token ids
    it may well hold.
    """
    body = await read_body(request)

    def read() -> Parsed[T]:
        return parse(decode(body), struct, others, strict=strict)

    if len(body) <= LARGE_BYTES:
        return read()
    # One large body after the other, each client's in turn: all at once would take many of this
    # process's moments.
    reading: Places = request.scope.get("state", {}).get("reading") or Places(1)
    async with reading.place(client_of(request)):
        await refuse_crowded(body, limits_for(num_tokens))
        return await asyncio.to_thread(read)


def client_of(request: Request) -> str:
    """Return a name for whoever sent a request, as far as the server can tell; others share theirs
    with nobody.
    """
    return str(request.scope.get("state", {}).get("client", ""))


def handed_over(request: Request) -> None:
    """Tell the server that nothing is kept of a request's body any more: it counts what is."""
    tell = request.scope.get("state", {}).get("handed_over")
    if tell is not None:
        tell()


async def read_body(request: Request) -> bytes:
    """Return the body, which the request itself does not keep.

    Raises `HTTPException` for one that is said to be no JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        raise HTTPException(
            415, f"the body must be JSON: send Content-Type: application/json, not {kind}."
        )
    return b"".join([part async for part in request.stream()])


def decode(body: bytes) -> Any:
    """Return the JSON value of a body.

    Raises `InvalidRequest` for what is none, naming numbers JSON has no form for.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if len(body) <= LARGE_BYTES:
            _refuse_non_finite(body)
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidRequest("body", f"is not valid JSON: {reason}.") from error


def parse(
    value: Any, struct: type[T], others: Collection[str] = (), *, strict: bool = False
) -> Parsed[T]:
    """Split a JSON object into the struct's fields, the other known ones and the unknown ones."""
    if not isinstance(value, dict):
        raise InvalidRequest("body", f"must be a JSON object, not {_json_type(value)}.")
    given = {name: item for name, item in value.items() if item is not None}
    own = struct.__struct_fields__
    unknown = tuple(name for name in value if name not in own and name not in others)
    _check_unknown(unknown, (*own, *others), strict)
    try:
        fields = msgspec.convert(
            {name: item for name, item in given.items() if name in own}, struct
        )
    except msgspec.ValidationError as error:
        raise _refusal(error) from error
    return Parsed(fields, {name: item for name, item in given.items() if name in others}, unknown)


def _check_unknown(unknown: tuple[str, ...], known: Collection[str], strict: bool) -> None:
    if len(unknown) > _MAX_UNKNOWN:
        raise InvalidRequest(
            "body", f"has {len(unknown)} unknown fields, at most {_MAX_UNKNOWN} are passed over."
        )
    for name in unknown:
        near = (
            difflib.get_close_matches(name.lower(), known, n=1, cutoff=_NEAR)
            if len(name) <= _MAX_LENGTH
            else []
        )
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


def _refusal(error: msgspec.ValidationError) -> InvalidRequest:
    """Return msgspec's complaint in our words, with the field it is about."""
    text = str(error)
    missing = _MISSING.search(text)
    place = _PLACE.search(text)
    where = place.group(1) if place else ""
    if missing:
        return InvalidRequest(f"{where}.{missing.group(1)}".lstrip("."), "is missing.")
    said = _TYPES.sub(lambda found: _in_words(found.group(1)), _PLACE.sub("", text))
    said = said.replace("Expected ", "must be ").replace(", got ", ", not ")
    return InvalidRequest(where or "body", said[:1].lower() + said[1:] + ".")


def _in_words(types: str) -> str:
    """Return msgspec's `int | null` in words; null is left out, it is the same as no value."""
    return " or ".join(
        _WORDS.get(name, name) for name in types.split(" | ") if name != "null" or types == "null"
    )


def _refuse_non_finite(body: bytes) -> None:
    """Raise `InvalidRequest` where the only fault of a body is NaN, Infinity or a number too large."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return
    places: list[tuple[str, Any]] = [("", value)]
    while places:
        place, item = places.pop()
        if isinstance(item, Mapping):
            places += [(f"{place}.{name}".lstrip("."), inner) for name, inner in item.items()]
        elif isinstance(item, list):
            places += [(f"{place}[{i}]", inner) for i, inner in enumerate(item)]
        elif isinstance(item, float) and not math.isfinite(item):
            raise InvalidRequest(place or "body", f"must be a finite number, not {item}.")


def _json_type(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
