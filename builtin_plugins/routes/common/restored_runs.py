"""Continues the streamed answers of an API process that has died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.types import Message

from builtin_plugins.routes.common.body import client_name, owner_name
from builtin_plugins.routes.common.event_runs import EventRuns
from builtin_plugins.routes.common.run_ledger import MAX_BODY_BYTES, RecordedRun, RunLedger
from builtin_plugins.routes.common.streams import EventStream

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Any]]
POLL_S: Final = 0.005
"""Interval of checks for a restored answer."""


async def restore_runs(
    ledger: RunLedger, runs: EventRuns, path: str, endpoint: Endpoint
) -> list[asyncio.Task[None]]:
    """Answer the unfinished requests of a path again; return the tasks that do.

    Afterwards, clients find the answers.
    """
    tasks = []
    for recorded in ledger.take_unfinished(path):
        opened = recorded.opened
        task = asyncio.ensure_future(_answer(endpoint, recorded))
        tasks.append(task)
        while not task.done() and runs.running(opened.owner, opened.answer_id) is None:
            await asyncio.sleep(POLL_S)
    return tasks


async def _answer(endpoint: Endpoint, recorded: RecordedRun) -> None:
    opened = recorded.opened
    messages: list[Message] = [{"type": "http.request", "body": opened.body}]
    state = {
        "owner": opened.owner,
        "client_name": opened.client,
        "recorded_run": recorded,
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": opened.path,
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
        "state": state,
    }

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    try:
        response = await endpoint(Request(scope, receive))
        if isinstance(response, EventStream):
            await response.aclose()
    except Exception as error:  # noqa: BLE001 - other answers are restored
        log.warning("an answer of the API process before cannot be continued: %s", error)
        recorded.close()


def recorded_run(request: Request) -> RecordedRun | None:
    """Return the answer that a request continues; None for a new request."""
    found: RecordedRun | None = request.scope.get("state", {}).get("recorded_run")
    return found


def record_run(
    ledger: RunLedger | None,
    request: Request,
    body: Callable[[], dict[str, Any]],
    *,
    answer_id: str,
    run_id: str,
    created: int,
) -> RecordedRun | None:
    """Record a request, so that the next API process can continue its answer.

    None for one that is too large, and on a server without a parent process.
    """
    length = request.headers.get("content-length", "")
    if ledger is None or not length.isdigit() or int(length[:20]) > MAX_BODY_BYTES:
        return None
    return ledger.open(
        owner_name(request),
        client_name(request),
        request.scope["path"],
        msgspec.json.encode(body()),
        answer_id,
        run_id,
        created,
    )
