"""Admission half: passes on where an output's reasoning lies.

Stop strings count in the answer only, and a constraint applies to it only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from builtin_plugins.output_parsers.reasoning.answer_finder import MarkerAnswerFinder
from builtin_plugins.output_parsers.reasoning_bounds import REASONING_BOUNDS, ReasoningBounds
from core.api import InvalidRequest
from core.api.features import PendingRequest

_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class _FinderFactory:
    """Makes the answer finder of one sequence. Equal bounds make equal factories."""

    bounds: ReasoningBounds

    def __call__(self) -> MarkerAnswerFinder:
        return MarkerAnswerFinder(self.bounds)


class ReasoningAdmission:
    """Reads the `reasoning_bounds` of a request, which its route sets."""

    keywords = (REASONING_BOUNDS,)

    async def prepare(self, request: PendingRequest) -> PendingRequest:
        """Return the request with its answer finder, and its bounds for scheduler halves."""
        bounds = request.plugin_fields[REASONING_BOUNDS]
        if not isinstance(bounds, ReasoningBounds):
            raise InvalidRequest(
                REASONING_BOUNDS, f"got {bounds!r:.200}; expected ReasoningBounds."
            )
        return replace(
            request,
            answer_finder=_FinderFactory(bounds),
            features={**request.features, REASONING_BOUNDS: _encode(bounds)},
        )
