"""The half at the edge: a request tells the scheduler whose it is."""

from __future__ import annotations

from dataclasses import replace

from core.api import Draft

NAME = "fair_clients"


class Admission:
    """Reads who sent a request, where whoever serves knows that."""

    keywords = ("client",)

    async def prepare(self, draft: Draft) -> Draft:
        """Return the request with the name of its client for the other half."""
        client = str(draft.given["client"])
        return replace(draft, features={**draft.features, NAME: client.encode()})
