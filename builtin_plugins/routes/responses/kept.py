"""What may be asked of responses that are kept, or under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.responses.background import Runs
from builtin_plugins.routes.responses.store import Kept, ResponseStore
from builtin_plugins.routes.streams import EventStream
from core.api import InvalidRequest

MOST_LISTED: Final = 100
"""Input items on one page."""


class KeptResponses:
    """The endpoints of one response."""

    def __init__(self, store: ResponseStore, runs: Runs) -> None:
        self._store = store
        self._runs = runs

    async def retrieve(self, request: Request) -> Any:
        """A response that is kept, or as it is by now; streamed where it is under way."""
        response_id = request.path_params["response_id"]
        query = request.query_params
        run = self._runs.get(response_id)
        if query.get("stream") in ("true", "1"):
            if run is None:
                raise InvalidRequest(
                    "stream", "can be read of a response that is under way; this one is not."
                )
            after = _number(query.get("starting_after", "-1"), "starting_after", -1, 2**31)
            return EventStream(run.events(after + 1))
        return as_json((await self._kept(response_id)).response if run is None else run.response)

    async def cancel(self, request: Request) -> Response:
        """End a response that is made in the background."""
        response_id = request.path_params["response_id"]
        run = self._runs.get(response_id)
        if run is not None:
            await run.cancel()
            return as_json(run.response)
        kept = await self._kept(response_id)
        if not kept.response.get("background"):
            raise InvalidRequest(
                "response_id", "was not made in the background; close the connection of others."
            )
        return as_json(kept.response)

    async def delete(self, request: Request) -> Response:
        """Forget a response."""
        response_id = request.path_params["response_id"]
        run = self._runs.get(response_id)
        if run is not None:
            await run.cancel()
        if not await self._store.delete(response_id) and run is None:
            raise _missing(response_id, "response_id")
        return as_json({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """What a response answers, those before it included; the newest first, unless asked
        otherwise.
        """
        response_id = request.path_params["response_id"]
        query = request.query_params
        chain = await self.chain(response_id, "response_id")
        items = [*said(chain[:-1]), *chain[-1].input]
        if query.get("order", "desc") not in ("asc", "desc"):
            raise InvalidRequest("order", "must be 'asc' or 'desc'.")
        if query.get("order", "desc") == "desc":
            items.reverse()
        limit = _number(query.get("limit", "20"), "limit", 1, MOST_LISTED)
        ids = [item["id"] for item in items]
        if (after := query.get("after")) is not None and after not in ids:
            raise InvalidRequest("after", f"{after[:80]!r} is no item of this response.")
        start = 0 if after is None else ids.index(after) + 1
        shown = items[start : start + limit]
        return as_json(
            {
                "object": "list",
                "data": shown,
                "first_id": shown[0]["id"] if shown else None,
                "last_id": shown[-1]["id"] if shown else None,
                "has_more": start + limit < len(items),
            }
        )

    async def _kept(self, response_id: str) -> Kept:
        kept = await self._store.get(response_id)
        if kept is None:
            raise _missing(response_id, "response_id")
        return kept

    async def chain(self, response_id: str, field: str) -> list[Kept]:
        """Return a response behind all that it goes on from; `field` is what names it."""
        if self._runs.get(response_id) is not None:
            raise InvalidRequest(field, "is still being made; wait for its end.")
        chain = await self._store.chain(response_id)
        if chain is None:
            raise _missing(response_id, field)
        return chain


def said(chain: list[Kept]) -> list[dict[str, Any]]:
    """Return all items of some responses and what they answered."""
    return [item for kept in chain for item in (*kept.input, *kept.response["output"])]


def _missing(response_id: str, field: str) -> HTTPException:
    message = f"no response {response_id[:100]!r} is kept here: it was never stored, has been deleted, or made room."
    return HTTPException(404, {"message": message, "param": field, "code": "response_not_found"})


def _number(text: str, field: str, low: int, high: int) -> int:
    if not text.removeprefix("-").isdecimal() or len(text) > 12 or not low <= int(text) <= high:
        raise InvalidRequest(field, f"must be an integer from {low} to {high}, not {text[:32]!r}.")
    return int(text)


def as_json(value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of one object."""
    return Response(
        msgspec.json.encode(value), media_type="application/json", headers=dict(headers or {})
    )
