"""Which fields of requests are sampling parameters, types that requests share, and refusals in a
client's own words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from builtin_plugins.routes.body import Parsed, read_request
from builtin_plugins.routes.schema import bounded_schemas
from core.api import InvalidRequest, Names, SamplingParams

T = TypeVar("T", bound=msgspec.Struct)

_NOT_IN_REQUESTS = {
    "output_kind",
    "bad_words_token_ids",
    "extra_args",
    "detokenize",
    "structured_outputs",
}
SAMPLING_FIELDS: Final = tuple(
    name for name in SamplingParams.__struct_fields__ if name not in _NOT_IN_REQUESTS
)
"""Sampling parameters a request may set, by name."""
ONE_ANSWER: Final = frozenset(SAMPLING_FIELDS) - {
    "n",
    "logprobs",
    "prompt_logprobs",
    "stop",
    "max_tokens",
}
"""Those that protocols of one answer take besides their own, under the names that they have
everywhere.
"""

Small = Annotated[str, msgspec.Meta(max_length=256)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class EngineFields(msgspec.Struct, kw_only=True):
    """What requests of every protocol may say to this engine beside what is the protocol's own."""

    priority: Priority = 0
    cache_salt: Small = ""
    vllm_xargs: dict[str, str | Int64 | float | list[str | Int64 | float]] = {}
    """Arguments for plugins, handed to them as `SamplingParams.extra_args`."""


class MessageFields(EngineFields, kw_only=True):
    """What requests of protocols say that answer with one message."""

    messages: list[Any]
    """Of types that are the protocol's own."""
    model: str | None = None


def as_typed(error: InvalidRequest, typed: Mapping[str, str]) -> InvalidRequest:
    """Return a refusal that names the field as the client wrote it; `typed` has those names by the
    engine's.
    """
    for name, client_name in typed.items():
        if error.field == name or error.field.startswith((f"{name}.", f"{name}[")):
            return error.renamed(client_name + error.field[len(name) :])
    return error


def features_of(others: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Return the fields that features read."""
    return {name: value for name, value in others.items() if name in names.read}


@dataclass(frozen=True, slots=True)
class OtherFields:
    """Fields that a protocol of one answer knows besides those of its struct: sampling parameters,
    and these.
    """

    without_effect: Collection[str]
    """They ask nothing of an engine that serves one model."""
    unserved: Mapping[str, str]
    """They cannot be served unless they are empty, and why."""

    async def read(
        self, request: Request, struct: type[T], names: Names, *, strict: bool
    ) -> Parsed[T]:
        """Return a request's body; `names` are the fields that features read.

        Raises `InvalidRequest`.
        """
        others = {*ONE_ANSWER, *self.without_effect, *self.unserved, *names.read}
        parsed = await read_request(request, struct, others, strict=strict)
        for name, missing in self.unserved.items():
            if parsed.others.get(name):
                raise InvalidRequest(name, f"{missing}.")
        return parsed

    def schemas(self, names: Names) -> dict[str, dict[str, Any]]:
        """Return their JSON schemas."""
        empty: list[Any] = [[], {}, "", None]
        return {
            **bounded_schemas(SamplingParams, sorted(ONE_ANSWER)),
            **{name: {"description": "Has no effect."} for name in self.without_effect},
            **{
                name: {"description": f"{missing}.", "enum": empty}
                for name, missing in self.unserved.items()
            },
            **{name: {"description": "Read by a plugin."} for name in names.read},
        }


def sampling_of(others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are sampling parameters under their own names."""
    return {name: value for name, value in others.items() if name in ONE_ANSWER}
