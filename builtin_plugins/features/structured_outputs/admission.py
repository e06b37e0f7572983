"""At the edge: a constraint that is known to explode is refused; else the backends are chosen that
shall be asked.

No backend is imported here: what only a library can say is said by the process that keeps grammars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from builtin_plugins.features.structured_outputs.explosive import explodes, remote_reference
from builtin_plugins.features.structured_outputs.keepers import Keepers
from builtin_plugins.features.structured_outputs.news import NAME, Outcome
from builtin_plugins.features.structured_outputs.settings import (
    BEAR_AMBIGUITY,
    StructuredOutputsConfig,
)
from builtin_plugins.features.structured_outputs.tools import backends
from core.api import ConfigError, Constraint, EngineConfig, InvalidRequest, SamplingParams

_ANY: Final = "auto"
_decode = msgspec.msgpack.Decoder(Outcome).decode


class Admission:
    """Looks at each constraint."""

    params: tuple[str, ...] = ("structured_outputs",)

    def __init__(self, config: EngineConfig, registry: Any, keepers: Keepers) -> None:
        """Raises `ConfigError` for a backend or reasoning parser that is not there: no request
        would be served.
        """
        self._settings = StructuredOutputsConfig.of(config)
        self._settings.reasoning_parser_of(config, registry)
        self._registry = registry
        self._keepers = keepers
        if self._settings.wanted != "auto":
            try:
                registry.choose("grammar_backends", self._settings.wanted)
            except ConfigError as error:
                raise ConfigError(f"{error}{self._settings.cure}.") from error

    def wants(self, sampling: SamplingParams) -> bool:
        """Say whether the request is constrained."""
        return sampling.structured_outputs is not None

    def admit(self, sampling: SamplingParams, end_ids: Sequence[int]) -> SamplingParams:
        """Return the parameters with the backends that are to serve them, best first."""
        params = sampling.structured_outputs
        assert params is not None
        if not end_ids:
            raise InvalidRequest(
                "structured_outputs", "the model has no end token, so no output could be complete."
            )
        settings = self._settings
        asked = msgspec.structs.replace(
            params,
            disable_any_whitespace=params.disable_any_whitespace or settings.disable_any_whitespace,
            disable_additional_properties=params.disable_additional_properties
            or settings.disable_additional_properties,
            backend=_ANY,  # it was checked when it came
        )
        names = self._backends()
        if asked.disable_fallback or settings.disable_fallback:
            del names[1:]
        constraint = asked.constraint()
        names = _fit(constraint, names)
        if self._keepers.is_here:
            self._keepers.check((tuple(names), constraint))
        return sampling.clone(
            structured_outputs=msgspec.structs.replace(asked, backend=",".join(names))
        )

    def _backends(self) -> list[str]:
        names = backends(self._settings, self._registry)
        if not names:
            try:
                self._registry.choose("grammar_backends")
            except ConfigError as error:
                raise InvalidRequest(
                    "structured_outputs", f"cannot be served here: {error}"
                ) from error
        return names

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Return what a request has failed of, as an error of the client's or ours, and what is
        counted of it.
        """
        if NAME not in features:
            return {}
        outcome = _decode(features[NAME])
        return {"refusal": outcome.error(), "counts": outcome.counts()}


def _fit(constraint: Constraint, names: list[str]) -> list[str]:
    """Return the backends in the order to ask them for a constraint.

    Raises `InvalidRequest` for one nobody should be asked for.
    """
    field = f"structured_outputs.{constraint.kind}"
    if (
        constraint.kind in ("json", "structural_tag")
        and (ref := remote_reference(constraint.text)) is not None
    ):
        raise InvalidRequest(
            field,
            f"has the $ref {ref!r:.80}, which leads out of the schema; nothing is fetched, so put "
            "it into $defs.",
        )
    what = explodes(constraint)
    if what is None:
        return names
    patient = [name for name in names if name in BEAR_AMBIGUITY]
    if not patient:
        raise InvalidRequest(
            field,
            f"holds {what}, which would take more work than any output is worth; write it in a "
            "simpler way.",
        )
    return [*patient, *(name for name in names if name not in patient)]
