"""Requests that name their engine: the keyword `data_parallel_rank`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from core.api import InvalidRequest
from core.api.features import PendingRequest

NAME: Final = "data_parallel_rank"
"""Keyword of `AsyncLLM.generate`, and the payload of such requests."""


class EngineChoice:
    """Admission half: checks the rank and passes it to the client."""

    keywords = (NAME,)
    fields = (NAME,)

    def __init__(self, num_engines: int) -> None:
        self._num_engines = num_engines

    async def prepare(self, request: PendingRequest) -> PendingRequest:
        """Return the request with its rank. Raises `InvalidRequest` for a rank without engine."""
        rank = request.plugin_fields[NAME]
        if rank is None:
            return request
        if type(rank) is not int or not 0 <= rank < self._num_engines:
            raise InvalidRequest(
                NAME, f"got {rank!r:.100}; expected 0 to {self._num_engines - 1}. Leave it out."
            )
        return replace(request, features={**request.features, NAME: str(rank).encode()})
