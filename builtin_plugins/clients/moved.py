"""The engines that had a request before they died, as a payload of the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from core.api.execution import EngineRequest

MOVED_FROM: Final = "moved_from"
"""Payload: ranks in order, as JSON."""


def with_previous_engine(request: EngineRequest, rank: int) -> EngineRequest:
    """Return a request of a dead engine, for another one."""
    ranks = [*previous_engines(request.features), rank]
    features = {**request.features, MOVED_FROM: msgspec.json.encode(ranks)}
    return msgspec.structs.replace(request, features=features)


def previous_engines(features: Mapping[str, bytes]) -> list[int]:
    """Return the ranks of the engines that had a request before, in order."""
    return msgspec.json.decode(features.get(MOVED_FROM, b"[]"), type=list[int])
