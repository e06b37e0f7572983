"""What a request's sampling parameters ask of plugins: fields and arguments that somebody must
serve.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from core.errors import InvalidRequest, did_you_mean
from core.types.sampling import SamplingParams

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
"""Fields that mean nothing unless a plugin lists them in its `params`."""

_DEFAULTS: Final = SamplingParams()


def unserved_params(sampling: SamplingParams, serving: Iterable[Any]) -> list[str]:
    """Return the fields that are set although none of those `serving` parameters lists them."""
    asked = [name for name in PROCESSED if getattr(sampling, name) != getattr(_DEFAULTS, name)]
    if not asked:
        return []
    served = {name for each in serving for name in each.params}
    return [name for name in asked if name not in served]


def check_extra_args(sampling: SamplingParams, processors: Iterable[Any]) -> None:
    """Raise `InvalidRequest` for arguments of another type than declared, and for what excludes
    each other.

    A name that nobody declares may be read all the same, but one that is nearly another's is
    misspelt.
    """
    given = sampling.extra_args or {}
    processors = tuple(processors)
    known = (
        [name for processor in processors for name in getattr(processor, "extra_args", ())]
        if given
        else []
    )
    for name in given:
        if name not in known and (meant := did_you_mean(str(name), known)):
            raise InvalidRequest(f"extra_args.{name}", f"no plugin declares it{meant}")
    for processor in processors:
        declared = getattr(processor, "extra_args", {})
        for name in declared:
            if name in given:
                _check_type(name, given[name], declared[name])
        asked = [f"extra_args.{name}" for name in declared if name in given]
        asked += [name for name in processor.params if _is_set(sampling, name)]
        clash = next(
            (name for name in getattr(processor, "excludes", ()) if _is_set(sampling, name)), None
        )
        if asked and clash is not None:
            raise InvalidRequest(
                asked[0], f"cannot be combined with {clash}; leave one of them out."
            )


def _is_set(sampling: SamplingParams, name: str) -> bool:
    return bool(getattr(sampling, name) != getattr(_DEFAULTS, name))


def _check_type(name: str, value: Any, wanted: Any) -> None:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        raise InvalidRequest(
            f"extra_args.{name}{place.rstrip('`')}", f"{text[:1].lower()}{text[1:]}."
        ) from error
