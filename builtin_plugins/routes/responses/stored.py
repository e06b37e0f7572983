"""Endpoints of stored responses, and responses that run in the background."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.common.body import owner_name, reserve_bytes
from builtin_plugins.routes.common.event_runs import EventRuns, event_number, overloaded
from builtin_plugins.routes.common.streams import EventStream
from builtin_plugins.routes.responses.store import ResponseStore
from builtin_plugins.routes.responses.table_reader import Link, StoredResponse
from core.api import InvalidRequest

MAX_PAGE_ITEMS: Final = 100
"""Largest number of input items on one page."""


class StoredResponses:
    """Endpoints of one response."""

    def __init__(self, store: ResponseStore, runs: EventRuns) -> None:
        self._store = store
        self._runs = runs

    async def retrieve(self, request: Request) -> Any:
        """A stored or running response; with `stream`, its events after `starting_after`."""
        response_id = request.path_params["response_id"]
        query = request.query_params
        owner = owner_name(request)
        if query.get("stream") in ("true", "1"):
            run = self._runs.get(owner, response_id)
            if run is None:
                await self._find(request, response_id)
                raise InvalidRequest(
                    "stream",
                    "got true; expected a response with events that are still held. Read it whole.",
                )
            start = event_number(query.get("starting_after", "-1"), "starting_after") + 1
            run.check(start)
            return EventStream(run.events(start))
        running = self._runs.running(owner, response_id)
        if running is not None and running.state is not None:
            return as_json(running.state)
        return as_json(await self._find(request, response_id))

    async def cancel(self, request: Request) -> Response:
        """Cancel a background response."""
        response_id = request.path_params["response_id"]
        owner = owner_name(request)
        run = self._runs.running(owner, response_id)
        found = None if run is None else run.state
        if run is not None and found is not None and found["background"]:
            await run.cancel()
            return as_json(found)
        stored = await self._find(request, response_id) if found is None else found
        if not stored.get("background"):
            raise InvalidRequest(
                "response_id", "was not made in the background; close the connection of others."
            )
        return as_json(stored)

    async def delete(self, request: Request) -> Response:
        """Delete a response."""
        response_id = request.path_params["response_id"]
        owner = owner_name(request)
        run = self._runs.get(owner, response_id)
        if run is not None:
            await run.cancel()
            self._runs.forget(run)
        if not await self._store.delete(owner, response_id) and run is None:
            raise _missing(response_id, "response_id")
        return as_json({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """Input items of a response and of those it continues; by default the newest first."""
        response_id = request.path_params["response_id"]
        query = request.query_params
        chain = await self.chain(owner_name(request), response_id, "response_id")
        if query.get("order", "desc") not in ("asc", "desc"):
            raise InvalidRequest("order", "must be 'asc' or 'desc'.")
        after = query.get("after")
        page = await self._store.page(
            chain,
            newest_first=query.get("order", "desc") == "desc",
            after=after,
            limit=_number(query.get("limit", "20"), "limit", 1, MAX_PAGE_ITEMS),
            reserve=reserve_bytes(request),
        )
        if page is None:
            raise InvalidRequest("after", f"{(after or '')[:80]!r} is no item of this response.")
        return as_json(
            {
                "object": "list",
                "data": page.items,
                "first_id": page.ids[0] if page.ids else None,
                "last_id": page.ids[-1] if page.ids else None,
                "has_more": page.has_more,
            }
        )

    async def _find(self, request: Request, response_id: str) -> dict[str, Any]:
        response = await self._store.get(owner_name(request), response_id, reserve_bytes(request))
        if response is None:
            raise _missing(response_id, "response_id")
        return response

    async def chain(self, owner: str, response_id: str, field: str) -> list[Link]:
        """Return a response after all those it continues, unread; `field` names it in errors."""
        if self._runs.running(owner, response_id) is not None:
            raise InvalidRequest(field, "is still being made; wait for its end.")
        chain = await self._store.chain(owner, response_id)
        if chain is None:
            raise _missing(response_id, field)
        return chain

    async def read(self, request: Request, response_id: str, field: str) -> list[StoredResponse]:
        """Return a response after all those it continues; `field` names it in errors."""
        links = await self.chain(owner_name(request), response_id, field)
        chain = await self._store.read(links, reserve_bytes(request))
        if chain is None:
            raise _missing(response_id, field)
        return chain


def chain_items(chain: list[StoredResponse]) -> list[dict[str, Any]]:
    """Return the input and output items of responses, in order."""
    return [item for stored in chain for item in (*stored.input, *stored.response["output"])]


def _missing(response_id: str, field: str) -> HTTPException:
    message = (
        f"no response {response_id[:100]!r} is stored: "
        "it never was, has been deleted, or was evicted."
    )
    code = (
        "previous_response_not_found" if field == "previous_response_id" else "response_not_found"
    )
    return HTTPException(404, {"message": message, "param": field, "code": code})


def _number(text: str, field: str, low: int, high: int) -> int:
    if not text.removeprefix("-").isdecimal() or len(text) > 12 or not low <= int(text) <= high:
        raise InvalidRequest(field, f"must be an integer from {low} to {high}, not {text[:32]!r}.")
    return int(text)


def as_json(value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(
        msgspec.json.encode(value), media_type="application/json", headers=dict(headers or {})
    )


async def store_input(
    store: ResponseStore,
    owner: str,
    response: dict[str, Any],
    items: list[dict[str, Any]],
    previous: str | None,
) -> None:
    """Store the input of a background response. Raises a 503 if it does not fit."""
    if not await store.add(owner, response["id"], items, previous, pinned=True):
        raise overloaded("the input does not fit into your share of the stored responses")
