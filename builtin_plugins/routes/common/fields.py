"""Request fields that protocols share: sampling parameters, engine fields, field names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from builtin_plugins.routes.common.body import ParsedBody, read_request
from builtin_plugins.routes.common.mending import Mend
from builtin_plugins.routes.common.schema import bounded_schemas
from core.api import InvalidRequest, SamplingParams
from core.api.features import KnownNames

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
"""Names of the sampling parameters that a request may set."""
SINGLE_ANSWER_FIELDS: Final = frozenset(SAMPLING_FIELDS) - {
    "n",
    "logprobs",
    "prompt_logprobs",
    "stop",
    "max_tokens",
}
"""Names of the sampling parameters that protocols with a single answer accept unchanged."""

ShortString = Annotated[str, msgspec.Meta(max_length=256)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class EngineFields(msgspec.Struct, kw_only=True):
    """Engine fields of every protocol's requests."""

    priority: Priority = 0
    cache_salt: ShortString = ""
    vllm_xargs: dict[str, str | Int64 | float | list[str | Int64 | float]] = {}
    """Arguments for plugins, passed on as `SamplingParams.extra_args`."""


class MessageFields(EngineFields, kw_only=True):
    """Fields of protocols that answer with one message."""

    messages: list[Any]
    """Messages, of the protocol's own types."""
    model: str | None = None


def with_client_field(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """Return an error that names the field as the client wrote it.

    `names` maps the engine's field names to the client's.
    """
    for name, client_name in names.items():
        if error.field == name or error.field.startswith((f"{name}.", f"{name}[")):
            return error.renamed(client_name + error.field[len(name) :])
    return error


HEADER_FIELDS: Final[Mapping[str, str]] = {"x-data-parallel-rank": "data_parallel_rank"}
"""Headers that say the same as a field, a whole number, of features."""


def feature_fields(
    others: Mapping[str, Any], names: KnownNames, request: Request | None = None
) -> dict[str, Any]:
    """Return the fields that features read, those in headers included.

    Raises `InvalidRequest` for a header that is no whole number.
    """
    found = {name: value for name, value in others.items() if name in names.read}
    for header, name in HEADER_FIELDS.items():
        given = None if request is None else request.headers.get(header)
        if given is None or name not in names.read:
            continue
        if not (given.isascii() and given.isdigit() and len(given) < 10):
            raise InvalidRequest(header, f"got {given!r:.100}; expected a whole number.")
        found.setdefault(name, int(given))
    return found


@dataclass(frozen=True, slots=True)
class OtherFields:
    """Known fields of a protocol that its struct lacks, in addition to sampling parameters."""

    without_effect: Collection[str]
    """Fields that are accepted and ignored."""
    unserved: Mapping[str, str]
    """Fields that must be empty, with the reason."""
    mend: Mend | None = None
    """Mends the history in a body."""

    async def read(
        self,
        request: Request,
        struct: type[T],
        names: KnownNames,
        *,
        strict: bool,
        modalities: Collection[str] = (),
    ) -> ParsedBody[T]:
        """Return the parsed body of a request. Raises `InvalidRequest`.

        `names` are the fields that features read; media of `modalities` stay in the history.
        """
        others = {*SINGLE_ANSWER_FIELDS, *self.without_effect, *self.unserved, *names.read}
        parsed = await read_request(
            request, struct, others, strict=strict, mend=self.mend, modalities=modalities
        )
        for name, reason in self.unserved.items():
            if parsed.others.get(name):
                raise InvalidRequest(name, f"{reason}.")
        return parsed

    def schemas(self, names: KnownNames) -> dict[str, dict[str, Any]]:
        """Return the JSON schemas of the fields."""
        empty: list[Any] = [[], {}, "", None]
        return {
            **bounded_schemas(SamplingParams, sorted(SINGLE_ANSWER_FIELDS)),
            **{name: {"description": "Has no effect."} for name in self.without_effect},
            **{
                name: {"description": f"{reason}.", "enum": empty}
                for name, reason in self.unserved.items()
            },
            **{name: {"description": "Read by a plugin."} for name in names.read},
        }


def sampling_fields(others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are sampling parameters."""
    return {name: value for name, value in others.items() if name in SINGLE_ANSWER_FIELDS}
