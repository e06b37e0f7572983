"""Request parameters and keywords that plugins serve: known names, and values without an effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec

from core.errors import InvalidRequest, UnknownKeyword, did_you_mean
from core.types.sampling import SamplingParams

# --- sampling parameters ----------------------------------------------------

PROCESSED: Final = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_p",
    "min_tokens",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "structured_outputs",
)
"""Fields of `SamplingParams` that need a plugin with the field in its `params`."""

_DEFAULTS: Final = SamplingParams()


def unsupported_params(sampling: SamplingParams, serving: Iterable[Any]) -> list[str]:
    """Return the fields that are set although no object in `serving` has them in its `params`."""
    requested = [name for name in PROCESSED if _is_set(sampling, name)]
    if not requested:
        return []
    served = {name for each in serving for name in each.params}
    return [name for name in requested if name not in served]


def check_extra_args(sampling: SamplingParams, processors: Iterable[Any]) -> None:
    """Raise `InvalidRequest` for `extra_args` of a wrong type or in an excluded combination.

    An undeclared name passes, unless it is a near miss of a declared one.
    """
    given = sampling.extra_args or {}
    processors = tuple(processors)
    declared_names: list[str] = []
    if given:
        declared_names = [
            name for processor in processors for name in getattr(processor, "extra_args", ())
        ]
    for name in islice(given, 100):  # a comparison takes 20 us
        if name not in declared_names and (hint := did_you_mean(str(name), declared_names)):
            raise InvalidRequest(f"extra_args.{name}", f"no plugin declares it{hint}")
    for processor in processors:
        declared = getattr(processor, "extra_args", {})
        for name in declared:
            if name in given:
                _check_type(name, given[name], declared[name])
        used = [f"extra_args.{name}" for name in declared if name in given]
        used += [name for name in processor.params if _is_set(sampling, name)]
        excluded = getattr(processor, "excludes", ())
        clash = next((name for name in excluded if _is_set(sampling, name)), None)
        if used and clash is not None:
            raise InvalidRequest(
                used[0], f"cannot be combined with {clash}; leave one of them out."
            )


def _is_set(sampling: SamplingParams, name: str) -> bool:
    return bool(getattr(sampling, name) != getattr(_DEFAULTS, name))


def _check_type(name: str, value: Any, declared: Any) -> None:
    try:
        msgspec.convert(value, declared)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        field_name = f"extra_args.{name}{path.rstrip('`')}"
        raise InvalidRequest(field_name, f"{text[:1].lower()}{text[1:]}.") from error


# --- keywords and fields ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A known name without an effect here."""

    reason: str
    """Predicate of a sentence: "needs adapters, and no plugin brings them"."""
    neutral: tuple[Any, ...] = ()
    """Values, in addition to None and empty ones, that request nothing and pass."""


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Names of keywords or fields: those that plugins read, and known unsupported ones."""

    read: frozenset[str] = frozenset()
    unsupported: Mapping[str, Unsupported] = field(default_factory=dict)

    @classmethod
    def collect(cls, extensions: Iterable[Any], *kinds: str) -> KnownNames:
        """Return the names that extensions declare; `kinds` are their attributes for names."""
        listed = list(extensions)
        read = frozenset(
            name for extension in listed for kind in kinds for name in getattr(extension, kind, ())
        )
        unsupported: dict[str, Unsupported] = {}
        for extension in listed:
            unsupported |= getattr(extension, "unsupported", {})
        return cls(read, unsupported)

    def select_known(
        self,
        given: Mapping[str, Any],
        own: Collection[str] = (),
        what: str = "no plugin reads it",
        hints: Collection[str] = (),
    ) -> dict[str, Any]:
        """Return the given values that plugins read, without None.

        `own` are names that the caller reads itself; `hints` are further candidates for a misspelt
        name. Raises `InvalidRequest` for any other name with a value that is not neutral.
        """
        found = {}
        for name, value in given.items():
            if name in own or value is None:
                continue
            if name in self.read:
                found[name] = value
                continue
            known = self.unsupported.get(name, Unsupported(""))
            is_empty = hasattr(value, "__len__") and len(value) == 0
            if is_empty or _is_neutral(value, known):
                continue
            if known.reason:
                raise InvalidRequest(name, f"{known.reason}.")
            candidates = {*own, *hints, *self.read} - {name}
            hint = did_you_mean(str(name), candidates)
            raise UnknownKeyword(str(name), f"{what}{hint or '.'}")
        return found


def _is_neutral(value: Any, known: Unsupported) -> bool:
    return any(type(value) is type(each) and value == each for each in known.neutral)
