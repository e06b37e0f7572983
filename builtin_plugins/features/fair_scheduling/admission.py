"""Admission half: passes each request's client to the scheduler half."""

from __future__ import annotations

from dataclasses import replace

from core.api.features import PendingRequest

NAME = "fair_scheduling"


class Admission:
    """Reads the `client` of a request, if the server knows it."""

    keywords = ("client",)

    async def prepare(self, request: PendingRequest) -> PendingRequest:
        """Return the request with its client's name for the scheduler half."""
        client = str(request.plugin_fields["client"])
        return replace(request, features={**request.features, NAME: client.encode()})
