"""Requests that name their engine: the keyword `data_parallel_rank`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from builtin_plugins.clients.ranks import RANK
from core.api import InvalidRequest
from core.api.features import PendingRequest

NAME: Final = RANK
"""Keyword of `AsyncLLM.generate`, and the payload of such requests."""


class EngineChoice:
    """Admission half: checks the rank and passes it to the client."""

    keywords = (NAME,)
    fields = (NAME,)

    def __init__(self, ranks: range) -> None:
        """`ranks`: those of this server."""
        self._ranks = ranks

    async def prepare(self, request: PendingRequest) -> PendingRequest:
        """Return the request with its rank. Raises `InvalidRequest` for a rank without engine."""
        rank = request.plugin_fields[NAME]
        if rank is None:
            return request
        if type(rank) is not int or rank not in self._ranks:
            first = self._ranks[0]
            last = self._ranks[-1]
            expected = f"{first} to {last}" if last > first else f"{first}"
            raise InvalidRequest(NAME, f"got {rank!r:.100}; expected {expected}. Leave it out.")
        return replace(request, features={**request.features, NAME: str(rank).encode()})
