"""The admission half: rejects exponential constraints and ranks the backends for the others.

Imports no backend: checks that need a grammar library run in a grammar process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from builtin_plugins.features.structured_outputs.complexity_check import (
    find_blowup,
    remote_reference,
)
from builtin_plugins.features.structured_outputs.grammar_pool import GrammarProcessPool
from builtin_plugins.features.structured_outputs.messages import NAME, Outcome
from builtin_plugins.features.structured_outputs.resources import backend_names
from builtin_plugins.features.structured_outputs.settings import (
    AMBIGUITY_TOLERANT,
    EXACT,
    StructuredOutputsConfig,
)
from builtin_plugins.grammar_backends.api import Constraint, constraint_of
from core.api import ConfigError, EngineConfig, InvalidRequest, Registry, SamplingParams

_ANY: Final = "auto"
_EXACT_KINDS: Final = ("json", "json_object", "regex", "choice")
_decode = msgspec.msgpack.Decoder(Outcome).decode


class Admission:
    """Checks the constraint of each request."""

    params: tuple[str, ...] = ("structured_outputs",)

    def __init__(self, config: EngineConfig, registry: Registry, pool: GrammarProcessPool) -> None:
        """Raises `ConfigError` for an unknown backend or reasoning parser."""
        self._settings = StructuredOutputsConfig.of(config)
        self._settings.check_names(config, registry)
        self._registry = registry
        self._pool = pool

    def affects(self, sampling: SamplingParams) -> bool:
        """Return whether the request is constrained."""
        return sampling.structured_outputs is not None

    def admit(self, sampling: SamplingParams, end_ids: Sequence[int]) -> SamplingParams:
        """Return the parameters with the backends to try, best first."""
        params = sampling.structured_outputs
        assert params is not None
        if not end_ids:
            raise InvalidRequest(
                "structured_outputs", "the model has no end token, so no output could be complete."
            )
        settings = self._settings
        fixed_layout = params.disable_any_whitespace or settings.disable_any_whitespace
        closed = params.disable_additional_properties or settings.disable_additional_properties
        request = msgspec.structs.replace(
            params,
            disable_any_whitespace=fixed_layout,
            disable_additional_properties=closed,
            backend=_ANY,  # it is validated already
        )
        names = self._backends()
        if request.disable_fallback or settings.disable_fallback:
            del names[1:]
        constraint = constraint_of(request)
        names = _fit(constraint, names)
        if self._pool.is_local:
            self._pool.check((tuple(names), constraint))
        return sampling.clone(
            structured_outputs=msgspec.structs.replace(request, backend=",".join(names))
        )

    def _backends(self) -> list[str]:
        names = backend_names(self._settings, self._registry)
        if not names:
            try:
                self._registry.choose("grammar_backends")
            except ConfigError as error:
                raise InvalidRequest(
                    "structured_outputs", f"cannot be served here: {error}"
                ) from error
        return names

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Return the request's error, if any, and its values for the metrics."""
        if NAME not in features:
            return {}
        outcome = _decode(features[NAME])
        return {"refusal": outcome.error(), "counts": outcome.counts()}


def _fit(constraint: Constraint, names: list[str]) -> list[str]:
    """Return the backends to try for a constraint, in order. Raises `InvalidRequest` for none."""
    field = f"structured_outputs.{constraint.kind}"
    if names[:1] and names[0] in EXACT and constraint.kind in _EXACT_KINDS:
        return names[:1]
    ref = None
    if constraint.kind in ("json", "structural_tag"):
        ref = remote_reference(constraint.text)
    if ref is not None:
        text = f"got the $ref {ref!r:.80} to another document; expected a local one"
        raise InvalidRequest(field, f"{text}. Move it to $defs.")
    what = find_blowup(constraint)
    if what is None:
        return names
    tolerant = [name for name in names if name in AMBIGUITY_TOLERANT]
    if not tolerant:
        raise InvalidRequest(field, f"contains {what}, which takes exponential work. Simplify it.")
    return [*tolerant, *(name for name in names if name not in tolerant)]
